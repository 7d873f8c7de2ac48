"""The phases of the quantizer: bounds, rows compared and split, descriptors.

Words are FP16 bit patterns. ``golden.kllm.quantizer`` is the whole unit. Nothing here rounds.
"""

import dataclasses
from collections.abc import Sequence

from golden.fp16.format import FP16, FP32
from golden.kllm.isa import ROW_ELEMENTS, CommandStatus

_MAGNITUDE = FP16.sign_bit - 1
_ONE = FP32.bias << FP32.frac_bits
_LARGEST_CODEBOOK_WORD = FP16.bias << FP16.frac_bits  # 1.0


def total_order_key(word: int) -> int:
    """An unsigned integer that ascends with the value of ``word``; -0 is below +0."""
    return (FP16.sign_bit | word) if word < FP16.sign_bit else 2 * FP16.sign_bit - 1 - word


@dataclasses.dataclass(frozen=True)
class Bound:
    """One side's outliers: key beyond ``key``, or with ``tie`` equal to it and in place.

    position : of the last outlier with this key: the highest one of the largest words, the lowest
        one of the smallest words
    """

    key: int
    position: int = 0
    tie: bool = False


def outlier_bound(pops: Sequence[tuple[int, int]]) -> Bound | None:
    """The bound that the (position, word) of the last of a tree's pops gives; None: no pops."""
    if not pops:
        return None
    position, word = pops[-1]
    return Bound(total_order_key(word), position, tie=True)


def compare_row(
    words: Sequence[int], first: int, length: int, largest: Bound | None, smallest: Bound | None
) -> tuple[list[bool], bool]:
    """(mask of the outliers, whether an element is NaN or infinite) of one row.

    first : position of ``words[0]``; elements from ``length`` on are neither
    largest, smallest : None: that side has no outliers
    """
    mask, nonfinite = [], False
    for position, word in enumerate(words, first):
        key, beyond = total_order_key(word), False
        if largest is not None:
            tied = largest.tie and key == largest.key and position <= largest.position
            beyond |= key > largest.key or tied
        if smallest is not None:
            tied = smallest.tie and key == smallest.key and position >= smallest.position
            beyond |= key < smallest.key or tied
        is_nan = word & _MAGNITUDE > FP16.infinity
        mask.append(position < length and beyond and not is_nan)
        nonfinite |= position < length and word & _MAGNITUDE >= FP16.infinity
    return mask, nonfinite


@dataclasses.dataclass(frozen=True)
class Split:
    """``stored``: (position, word) of the outliers; ``all``: their words; then count and status."""

    stored: list[tuple[int, int]]
    all: list[int]
    count: int
    status: CommandStatus


def split_rows(
    rows: Sequence[Sequence[int]],
    beyond: Sequence[Sequence[bool]],
    outliers_max: int,
    *,
    nonfinite: bool = False,
    codebook: bool = False,
) -> Split:
    """The words of one token that ``beyond`` marks, in ascending position.

    At most ``outliers_max`` are stored. A codebook stores none: its words are ``all``, and RANGE
    is the status of a word beyond -1..1.
    """
    words = [
        word
        for row, mask in zip(rows, beyond, strict=True)
        for word, marked in zip(row, mask, strict=True)
        if marked
    ]
    if codebook:
        wrong = any(word & _MAGNITUDE > _LARGEST_CODEBOOK_WORD for word in words)
        return Split([], words, 0, CommandStatus.RANGE if wrong else CommandStatus(0))
    status = CommandStatus.NONFINITE if nonfinite else CommandStatus(0)
    if len(words) > outliers_max:
        status |= CommandStatus.CAPACITY
    count = min(len(words), outliers_max)
    return Split(list(enumerate(words[:count])), words, count, status)


def entry_row(values: Sequence[int], live: int, outlier: int) -> list[int]:
    """Entries of a row: 0 outside of the mask ``live``, and where ``outlier`` marks an element."""
    kept = live & ~outlier
    return [value if kept >> e & 1 else 0 for e, value in enumerate(values)]


def first_pass(length: int) -> list[tuple[int, bool]]:
    """(mask of the live elements, whether it is the last) of each row of a token."""
    lives = [min(length - first, ROW_ELEMENTS) for first in range(0, length, ROW_ELEMENTS)]
    return [((1 << live) - 1, n == len(lives) - 1) for n, live in enumerate(lives)]


def token_maximum(words: Sequence[int]) -> tuple[int, CommandStatus]:
    """(largest magnitude, faults) of the elements of one integer token."""
    status = CommandStatus(0)
    if any(word & _MAGNITUDE >= FP16.infinity for word in words):
        status |= CommandStatus.NONFINITE
    if any(word > FP16.sign_bit for word in words):
        status |= CommandStatus.NEGATIVE
    return max(word & _MAGNITUDE for word in words), status


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finish:
    """The facts of a token that are known when its second pass begins; ``rows``: it has one."""

    touches: bool
    rows: bool
    status: CommandStatus
    s: int = 0
    norm: bool = False


def schedule(
    *,
    kmeans: bool,
    touches: bool,
    dead: CommandStatus | None,
    found: CommandStatus,
    codebook_ok: bool,
) -> Finish:
    """Status of a token before its second pass, and whether it has one.

    dead : the status of a token that is not read; None: it is read
    found : faults of the first pass
    """
    if kmeans and touches and not codebook_ok:
        return Finish(touches=False, rows=False, status=CommandStatus.CODEBOOK_MISSING)
    status = found if dead is None else dead
    return Finish(touches=touches, rows=dead is None and not status, status=status)


def descriptors(
    finish: Sequence[Finish],
    marks: Sequence[tuple[int, CommandStatus]],
    norms: Sequence[tuple[int, int]],
    ends: Sequence[bool],
) -> tuple[list[dict[str, int] | None], list[CommandStatus]]:
    """(descriptor of each token, status of each command).

    marks : count and status of each token with a second pass; norms : mean and rms_reciprocal of
    each token with statistics; ends : the token is the last of its command. A token that touches no
    slot has None. The fields of one that is not valid have no meaning.
    """
    left, sums = iter(marks), iter(norms)
    words: list[dict[str, int] | None] = []
    statuses, total = [], CommandStatus(0)
    for token, end in zip(finish, ends, strict=True):
        count, status = next(left) if token.rows else (0, CommandStatus(0))
        mean, rms_reciprocal = next(sums) if token.norm else (0, _ONE)
        status |= token.status
        total |= status
        words.append(
            {
                "valid": int(not status), "outliers": count, "scale": token.s, "mean": mean,
                "rms_reciprocal": rms_reciprocal,
            }
            if token.touches
            else None
        )  # fmt: skip
        if end:
            statuses.append(total)
            total = CommandStatus(0)
    return words, statuses


def walk_tokens(
    *, src: int, stride: int, tokens: int, rows: int, slot: int
) -> list[tuple[int, int, list[int]]]:
    """(first row, slot, rows of the first pass) of each token of a command."""
    walked = []
    for token in range(tokens):
        first = src + token * stride & 0xFFFF
        walked.append((first, slot + token & 0xFF, [first + row & 0xFFFF for row in range(rows)]))
    return walked
