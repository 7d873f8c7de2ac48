"""Tokens for KllmRowCompare, with the rows of golden."""

import dataclasses
import itertools

import numpy as np

from golden.kllm.format import TokenKind
from golden.kllm.isa import ROW_ELEMENTS
from golden.kllm.quantizer_phases import Bound, compare_row, total_order_key
from golden.words import alternating, join

TOKENS = 150
# (length, sides in the order of ``alternating``) of tokens with a bound on each side.
LONGEST = (((1 << 14) - 1, ("largest", "smallest")), ((1 << 14) - 20, ("smallest", "largest")))
FINITE = [0, 0x8000, 0x3C00, 0xBC00]
FEW = [0, 0x8000, 0x3C00, 0xBC00, 0x3C01, 0x7C00, 0xFC00, 0x7E00, 0xFC01]


def random_words(rng, count: int) -> list[int]:
    """Words of a token, some of them of a few values: ties."""
    x = rng.integers(0, 1 << 16, count)
    share = rng.choice([0, 0.5, 1])
    return np.where(rng.random(count) < share, rng.choice(FEW, count), x).tolist()


def word_of_key(key: int) -> int:
    """The word of which ``key`` is the total_order_key."""
    return key ^ 0x8000 if key >= 0x8000 else 0xFFFF - key


