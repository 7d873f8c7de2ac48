"""The words of the dequantization side's blocks, beat by beat. Numbers: golden.oaken.quantize."""

import dataclasses
import typing
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from golden.oaken.format import SCALE_BYTES, Group, ScaleWord, Threshold, entry_fields
from golden.oaken.quantize import Encoded, decode, middle_bases, scales_valid, zero_point
from golden.paging.format import Status


def inliers(encoded: Encoded, thresholds: Any) -> Tensor:
    """(T, D) FP16 words of the middle group, +0 elsewhere."""
    return torch.where(encoded.group == Group.MIDDLE, decode(encoded, thresholds), 0)


def outliers(encoded: Encoded, thresholds: Any) -> Tensor:
    """(T, D) FP16 words of the inner and outer groups, +0 elsewhere."""
    return torch.where(encoded.group == Group.MIDDLE, 0, decode(encoded, thresholds))


class SparseWord(typing.NamedTuple):
    """A word of a transfer: the bytes ``first .. end - 1`` of ``data`` count."""

    data: bytes
    first: int
    end: int
    error: int  # 0, 2 (SLVERR) or 3 (DECERR)
    last: bool  # of the transfer


class Chunk(typing.NamedTuple):
    """Some bytes of a word. last: of the transfer. error: the word had one."""

    data: bytes
    last: bool
    error: bool


