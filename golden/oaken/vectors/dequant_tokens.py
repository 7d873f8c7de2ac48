"""Vectors for the dequantization side: tokens, transfers as memory gives them, damage."""

import numpy as np
import torch

from golden.fp16.ops import bits_from_float
from golden.oaken.format import Group, ScaleWord, Threshold
from golden.oaken.quantize import Encoded, encode, thresholds_valid
from golden.words import join

MAGNITUDES = (0, 1, 0x3FF, 0x400, 0x401, 0x3BFF, 0x3C00, 0x3C01, 0x7800, 0x7BFE, 0x7BFF)


def as_bytes(words: list[int], bits: int) -> np.ndarray:
    """Integers of ``bits`` bits as rows of bytes, as golden.words.unpack_ints takes them."""
    size = (bits + 7) // 8
    rows = b"".join(join((word, bits)).to_bytes(size, "little") for word in words)
    return np.frombuffer(rows, np.uint8).reshape(len(words), size)


def cat(parts: list[Encoded]) -> Encoded:
    fields = ("scale", "code", "group", "fifth")
    return Encoded(*(torch.cat([getattr(part, name) for part in parts]) for name in fields))


def check_reach(words: torch.Tensor) -> None:
    """AssertionError: none of ``words`` has the largest magnitude, or none is subnormal."""
    magnitude = words & 0x7FFF
    assert (magnitude == 0x7BFF).any()
    assert ((magnitude > 0) & (magnitude < 0x400)).any()


def _finite(rng, *shape) -> torch.Tensor:
    """Magnitudes of finite FP16 words, all binades alike, corners among them."""
    words = rng.integers(0, 0x7C00, shape)
    corners = rng.choice(MAGNITUDES, shape)
    return torch.from_numpy(np.where(rng.random(shape) < 0.25, corners, words))


def _thresholds(rng, tokens: int) -> torch.Tensor:
    """(tokens, 4) valid thresholds."""
    found = torch.zeros(0, 4, dtype=torch.int64)
    while len(found) < tokens:
        pairs = _finite(rng, 4 * tokens + 16, 2, 2).sort(-1).values
        low, high = pairs[:, 0] | 0x8000, pairs[:, 1]
        words = torch.stack([low[:, 1], low[:, 0], high[:, 0], high[:, 1]], -1)
        found = torch.cat([found, words[thresholds_valid(words)]])
    return found[:tokens]


def encoded_tokens(rng, tokens: int, elements: int, block: int) -> tuple[Encoded, torch.Tensor]:
    """Encoded normal values of many magnitudes, thresholds at or about their quantiles."""
    x = torch.from_numpy(rng.standard_normal((tokens, elements)))
    x = x * 2.0 ** torch.from_numpy(rng.integers(-22, 13, (tokens, 1)))
    x = x * torch.where(torch.from_numpy(rng.random((tokens, elements))) < 0.02, 6.0, 1.0)
    words = bits_from_float(x.clamp(-65504, 65504))
    quantiles = torch.tensor([0.04, 0.47, 0.53, 0.96], dtype=torch.float64)
    cut = torch.quantile(x, quantiles, dim=1).T.clamp(-65000, 65000)
    cut[:, Threshold.INNER_LOW].clamp_(max=0)
    cut[:, Threshold.INNER_HIGH].clamp_(min=0)
    thresholds = bits_from_float(cut)
    other = _thresholds(rng, tokens)
    take = thresholds_valid(thresholds) & torch.from_numpy(rng.random(tokens) < 0.8)
    thresholds = torch.where(take[:, None], thresholds, other)
    return encode(words, thresholds, block), thresholds