def tied_bounds(rng, words: list[int], element: int, side: str) -> dict[str, Bound | None]:
    """The bounds of a token: that of ``side`` alone, a tie that an ``element`` of a row decides."""
    position = element + ROW_ELEMENTS * int(rng.integers(0, len(words) // ROW_ELEMENTS))
    words[position] = int(rng.integers(0, 0x7C00)) | int(rng.integers(0, 2)) << 15
    bound = Bound(total_order_key(words[position]), position, tie=True)
    return {"largest": None, "smallest": None} | {side: bound}


def far_bounds(words: list[int], order: tuple[str, str]) -> dict[str, Bound | None]:
    """Bounds of a long token of few words: ties on both sides of a far position.

    The bounds are the largest and the smallest of FINITE, which many elements hold.
    """
    places = dict(zip(order, alternating(len(words) - 1), strict=True))
    words[places["largest"]], words[places["smallest"]] = 0x3C00, 0xBC00
    return {
        side: Bound(total_order_key(words[position]), position, tie=True)
        for side, position in places.items()
    }


def untied(sides: dict[str, Bound | None], side: str) -> dict[str, Bound | None]:
    bound = sides[side]
    assert bound is not None
    return sides | {side: dataclasses.replace(bound, tie=False)}


def random_bound(rng, words: list[int]) -> Bound | None:
    """One of the token's own words in most cases."""
    if rng.random() < 0.2:
        return None
    position = int(rng.integers(0, len(words)))
    word = words[position] if rng.random() < 0.8 else int(rng.integers(0, 1 << 16))
    return Bound(total_order_key(word), position, tie=bool(rng.random() < 0.7))


def place_neighbours(rng, words: list[int], bounds: list[Bound | None]) -> None:
    """A third of ``words`` become a bound's word with one bit, any of 16, inverted."""
    given = [bound for bound in bounds if bound is not None]
    for position in range(len(words)):
        is_bound = any(bound.position == position for bound in given)
        if given and not is_bound and rng.random() < 0.3:
            key = rng.choice([bound.key for bound in given])
            words[position] = word_of_key(int(key)) ^ 1 << int(rng.integers(0, 16))


def bound_fields(bound: Bound | None, rng) -> dict[str, int]:
    if bound is None:
        return {"on": 0, "tie": int(rng.integers(2)), "key": int(rng.integers(1 << 16))}
    return {"on": 1, "tie": int(bound.tie), "key": bound.key, "position": bound.position}


def make_token(
    rng,
    config,
    tied: tuple[int, str] | None = None,
    longest: tuple[int, tuple[str, str]] | None = None,
) -> tuple[int, list[int], list[int]]:
    """A token, its rows, and the rows that come out.

    tied: an element of a row, and the side of the one bound; it is a tie that the element decides.
    longest: of LONGEST, a token of few words with ``far_bounds``.
    """
    kind = TokenKind(int(rng.integers(0, 4)))
    if tied or longest:
        kind = TokenKind.ONLINE
    if longest:
        length = longest[0]
    else:
        length = int(rng.integers(1, 100)) if not tied else ROW_ELEMENTS * 3
    if kind == TokenKind.CODEBOOK:
        length = 2 * ROW_ELEMENTS
    count = -(-length // ROW_ELEMENTS)
    words = random_words(rng, count * ROW_ELEMENTS)
    sides = {side: random_bound(rng, words) for side in ("largest", "smallest")}
    if tied:
        sides = tied_bounds(rng, words, *tied)
    elif longest:
        words = rng.choice(FINITE, len(words)).tolist()
        sides = far_bounds(words, longest[1])
    elif kind in (TokenKind.INTEGER, TokenKind.CODEBOOK):
        sides = dict.fromkeys(sides)
    elif rng.random() < 0.5:
        place_neighbours(rng, words, list(sides.values()))
    common = {
        "kind": int(kind), "slot": int(rng.integers(256)), "norm": int(rng.integers(2)),
        "s": int(rng.integers(1 << 16)),
    }  # fmt: skip
    token = config.token_layout.const(
        {
            **common, "rows": count, "tail": (length - 1) % ROW_ELEMENTS,
            **{side: bound_fields(bound, rng) for side, bound in sides.items()},
        }
    )  # fmt: skip
    rows, split, decided = [], [], set()
    for row in range(count):
        part = words[row * ROW_ELEMENTS :][:ROW_ELEMENTS]
        beyond, nonfinite = compare_row(part, row * ROW_ELEMENTS, length, **sides)
        if tied:
            (bound,) = filter(None, sides.values())
            is_here = bound.position // ROW_ELEMENTS == row
            others, _ = compare_row(part, row * ROW_ELEMENTS, length, **untied(sides, tied[1]))
            assert not is_here or beyond[tied[0]] != others[tied[0]]
        if longest:
            for side in sides:
                others, _ = compare_row(part, row * ROW_ELEMENTS, length, **untied(sides, side))
                if others != beyond:
                    decided.add(side)
        if kind == TokenKind.CODEBOOK:
            beyond = [n < 2**config.bits_a - row for n in range(ROW_ELEMENTS)]
        left = min(length - row * ROW_ELEMENTS, ROW_ELEMENTS)
        out = {
            **common, "row": row, "last": int(row == count - 1), "live": (1 << left) - 1,
            "word": part, "beyond": join(*((flag, 1) for flag in beyond)),
            "nonfinite": int(nonfinite),
        }  # fmt: skip
        rows.append(join(*((word, 16) for word in part)))
        split.append(config.o_layout.const(out).as_bits())
    assert not longest or decided == set(sides)
    return token.as_bits(), rows, split


def row_compare_params(config, seed) -> dict:
    """Words of TOKENS tokens on every stream, and how many there are after each token."""
    rng = np.random.default_rng([seed, 91])
    words: dict[str, list[int]] = {"token": [], "row": [], "o": []}
    packets: dict[str, list[int]] = {stream: [] for stream in words}
    every = itertools.product(range(ROW_ELEMENTS), ("largest", "smallest"))
    tokens: list[dict] = [{"tied": each} for each in (*[None] * TOKENS, *every)]
    some = len(tokens)  # of the flows with idle and stall cycles
    tokens += [{"longest": each} for each in LONGEST]
    for given in tokens:
        token, rows, split = make_token(rng, config, **given)
        words["token"].append(token)
        words["row"] += rows
        words["o"] += split
        for stream, ends in packets.items():
            ends.append(len(words[stream]))
    return {"words": words, "packets": packets, "some": some}
