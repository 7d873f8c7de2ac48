"""golden.oaken.dequantize against golden.oaken.quantize's readers of whole records.

Shown to fail:

- a count of ``block`` + 1 allowed;
- equal indices allowed;
- the entry of an earlier beat skipped;
- an error that begins a byte late.
"""

import numpy as np
import pytest
import torch

from golden.oaken.dequantize import inliers, insert_zeros, outliers, repeat_scales, request_status
from golden.oaken.format import Group
from golden.oaken.quantize import RecordError, decode, sparse_records, unpack_sparse
from golden.oaken.vectors.dequant_tokens import damaged, some_tokens
from golden.paging.format import Status


def read(data: bytes, blocks: int, block: int):
    """(group, fifth) of one record at the front of ``data``; RecordError."""
    end = 0
    for _ in range(blocks):
        if end >= len(data):
            raise RecordError("short")
        end += 1 + data[end]
    return unpack_sparse(data[:end] if end <= len(data) else data, blocks * block, block)


@pytest.mark.parametrize(("block", "lanes"), [(16, 8), (32, 32), (64, 16), (64, 64)])
def test_zeros_are_inserted_as_records_are_read(block, lanes, seed):
    rng = np.random.default_rng([seed, 46])
    bad = 0
    for n in range(90):
        blocks = int(rng.integers(1, 4))
        encoded, _ = some_tokens(rng, 1, blocks * block, block)
        data = sparse_records(encoded, blocks * block, block)[0][0]
        if n % 3:
            data = damaged(rng, data, block)
        beats = insert_zeros(
            data, [False] * len(data), tokens=1, skip=0, blocks=blocks, block=block, lanes=lanes
        )
        assert len(beats) == blocks * block // lanes
        assert [beat.last for beat in beats] == [False] * (len(beats) - 1) + [True]
        try:
            group, fifth = read(data, blocks, block)
        except RecordError:
            assert request_status(beats) == Status.MALFORMED
            first = [beat.bad for beat in beats].index(True)
            assert all(beat.bad and beat.error for beat in beats[first:])
            assert not any(each[0] for beat in beats[first:] for each in beat.outlier)
            bad += 1
            continue
        assert request_status(beats) == Status.OK
        positions = [each for beat in beats for each in beat.outlier]
        kinds = {(1, 1): Group.OUTER, (1, 0): Group.INNER, (0, 0): Group.MIDDLE}
        assert [kinds[each[:2]] for each in positions] == group
        assert [each[2] for each in positions] == fifth
    assert bad > 15


def test_skipped_records_and_errors():
    rng = np.random.default_rng(47)
    encoded, _ = some_tokens(rng, 6, 128, 64)
    records = [record for (record,) in sparse_records(encoded, 128)]
    data = b"".join(records)
    for skip in range(5):
        for at in (*range(0, len(data), 7), len(data)):
            errors = [n >= at for n in range(len(data))]
            beats = insert_zeros(
                data, errors, tokens=6 - skip, skip=skip, blocks=2, block=64, lanes=16
            )
            behind = b"".join(records[skip:])
            same = insert_zeros(
                behind, [False] * len(behind), tokens=6 - skip, skip=0, blocks=2, block=64, lanes=16
            )
            assert [beat.outlier for beat in beats] == [beat.outlier for beat in same]
            assert not any(beat.bad for beat in beats)
            # A beat has the error if one of its bytes or of those before it has.
            ends, end = [], sum(map(len, records[:skip]))
            for n, beat in enumerate(beats):
                end += (n % 4 == 0) + sum(each[0] for each in beat.outlier)
                ends.append(end)
            assert [beat.error for beat in beats] == [end > at for end in ends]


def test_both_parts_merge_to_the_whole(seed):
    rng = np.random.default_rng([seed, 48])
    encoded, thresholds = some_tokens(rng, 200, 64, 64)
    parts = inliers(encoded, thresholds), outliers(encoded, thresholds)
    assert torch.equal(parts[0] | parts[1], decode(encoded, thresholds))
    assert not ((parts[0] != 0) & (parts[1] != 0)).any()


def test_scales_are_repeated():
    words = [(n, False) for n in range(6)]
    assert repeat_scales(words, [(2, 2), (1, 1), (0, 4), (3, 0), (3, 1)], 4) == [
        (0, False), (1, False), (0, False), (1, False), (2, False),
        (3, False), (4, False), (5, False),
    ]  # fmt: skip
    assert repeat_scales(words, [(6, 1)], 4) == words
    refused = repeat_scales(words, [(5, 2), (1, 2)], 4)
    assert refused[:5] == [(n, True) for n in range(5)]
    assert [error for _, error in refused[5:10]] == [True] * 5
    assert refused[10:] == [(5, False)] * 2


@pytest.mark.parametrize(
    ("data", "beat"),
    [
        ([33, *range(32)], 0),  # a count above the block
        ([], 0),
        ([2, 3, 3], 0),  # equal indices
        ([2, 5, 3], 0),
        ([2, 9, 3, 0], 1),  # of an earlier beat
        ([3, 9, 17], 2),  # a missing entry, which may have belonged to beat 2
        ([1], 0),
        ([1, 32, 0], 3),  # not below the block: left over on its last beat
        ([0], 4),  # no second count
        ([0, 200], 4),
        ([1, 31, 1, 31], None),
        ([0, 0, 255], None),
    ],
)
def test_where_a_fault_stands(data, beat):
    beats = insert_zeros(data, [False] * len(data), tokens=1, skip=0, blocks=2, block=32, lanes=8)
    first = 8 if beat is None else beat
    assert [each.bad for each in beats] == [False] * first + [True] * (8 - first)