def sparse_chunks(words: Sequence[SparseWord], chunk_bytes: int) -> list[Chunk]:
    """The bytes of each word, cut at the multiples of ``chunk_bytes``.

    A word without bytes gives one chunk without bytes.
    """
    chunks = []
    for word in words:
        pieces = range(word.first // chunk_bytes, -(-word.end // chunk_bytes))
        bounds = [(n * chunk_bytes, (n + 1) * chunk_bytes) for n in pieces]
        cut = [word.data[max(low, word.first) : min(high, word.end)] for low, high in bounds]
        cut = cut or [b""]
        for n, data in enumerate(cut):
            chunks.append(Chunk(data, word.last and n == len(cut) - 1, word.error != 0))
    return chunks


def token_parameters(scale: Any, thresholds: Any) -> list[dict[str, int]]:
    """Returns what the dequantizers need per token, from scale words (T, 6) and four thresholds.

    base_low, base_high: FP32 words; zero_code: 1..15; the words that pass as they are, by the
    names of the block's ports; bad: no encoder writes such scale words.
    """
    scale, thresholds = torch.as_tensor(scale), torch.as_tensor(thresholds)
    low, high = middle_bases(scale, thresholds)
    found = []
    for n, words in enumerate(scale.tolist()):
        found.append(
            {
                "base_low": int(low[n]),
                "base_high": int(high[n]),
                "zero_code": int(zero_point(scale[n])),
                "outer_low": int(thresholds[Threshold.OUTER_LOW]),
                "outer_high": int(thresholds[Threshold.OUTER_HIGH]),
                "middle_step": words[ScaleWord.MIDDLE_STEP],
                "outer_low_step": words[ScaleWord.OUTER_LOW_STEP],
                "outer_high_step": words[ScaleWord.OUTER_HIGH_STEP],
                "inner_min": words[ScaleWord.INNER_MIN],
                "inner_step": words[ScaleWord.INNER_STEP],
                "bad": int(not scales_valid(scale[n])),
            }
        )
    return found


@dataclasses.dataclass(frozen=True)
class Beat:
    """``lanes`` consecutive positions of a record."""

    outlier: tuple[tuple[int, int, int], ...]  # (present, group, fifth) per position
    bad: bool  # no sparse records, here or before, within the request
    error: bool  # bad, or some byte read so far, skipped ones too, came with an error
    last: bool  # of the token


class _Fault(Exception):
    """The bytes are no sparse record."""


def _count(data: Sequence[int], position: int, block: int) -> int:
    if position >= len(data) or data[position] > block:
        raise _Fault
    return data[position]


def insert_zeros(
    data: Sequence[int],
    errors: Sequence[bool],
    *,
    tokens: int,
    skip: int,
    blocks: int,
    block: int,
    lanes: int,
) -> list[Beat]:
    """Beats of the records ``skip .. skip + tokens - 1`` of ``blocks`` blocks each in ``data``.

    errors: for each byte, whether it came with an error.

    The first beat that decides a fault carries it:

        fault                                                beat
        a count above ``block``, a missing count byte        first of the block
        two entries of one beat out of order                 that beat
        an entry of the beat missing, or of an earlier beat  that beat
        entries left over                                    last of the block

    From there on no beat has outliers, and no byte is read. Of skipped records only the counts
    are read. Bytes after the last record are ignored.
    """
    position, bad, error, beats = 0, False, False, []
    try:
        for _ in range(skip * blocks):
            count = _count(data, position, block)
            error = error or any(errors[position : position + 1 + count])
            if position + 1 + count > len(data):
                raise _Fault
            position += 1 + count
    except _Fault:
        bad = True
    for token_block in range(tokens * blocks):
        left = 0
        for start in range(0, block, lanes):
            row = [(0, 0, 0)] * lanes
            first = position
            if not bad:
                try:
                    if start == 0:
                        left = _count(data, position, block)
                        position += 1
                    previous = -1
                    for _ in range(min(left, lanes)):
                        if position >= len(data):
                            raise _Fault
                        index, group, fifth = entry_fields(data[position])
                        if index // lanes < start // lanes:
                            raise _Fault
                        if index // lanes > start // lanes:
                            break
                        if index <= previous:
                            raise _Fault
                        previous = index
                        row[index - start] = (1, group, fifth)
                        position, left = position + 1, left - 1
                    if start + lanes == block and left:
                        raise _Fault
                    error = error or any(errors[first:position])
                except _Fault:
                    bad, row = True, [(0, 0, 0)] * lanes
            last = (token_block + 1) % blocks == 0 and start + lanes == block
            beats.append(Beat(tuple(row), bad, error or bad, last))
    return beats


@dataclasses.dataclass(frozen=True)
class TokenParts:
    """The streams of a group's records; error: a byte so far came with one."""

    scale: list[tuple[tuple[int, ...], bool]]  # six words and the error, per record
    dense: list[bytes]  # block / 2 bytes per block
    sparse: list[SparseWord]  # one transfer, in words of ``block`` bytes


def split_records(
    data: bytes,
    errors: Sequence[bool],
    *,
    tokens: int,
    skip: int,
    blocks: int,
    block: int,
) -> TokenParts:
    """The records ``skip .. skip + tokens - 1`` in ``Order.TOKEN`` in ``data``, of ``blocks`` each.

    errors: for each byte, whether it came with an error. tokens: 1 or more.

    A block's count byte and entries are one word of the sparse transfer, and a second one where
    they are ``block`` + 1 bytes. A count above ``block``, or missing bytes, end the sparse
    transfer with a word of no bytes. From that block on no byte is read, and scales and codes are
    unspecified: zeros here. In a record that is skipped this happens to the first block given.
    Bytes after the last record are ignored.
    """
    parts, half = TokenParts([], [], []), block // 2
    position, bad, error = 0, False, False
    for record in range(skip + tokens):
        for each in range(blocks):
            first = position if each else position + SCALE_BYTES
            at = first + half  # of the count byte
            count = data[at] if at < len(data) else block + 1
            end = at + 1 + count
            is_fault = not bad and (count > block or end > len(data))
            is_given = record >= skip
            if not bad and not is_fault:
                # The last byte of a full block is read a step later, where it is given.
                step = end - (count == block) if is_given else end
                error = error or any(errors[position:step])
            bad = bad or is_fault
            if (is_fault and is_given) or (bad and record == skip and each == 0):
                parts.sparse.append(SparseWord(bytes(block), 0, 0, 2 * error, True))
            if is_given:
                if each == 0:
                    words = bytes(SCALE_BYTES) if bad else data[position:first]
                    scale = tuple(words[n] | words[n + 1] << 8 for n in range(0, SCALE_BYTES, 2))
                    parts.scale.append((scale, error))
                parts.dense.append(bytes(half) if bad else data[first:at])
            if bad:
                continue
            if is_given:
                is_last = record == skip + tokens - 1 and each == blocks - 1
                for n in range(at, end, block):
                    piece = data[n : min(n + block, end)]
                    error = error or any(errors[n : n + len(piece)])
                    word = SparseWord(
                        piece + bytes(block - len(piece)),
                        0,
                        len(piece),
                        2 * error,
                        is_last and n + block >= end,
                    )
                    parts.sparse.append(word)
            position = end
    return parts


def repeat_scales(
    words: Sequence[tuple], requests: Sequence[tuple[int, int]], depth: int
) -> list[tuple]:
    """Words out of the scale buffer: (scale, error) as in ``words``.

    requests: (tokens, heads). Some words must be repeated but do not fit into ``depth``. They come
    once as they are, and every repetition as (None, error = True), any scale.
    """
    out: list[tuple] = []
    position = 0
    for tokens, heads in requests:
        own = words[position : position + tokens] if heads else []
        position += len(own)
        if heads > 1 and tokens > depth:
            out += [(scale, True) for scale, _ in own]
            out += [(None, True)] * (tokens * (heads - 1))
        else:
            out += list(own) * heads
    return out


def request_status(
    beats: Sequence[Beat], scale: Any = None, errors: Sequence[bool] | None = None
) -> Status:
    """Judges a request to the dequantization engine; scale: (tokens, 6) words, one row per token.

    MALFORMED: the sparse bytes are no records, or a row is not ``scales_valid``. A row that came
    with an error (``errors``) is not judged.
    """
    is_bad = any(beat.bad for beat in beats)
    if scale is not None:
        judged = ~torch.tensor(errors) if errors is not None else True
        is_bad |= bool((~scales_valid(scale) & judged).any())
    return Status.MALFORMED if is_bad else Status.OK
