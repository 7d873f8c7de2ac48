"""Words of memory as codes: records of one vector and head, back to back in a READ's transfer.

A record has the codes of one vector as golden.index.codes packs them.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from golden.index.codes import unpack
from golden.million.config import PqShape


def code_beats(
    words: Sequence[tuple[int, int, int, int, int]], pq: PqShape, keys: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Splits the words of whole transfers into beats of ``keys`` keys: (codes, error, last).

    words : (data, first, end, error, last) of each word, data as one integer, its first byte in the
        low bits. Bytes first..end - 1 count. error is the worst answer so far in the transfer, a
        code of golden.axi.format.Resp.
    Returns (beats, keys, subspaces) codes, 0 beyond the last key; (beats,) the worst answer up to
    the last byte of each beat; (beats,) whether a beat ends its transfer.

    ValueError: a transfer without a record, with a part of one, or without its last word.
    """
    codes, errors, lasts = [], [], []
    held: list[tuple[int, int]] = []  # bytes of this transfer, each with its answer
    size = pq.record_bytes
    for data, first, end, error, last in words:
        held += [(data >> 8 * n & 0xFF, error) for n in range(first, end)]
        if not last:
            continue
        count = len(held) // size
        if not held or len(held) % size:
            raise ValueError(f"a transfer must have records of {size} bytes, not {len(held)} bytes")
        beats = -(-count // keys)
        string = torch.tensor([byte for byte, _ in held], dtype=torch.uint8)
        padded = torch.zeros(beats * keys, pq.subspaces, dtype=torch.int64)
        padded[:count] = unpack(string.reshape(count, size), pq.subspaces, pq.bits)
        codes.append(padded.reshape(beats, keys, pq.subspaces))
        for beat in range(beats):
            part = held[beat * keys * size : (beat + 1) * keys * size]
            errors.append(max(answer for _, answer in part))
            lasts.append(int(beat == beats - 1))
        held = []
    if held:
        raise ValueError("the last transfer has no end")
    return torch.cat(codes), torch.tensor(errors), torch.tensor(lasts)


def passed_words(
    jobs: Iterable[tuple[bool, bool]],
    encoded: Sequence[int],
    restored: Sequence[int],
    count: int,
) -> list[int]:
    """The words that APPENDs of ``count`` words each take, of the encoder's and of the host's.

    jobs : (restored, discard) of each. A job with discard takes words of the host and gives none.
    """
    given: list[int] = []
    sides = iter(encoded), iter(restored)
    for is_restored, discard in jobs:
        words = [next(sides[is_restored]) for _ in range(count)]
        given += words * (not discard)
    return given