def synthetic_tokens(rng, tokens: int, elements: int) -> tuple[Encoded, torch.Tensor]:
    """Any codes and groups with any finite scale words; the quotient that gives zc often whole."""
    scale = _finite(rng, tokens, len(ScaleWord))
    # lo = k * step / 2 with few significant bits, and one ulp of lo from it.
    half = torch.from_numpy(rng.integers(1, 32, tokens)) * 2
    exponent = torch.from_numpy(rng.integers(0, 12, tokens))
    lo = torch.from_numpy(rng.integers(0, 36, tokens)) * (half // 2)
    near = torch.from_numpy(rng.random(tokens) < 0.6)
    step_word = bits_from_float(half.double() * 2.0 ** (exponent - 24))
    lo_word = bits_from_float(lo.double() * 2.0 ** (exponent - 24))
    lo_word = (lo_word + torch.from_numpy(rng.integers(-1, 2, tokens))).clamp(min=0)
    scale[:, ScaleWord.MIDDLE_STEP] = torch.where(near, step_word, scale[:, ScaleWord.MIDDLE_STEP])
    scale[:, ScaleWord.MIDDLE_MIN] = torch.where(near, lo_word, scale[:, ScaleWord.MIDDLE_MIN])
    for minimum in (ScaleWord.MIDDLE_MIN, ScaleWord.INNER_MIN):
        negative = (scale[:, minimum] != 0) & torch.from_numpy(rng.random(tokens) < 0.95)
        scale[:, minimum] |= negative.long() << 15
    density = torch.from_numpy(rng.choice([0.0, 0.1, 0.5, 1.0], (tokens, 1)))
    is_outlier = torch.from_numpy(rng.random((tokens, elements))) < density
    kinds = torch.from_numpy(rng.choice([Group.INNER, Group.OUTER], (tokens, elements)))
    group = torch.where(is_outlier, kinds, int(Group.MIDDLE))
    code = torch.from_numpy(rng.integers(0, 16, (tokens, elements)))
    fifth = torch.from_numpy(rng.integers(0, 2, (tokens, elements))) * is_outlier
    return Encoded(scale, code, group, fifth), _thresholds(rng, tokens)


def some_tokens(rng, tokens: int, elements: int, block: int) -> tuple[Encoded, torch.Tensor]:
    """Half encoded, half synthetic."""
    parts = [
        encoded_tokens(rng, (tokens + 1) // 2, elements, block),
        synthetic_tokens(rng, tokens // 2 + 1, elements),
    ]
    both, thresholds = cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
    order = torch.from_numpy(rng.permutation(len(thresholds)))[:tokens]
    fields = ("scale", "code", "group", "fifth")
    return Encoded(*(getattr(both, name)[order] for name in fields)), thresholds[order]


def transfer(
    rng, data: bytes, word_bytes: int, *, first: int | None = None, error_at: int | None = None
) -> tuple[list[int], list[bool]]:
    """Words of word_layout that carry ``data``, junk around it, and the error of each byte.

    first: place of the first byte in its word, any if None; error_at: byte from whose word on the
    error field is set.
    """
    first = int(rng.integers(0, word_bytes)) if first is None else first
    size = first + len(data)
    count = max(-(-size // word_bytes), 1)
    row = bytearray(rng.integers(0, 256, count * word_bytes).astype(np.uint8).tobytes())
    row[first:size] = data
    bad_word = count if error_at is None else (first + error_at) // word_bytes
    words = []
    for k in range(count):
        begin = first if k == 0 else 0
        end = size - k * word_bytes if k == count - 1 else word_bytes
        words.append(
            join(
                (int.from_bytes(row[k * word_bytes : (k + 1) * word_bytes], "little"),
                 8 * word_bytes),
                (begin, (word_bytes - 1).bit_length()),
                (end, word_bytes.bit_length()),
                (2 + k % 2 if k >= bad_word else 0, 2),
                (k == count - 1, 1),
            )
        )  # fmt: skip
    return words, [(first + n) // word_bytes >= bad_word for n in range(len(data))]


def damaged(rng, data: bytes, block: int) -> bytes:
    """Sparse records with one fault, or none that is seen."""
    made = bytearray(data)
    place = int(rng.integers(0, len(made)))
    match int(rng.integers(0, 6)):
        case 0:  # too short
            return bytes(made[:place])
        case 1:  # any byte is any other: count, index
            made[place] = int(rng.integers(0, 256))
        case 2:  # a count too large: the first byte is one
            made[0] = int(rng.integers(block + 1, 256))
        case 3:  # a byte less
            del made[place]
        case 4:  # a byte more
            made.insert(place, int(rng.integers(0, 256)))
        case 5:  # two bytes exchanged
            other = int(rng.integers(0, len(made)))
            made[place], made[other] = made[other], made[place]
    return bytes(made)
