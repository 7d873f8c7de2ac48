"""Oaken's quantization of a KV vector, bit-true: groups, group shift, scales, codes, records.

Words are FP16 bit patterns in int64 tensors, in Threshold and ScaleWord order; any device. Every
finite FP16 value, shifted value, range and step is a multiple of 2**-24 below 2**18. So all of it
is integer arithmetic on that grid. docs/oaken.md has the formulas.

Rounding points, all to nearest with ties to even:

- the shifted value y;
- the range of a group (11 significant bits, upper exponent unbounded);
- the step;
- the code;
- the FP32 base of the middle group's sides;
- the decoded word.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from golden.config import ConfigError
from golden.fp16.format import FP16, FP32
from golden.fp16.ops import from_fixed
from golden.oaken.format import (
    MAX_FINITE,
    SCALE_BYTES,
    Group,
    ScaleWord,
    Threshold,
    entry_fields,
)

MIDDLE_TOP = 15  # largest code of the middle group
_SIGN = FP16.sign_bit
_MAGNITUDE = FP16.sign_bit - 1


class ThresholdsError(ConfigError):
    """Four words that are not finite or not in order."""


class RecordError(ValueError):
    """Bytes that no encoder wrote; the message names their fault."""


@dataclasses.dataclass(frozen=True)
class Encoded:
    """T vectors of D elements: int64 tensors.

    scale: (T, 6) FP16 words in ScaleWord order; code: (T, D) four dense bits; group: (T, D)
    Group; fifth: (T, D) 0 or 1; nonfinite: (T,) bool, vectors that are refused: all 0 there.
    """

    scale: Tensor
    code: Tensor
    group: Tensor
    fifth: Tensor
    nonfinite: Tensor | None = None

    @property
    def outlier(self) -> Tensor:
        """(T, D) bool: elements with an entry in the sparse record."""
        return self.group != Group.MIDDLE

    @property
    def sparse_fraction(self) -> float:
        """f: outliers per element."""
        return float(self.outlier.double().mean())


# ---- integers on the grid 2**-24


def _words(words: Any, like: Tensor | None = None) -> Tensor:
    device = None if like is None else like.device
    return torch.as_tensor(words, device=device).to(torch.int64) & 0xFFFF


def _fixed(words: Tensor) -> Tensor:
    """Value on the grid; below 2**40 for finite words. NaN and infinity give some integer."""
    biased = (words >> FP16.frac_bits) & FP16.exp_max
    fraction = words & ((1 << FP16.frac_bits) - 1)
    normal = (fraction | (1 << FP16.frac_bits)) << (biased - 1).clamp(min=0)
    magnitude = torch.where(biased == 0, fraction, normal)
    return torch.where(words >= _SIGN, -magnitude, magnitude)


def _drop(magnitude: Tensor, precision: int) -> Tensor:
    """Bits beyond ``precision`` significant ones; magnitude below 2**53."""
    return (torch.frexp(magnitude.double()).exponent.long() - precision).clamp(min=0)


def _kept(magnitude: Tensor, drop: Tensor) -> Tensor:
    """rne(magnitude / 2**drop)."""
    kept = magnitude >> drop
    rest = 2 * (magnitude - (kept << drop))
    one = torch.ones_like(drop) << drop
    return kept + ((rest > one) | ((rest == one) & (kept & 1 == 1))).long()


def _round(value: Tensor, precision: int) -> Tensor:
    """Rounds to ``precision`` significant bits, never finer than the grid; no largest exponent."""
    magnitude = value.abs()
    drop = _drop(magnitude, precision)
    rounded = _kept(magnitude, drop) << drop
    return torch.where(value < 0, -rounded, rounded)


def _rne16(value: Tensor) -> Tensor:
    """FP16 words of grid values; zero gives +0, overflow infinity."""
    magnitude = value.abs()
    drop = _drop(magnitude, FP16.precision)
    # Each binade has 2**10 words; a carry out of the 11 bits goes to the next by itself.
    word = ((drop << FP16.frac_bits) + _kept(magnitude, drop)).clamp(max=FP16.infinity)
    return torch.where(value < 0, word | _SIGN, word)


def _ratio(d: Tensor, step: Tensor) -> Tensor:
    """rne(d / step) of d >= 0, ties to even; 0 where step <= 0."""
    safe = step.clamp(min=1)
    floor = torch.div(d, safe, rounding_mode="floor")
    rest = 2 * (d - floor * safe)
    up = (rest > safe) | ((rest == safe) & (floor & 1 == 1))
    return torch.where(step > 0, floor + up.long(), 0)


def _step(value_range: Tensor, n: int) -> Tensor:
    """Word of max(rne16(range / n), 2**-24), 0 for a range of 0."""
    wide = value_range << 20
    quotient = torch.div(wide, n, rounding_mode="floor")
    jammed = quotient | (wide != quotient * n).long()
    word = from_fixed(jammed, FP16.grid_exponent - 20, FP16)
    return torch.where(value_range > 0, word.clamp(min=1), 0)


# ---- thresholds


def thresholds_valid(thresholds: Any) -> Tensor:
    """bool (...) of words (..., 4): finite, OUTER_LOW < INNER_LOW <= 0 <= INNER_HIGH < OUTER_HIGH.

    -0 equals +0. Two groups: OUTER -65504 and 65504 (no outer), INNER 0 and 0 (zeros only).
    """
    words = _words(thresholds)
    t = _fixed(words)
    finite = ((words & _MAGNITUDE) < FP16.infinity).all(-1)
    outer_low, inner_low, inner_high, outer_high = (t[..., each] for each in Threshold)
    ordered = (outer_low < inner_low) & (inner_high < outer_high)
    return finite & ordered & (inner_low <= 0) & (inner_high >= 0)


def check_thresholds(thresholds: Any) -> Tensor:
    """The words as an int64 tensor (..., 4); ThresholdsError if not all are valid."""
    words = _words(thresholds)
    if words.ndim == 0 or words.shape[-1] != len(Threshold):
        raise ThresholdsError(f"{len(Threshold)} threshold words needed, not {words.shape}")
    valid = thresholds_valid(words)
    if not bool(valid.all()):
        bad = words.reshape(-1, len(Threshold))[~valid.reshape(-1)][0].tolist()
        shown = " ".join(f"{word:04x}" for word in bad)
        raise ThresholdsError(
            f"thresholds must be finite and OUTER_LOW < INNER_LOW <= 0 <= INNER_HIGH < OUTER_HIGH, "
            f"not {shown}"
        )
    return words


# ---- encoding


def decompose(x: Any, thresholds: Any) -> tuple[Tensor, Tensor, Tensor]:
    """(y, group, nonfinite): group shift of (..., D) words by thresholds (4,) or (..., 4).

    Group by Eq. 1, -0 as +0. For the outer and the middle group y = rne16(x - T), T the outer resp.
    inner threshold of x's side. It is never 0, and has the sign of x. For the inner group y = x, -0
    kept. nonfinite: bool (...), some element is NaN or infinite; y is 0 and the group MIDDLE at
    that element, which means nothing. ThresholdsError.
    """
    x = _words(x)
    t = _fixed(check_thresholds(thresholds).to(x.device)).unsqueeze(-2)
    outer_low, inner_low, inner_high, outer_high = (t[..., each] for each in Threshold)
    special = (x & _MAGNITUDE) >= FP16.infinity
    x = torch.where(special, 0, x)
    value = _fixed(x)
    outer = (value < outer_low) | (value > outer_high)
    inner = (value >= inner_low) & (value <= inner_high)
    shift = torch.where(
        value > 0,
        torch.where(outer, outer_high, inner_high),
        torch.where(outer, outer_low, inner_low),
    )
    y = torch.where(inner, x, _rne16(value - shift))
    group = torch.where(outer, int(Group.OUTER), torch.where(inner, int(Group.INNER), 0))
    y, group = (torch.where(special, 0, each) for each in (y, group))
    return y, group, special.any(-1)


def _extremes(y: Tensor, group: Tensor, which: Group) -> tuple[Tensor, Tensor]:
    """(hi, lo) of a group on the grid, over the last axis: both >= 0, 0 where there is none."""
    of_group = torch.where(group == which, _fixed(y), 0)
    return of_group.amax(-1).clamp(min=0), (-of_group).amax(-1).clamp(min=0)


def _outlier_tops(outlier_bits: int) -> tuple[int, int]:
    """Largest (inner code, outer magnitude)."""
    if outlier_bits not in (4, 5):
        raise ConfigError(f"outlier_bits must be 4 or 5, not {outlier_bits!r}")
    return (1 << outlier_bits) - 1, (1 << (outlier_bits - 1)) - 1


def scales(y: Any, group: Any, outlier_bits: int = 5) -> Tensor:
    """(..., 6) FP16 scale words of (..., D) shifted words and groups.

    hi = largest y > 0 and lo = largest -y > 0 of a group, else 0. A step is 0 if its range is 0,
    else max(rne16(range / n), 2**-24).

        middle  range = rne11(hi + lo), n = 16, MIN = -rne16((z0 - 1/2) * STEP)
                with z0 = min(max(rne(lo / STEP), 1), 15), +0 if that rounds to 0
        inner   range = rne11(hi + lo), n = 31, MIN = -lo
        outer   ranges hi and lo, n = 15

    4-bit outliers are for comparison only: no record holds them. They have n = 15 and 7 in place of
    31 and 15.
    """
    y, group = _words(y), torch.as_tensor(group)
    inner_top, outer_top = _outlier_tops(outlier_bits)
    words: dict[ScaleWord, Tensor] = {}
    hi, lo = _extremes(y, group, Group.MIDDLE)
    words[ScaleWord.MIDDLE_STEP] = _step(_round(hi + lo, FP16.precision), MIDDLE_TOP + 1)
    step = _fixed(words[ScaleWord.MIDDLE_STEP])
    z0 = _ratio(lo, step).clamp(1, MIDDLE_TOP)
    # Half a step below a multiple, so that both sides' codes begin half a step from zero.
    minimum = from_fixed((2 * z0 - 1) * step, FP16.grid_exponent - 1, FP16)
    words[ScaleWord.MIDDLE_MIN] = torch.where(minimum > 0, minimum | _SIGN, 0)
    hi, lo = _extremes(y, group, Group.INNER)
    words[ScaleWord.INNER_MIN] = _rne16(-lo)  # exact
    words[ScaleWord.INNER_STEP] = _step(_round(hi + lo, FP16.precision), inner_top)
    hi, lo = _extremes(y, group, Group.OUTER)
    words[ScaleWord.OUTER_HIGH_STEP] = _step(hi, outer_top)
    words[ScaleWord.OUTER_LOW_STEP] = _step(lo, outer_top)
    return torch.stack([words[each] for each in ScaleWord], dim=-1)


def zero_point(scale: Any) -> Tensor:
    """zc: int64 (...) of scale words (..., 6): first code of the middle group's upper side, 1..15.

    min(floor(-MIDDLE_MIN / MIDDLE_STEP) + 1, 15), and 1 where the step is 0: from stored words
    alone.
    """
    s = _fixed(_words(scale))
    step = s[..., ScaleWord.MIDDLE_STEP]
    lo = (-s[..., ScaleWord.MIDDLE_MIN]).clamp(min=0)
    floor = torch.div(lo, step.clamp(min=1), rounding_mode="floor")
    return torch.where(step > 0, floor + 1, 1).clamp(1, MIDDLE_TOP)


def codes(y: Any, group: Any, scale: Any, outlier_bits: int = 5) -> tuple[Tensor, Tensor]:
    """(code, fifth), int64 (..., D): four dense bits and the bit of the sparse entry.

    Middle: q = rne(rne11(y - MIN) / step), 0..15; upper side max(q, zc), lower min(q, zc - 1).
    Inner: q = rne(rne11(y - MIN) / step), at most 31: code q & 15, fifth q >> 4. Outer: code =
    rne(|y| / step of the side), at most 15; fifth = 1 on the lower side. Step 0: q = 0.
    ``outlier_bits`` as in ``scales``.
    """
    inner_top, outer_top = _outlier_tops(outlier_bits)
    y, group = _words(y), torch.as_tensor(group)
    s = _fixed(_words(scale, like=y)).unsqueeze(-2)
    zc = zero_point(_words(scale, like=y)).unsqueeze(-1)
    value = _fixed(y)
    middle, inner, outer = (group == each for each in Group)
    upper = value > 0

    def word(which: ScaleWord) -> Tensor:
        return s[..., which]

    minimum = torch.where(middle, word(ScaleWord.MIDDLE_MIN), word(ScaleWord.INNER_MIN))
    distance = torch.where(outer, value.abs(), _round(value - minimum, FP16.precision))
    outer_step = torch.where(upper, word(ScaleWord.OUTER_HIGH_STEP), word(ScaleWord.OUTER_LOW_STEP))
    inlier_step = torch.where(middle, word(ScaleWord.MIDDLE_STEP), word(ScaleWord.INNER_STEP))
    q = _ratio(distance.clamp(min=0), torch.where(outer, outer_step, inlier_step))
    top = torch.where(inner, inner_top, torch.where(outer, outer_top, MIDDLE_TOP))
    q = torch.minimum(q, top)
    sided = torch.where(upper, torch.maximum(q, zc), torch.minimum(q, zc - 1))
    q = torch.where(middle, sided, q)
    fifth = torch.where(outer, (~upper).long(), torch.where(inner, q >> 4, 0))
    return q & 15, fifth


def encode(x: Any, thresholds: Any, block: int = 64) -> Encoded:
    """(T, D) FP16 words to scales, codes, groups and fifth bits; thresholds (4,) or (T, 4).

    ThresholdsError; ConfigError: D is not a multiple of ``block``.
    """
    x = _words(x)
    if x.ndim != 2 or x.shape[1] == 0 or x.shape[1] % block:
        raise ConfigError(f"x must be (T, D) with D a multiple of {block}, not {tuple(x.shape)}")
    y, group, nonfinite = decompose(x, thresholds)
    keep = ~nonfinite[:, None]
    scale = scales(y, group)
    code, fifth = codes(y, group, scale)
    scale, code, group, fifth = (torch.where(keep, each, 0) for each in (scale, code, group, fifth))
    return Encoded(scale=scale, code=code, group=group, fifth=fifth, nonfinite=nonfinite)


# ---- decoding


def _middle_bases(scale: Tensor, thresholds: Tensor) -> tuple[Tensor, Tensor]:
    """(lower, upper) base of the middle group on the grid, rounded as FP32 is."""
    t, minimum = _fixed(thresholds), _fixed(scale)[..., ScaleWord.MIDDLE_MIN]
    lower, upper = (
        _round(t[..., each] + minimum, FP32.precision)
        for each in (Threshold.INNER_LOW, Threshold.INNER_HIGH)
    )
    return lower, upper


def middle_bases(scale: Any, thresholds: Any) -> tuple[Tensor, Tensor]:
    """FP32 words (lower, upper): rne32(INNER_LOW + MIDDLE_MIN), rne32(INNER_HIGH + MIDDLE_MIN)."""
    scale = _words(scale)
    lower, upper = _middle_bases(scale, _words(thresholds, like=scale))
    return tuple(  # type: ignore[return-value]
        from_fixed(each, FP16.grid_exponent, FP32) for each in (lower, upper)
    )


def decode(encoded: Encoded, thresholds: Any) -> Tensor:
    """x': (T, D) FP16 words = sat(rne16(base + q * step)), one rounding of the exact sum.

    base: ``middle_bases`` by q >= zc, INNER_MIN, or the outer threshold of the side (the lower one
    less m * step). Overflow saturates to 65504 with its sign; -0 never appears. Unspecified, but
    some word, for scale words that no encoder writes. ThresholdsError.
    """
    code, group, fifth = encoded.code, encoded.group, encoded.fifth
    scale = _words(encoded.scale, like=code)
    thresholds = check_thresholds(thresholds).to(code.device)
    t = _fixed(thresholds).unsqueeze(-2)
    s = _fixed(scale).unsqueeze(-2)
    low, high = (each.unsqueeze(-1) for each in _middle_bases(scale, thresholds))
    inner, outer, lower = group == Group.INNER, group == Group.OUTER, fifth == 1
    base = torch.where(code >= zero_point(scale).unsqueeze(-1), high, low)
    step = s[..., ScaleWord.MIDDLE_STEP]
    q = torch.where(inner, code | fifth << 4, code)
    base = torch.where(inner, s[..., ScaleWord.INNER_MIN], base)
    step = torch.where(inner, s[..., ScaleWord.INNER_STEP], step)
    side = torch.where(lower, t[..., Threshold.OUTER_LOW], t[..., Threshold.OUTER_HIGH])
    side_step = torch.where(
        lower, -s[..., ScaleWord.OUTER_LOW_STEP], s[..., ScaleWord.OUTER_HIGH_STEP]
    )
    total = torch.where(outer, side, base) + q * torch.where(outer, side_step, step)
    word = _rne16(total)
    return torch.where((word & _MAGNITUDE) > MAX_FINITE, (word & _SIGN) | MAX_FINITE, word)


# ---- records


def dense_bytes(code: Any) -> Tensor:
    """(..., D / 2) bytes of (..., D) codes: element 2i in the low four bits of byte i."""
    code = torch.as_tensor(code)
    return code[..., 0::2] | code[..., 1::2] << 4


def _blocks(head_dim: int, block: int) -> int:
    if head_dim < 1 or block < 1 or head_dim % block:
        raise ConfigError(f"head_dim must be a multiple of block = {block}, not {head_dim}")
    return head_dim // block


def sparse_records(encoded: Encoded, head_dim: int, block: int = 64) -> list[list[bytes]]:
    """[token][head] sparse records: per block a count byte, then its entries by ascending index."""
    _blocks(head_dim, block)
    tokens, elements = encoded.code.shape
    if elements % head_dim:
        raise ConfigError(f"D must be a multiple of head_dim = {head_dim}, not {elements}")
    index = torch.arange(elements, device=encoded.code.device) % block
    group = (encoded.group == Group.OUTER).long()
    byte = (index | group << 6 | encoded.fifth << 7).cpu().to(torch.uint8).numpy()
    outlier = encoded.outlier.cpu().numpy()
    records = []
    for row, kept in zip(byte, outlier, strict=True):
        heads = []
        for head in range(0, elements, head_dim):
            record = bytearray()
            for start in range(head, head + head_dim, block):
                entries = row[start : start + block][kept[start : start + block]].tobytes()
                record += bytes([len(entries)]) + entries
            heads.append(bytes(record))
        records.append(heads)
    assert len(records) == tokens
    return records


def pack_token(encoded: Encoded, token: int, head_dim: int, block: int = 64) -> list[bytes]:
    """The records of one token in slot order: dense and sparse of each head, then the scales."""
    one = Encoded(
        scale=encoded.scale[token : token + 1],
        code=encoded.code[token : token + 1],
        group=encoded.group[token : token + 1],
        fifth=encoded.fifth[token : token + 1],
    )
    dense = bytes(dense_bytes(one.code[0]).tolist())
    half = head_dim // 2
    records = []
    for head, sparse in enumerate(sparse_records(one, head_dim, block)[0]):
        records += [dense[head * half : (head + 1) * half], sparse]
    records.append(b"".join(word.to_bytes(2, "little") for word in one.scale[0].tolist()))
    return records


def pack_groups(encoded: Encoded, token: int, groups: int, block: int = 64) -> list[bytes]:
    """The records of one token in ``Order.TOKEN``, one for each of ``groups`` groups of heads."""
    elements = encoded.code.shape[1]
    _blocks(elements, groups * block)
    # A block is packed as a head of its own.
    *blocks, scale = pack_token(encoded, token, block, block)
    size = len(blocks) // groups
    return [scale + b"".join(blocks[n : n + size]) for n in range(0, len(blocks), size)]


def scales_valid(scale: Any) -> Tensor:
    """bool (...) of words (..., 6): could an encoder have written them, by their signs?

    All finite; steps not negative, MIDDLE_MIN and INNER_MIN not positive; a zero is +0.
    """
    words = _words(scale)
    size, sign = words & _MAGNITUDE, words >= _SIGN
    minima = (ScaleWord.MIDDLE_MIN, ScaleWord.INNER_MIN)
    is_minimum = torch.tensor([each in minima for each in ScaleWord], device=words.device)
    return ((size < FP16.infinity) & (sign == (is_minimum & (size != 0)))).all(-1)


def unpack_scale(record: bytes) -> list[int]:
    """Six FP16 words; RecordError: wrong length, or words that no encoder writes."""
    if len(record) != SCALE_BYTES:
        raise RecordError(f"a scale record has {SCALE_BYTES} bytes, not {len(record)}")
    words = [int.from_bytes(record[i : i + 2], "little") for i in range(0, SCALE_BYTES, 2)]
    if not bool(scales_valid(words)):
        shown = " ".join(f"{word:04x}" for word in words)
        raise RecordError(f"scale words must be finite, steps >= +0 and minima <= 0, not {shown}")
    return words


def unpack_dense(record: bytes, head_dim: int) -> list[int]:
    """Four-bit codes of one head; RecordError: wrong length."""
    if len(record) != head_dim // 2:
        raise RecordError(f"a dense record has {head_dim // 2} bytes, not {len(record)}")
    return [code for byte in record for code in (byte & 15, byte >> 4)]


def _sparse_block(data: bytes, start: int, block: int) -> tuple[list[tuple[int, int, int]], int]:
    """Entry fields of the block at ``start`` and where the next begins; RecordError."""
    if start >= len(data):
        raise RecordError(f"sparse data end at byte {start}, where a count byte is due")
    count = data[start]
    if count > block:
        raise RecordError(f"count {count} at byte {start} is above {block}")
    end = start + 1 + count
    if end > len(data):
        raise RecordError(f"sparse data end at byte {len(data)}, {end} are needed")
    fields = [entry_fields(byte) for byte in data[start + 1 : end]]
    previous = -1
    for offset, (index, _, _) in enumerate(fields):
        if index >= block:
            raise RecordError(f"index {index} at byte {start + 1 + offset} is not below {block}")
        if index <= previous:
            raise RecordError(f"index {index} at byte {start + 1 + offset} does not ascend")
        previous = index
    return fields, end


def unpack_sparse(record: bytes, head_dim: int, block: int = 64) -> tuple[list[int], list[int]]:
    """(group, fifth) of every element of one head; RecordError: not exactly one sound record."""
    group, fifth = [int(Group.MIDDLE)] * head_dim, [0] * head_dim
    position = 0
    for each in range(_blocks(head_dim, block)):
        fields, position = _sparse_block(record, position, block)
        for index, outer, bit in fields:
            group[each * block + index] = int(Group.OUTER if outer else Group.INNER)
            fifth[each * block + index] = bit
    if position != len(record):
        raise RecordError(f"{len(record) - position} bytes behind a sparse record")
    return group, fifth


def split_sparse(data: bytes, head_dim: int, block: int = 64) -> list[bytes]:
    """A stream of sparse records cut into its records; RecordError."""
    records, start = [], 0
    while start < len(data):
        end = start
        for _ in range(_blocks(head_dim, block)):
            _, end = _sparse_block(data, end, block)
        records.append(data[start:end])
        start = end
    return records


def unpack_token(records: Sequence[bytes], head_dim: int, block: int = 64) -> Encoded:
    """Inverse of ``pack_token``, T = 1; RecordError."""
    if len(records) < 3 or len(records) % 2 == 0:
        raise RecordError(f"2 * heads + 1 records needed, not {len(records)}")
    code: list[int] = []
    group: list[int] = []
    fifth: list[int] = []
    for dense, sparse in zip(records[:-1:2], records[1::2], strict=True):
        code += unpack_dense(dense, head_dim)
        for whole, part in zip((group, fifth), unpack_sparse(sparse, head_dim, block), strict=True):
            whole += part
    return Encoded(
        *(torch.tensor([each]) for each in (unpack_scale(records[-1]), code, group, fifth))
    )


def unpack_groups(records: Sequence[bytes], elements: int, block: int = 64) -> Encoded:
    """Inverse of ``pack_groups``, T = 1; RecordError, also where the groups' scales differ."""
    if not records:
        raise RecordError("1 record or more needed, not 0")
    scale = records[0][:SCALE_BYTES]
    half, parts = block // 2, []
    for record in records:
        if record[:SCALE_BYTES] != scale:
            raise RecordError("the groups of a token have different scales")
        at = SCALE_BYTES
        for _ in range(_blocks(elements, len(records) * block)):
            _, end = _sparse_block(record, at + half, block)
            parts += [record[at : at + half], record[at + half : end]]
            at = end
        if at != len(record):
            raise RecordError(f"{len(record) - at} bytes behind a record")
    return unpack_token([*parts, scale], block, block)


# ---- bits
