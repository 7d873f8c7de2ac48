"""Records in order token: their bytes read one by one, and the cache that is made of them.

Shown to fail, each by one change:

- pack_groups with the sparse bytes of a block before its codes;
- pack_groups with the scales after the blocks, or in the first record alone;
- groups of heads that lie apart (every second head);
- unpack_groups without a check of the scales of later groups, or of bytes after a record;
- split_records with the scales taken at each block, or that goes on after a fault;
- a READ of the cache that takes half a group.
"""

import random

import numpy as np
import pytest
import torch

from golden.config import ConfigError
from golden.oaken.config import CacheConfig, KvShape
from golden.oaken.dequantize import insert_zeros, split_records
from golden.oaken.format import Group, bits_read, record_bytes
from golden.oaken.kv_engine import KvEngine, Request
from golden.oaken.quantize import (
    RecordError,
    decode,
    encode,
    pack_groups,
    pack_token,
    unpack_groups,
)
from golden.oaken.vectors.kv_script import THRESHOLDS, fp16, vector
from golden.paging.format import Op, Status
from tests.oaken.test_golden import oracle, random_thresholds, vectors

SHAPES = [(1, 32, 16, 1), (4, 32, 16, 2), (3, 64, 64, 1), (6, 64, 32, 3), (2, 128, 64, 2)]


def read(record: bytes, blocks: int, block: int) -> dict[str, list[int]]:
    """The fields of a record, byte by byte."""
    stream = iter(record)
    found: dict[str, list[int]] = {"scale": [], "code": [], "group": [], "fifth": []}
    for _ in range(6):
        low = next(stream)
        found["scale"].append(low + 256 * next(stream))
    for _ in range(blocks):
        for _ in range(block // 2):
            byte = next(stream)
            found["code"] += [byte % 16, byte // 16]
        group, fifth = [int(Group.MIDDLE)] * block, [0] * block
        for _ in range(next(stream)):
            byte = next(stream)
            group[byte % 64] = int(Group.OUTER if byte // 64 % 2 else Group.INNER)
            fifth[byte % 64] = byte // 128
        found["group"] += group
        found["fifth"] += fifth
    assert next(stream, None) is None, "bytes behind the last block"
    return found


@pytest.mark.parametrize(("heads", "head_dim", "block", "groups"), SHAPES)
def test_every_byte_is_what_the_oracle_says(heads, head_dim, block, groups, seed):
    rng = random.Random(seed)
    thresholds = random_thresholds(rng)
    x = vectors(rng, thresholds, heads * head_dim)
    encoded = encode(torch.tensor(x), thresholds, block)
    size = heads * head_dim // groups
    for token, words in enumerate(x):
        records = pack_groups(encoded, token, groups, block)
        assert len(records) == groups
        expected = oracle(words, thresholds)
        for group, record in enumerate(records):
            found = read(record, size // block, block)
            assert found.pop("scale") == expected["scale"]
            for name, values in found.items():
                assert values == expected[name][group * size : (group + 1) * size], name
            outliers = sum(each != Group.MIDDLE for each in found["group"])
            assert len(record) == record_bytes(size // block, block, outliers)


@pytest.mark.parametrize(("heads", "head_dim", "block", "groups"), SHAPES)
def test_records_come_back(heads, head_dim, block, groups, seed):
    rng = random.Random(seed)
    thresholds = random_thresholds(rng)
    x = vectors(rng, thresholds, heads * head_dim)
    encoded = encode(torch.tensor(x), thresholds, block)
    for token in range(len(x)):
        records = pack_groups(encoded, token, groups, block)
        again = unpack_groups(records, heads * head_dim, block)
        for name in ("scale", "code", "group", "fifth"):
            assert torch.equal(getattr(again, name)[0], getattr(encoded, name)[token]), name
        # The bytes of order head, but for the scales of further groups.
        by_head = sum(map(len, pack_token(encoded, token, head_dim, block)))
        assert sum(map(len, records)) == by_head + 12 * (groups - 1)


def test_record_bytes_by_hand():
    """Two blocks of 16: one element beyond the outer threshold, two within the inner ones."""
    x = fp16([1.0] * 32)
    x[3], x[20], x[31] = fp16([8.0, 0.125, 0.0])
    (record,) = pack_groups(encode(torch.tensor([x]), THRESHOLDS, 16), 0, 1, 16)
    scale, first, second = record[:12], record[12:22], record[22:]
    codes = [15, 15, 15, 15]  # each group's largest has the top code; 1.0 is the middle's
    assert first[:8] == bytes([codes[0] | codes[1] << 4] * 8)
    assert first[8] == 1
    assert first[9] == 3 | 1 << 6
    # Inner: 31 steps from 0 to 0.125. The largest is 31 = 15 and the fifth bit, 0 is 0.
    assert second[:8] == bytes([0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x0F])
    assert second[8] == 2
    assert list(second[9:]) == [4 | 1 << 7, 15]
    assert scale[8:10] == bytes(2)


def test_damaged_records_are_refused():
    x = fp16([0.1, 1.0] * 32)
    one, two = pack_groups(encode(torch.tensor([x]), THRESHOLDS, 16), 0, 2, 16)
    at = 12 + 8  # of the first count byte
    damaged = {
        "1 record or more": [],
        "different scales": [one, bytes([two[0] ^ 1]) + two[1:]],
        "bytes behind a record": [one + b"\0", two],
        "are needed": [one, two[:-1]],
        "count byte": [one[:at], two],
        "is above 16": [one[:at] + b"\x11" + one[at + 1 :], two],
        "does not ascend": [one[: at + 1] + one[at + 2 : at + 3] * 2 + one[at + 3 :], two],
    }
    for message, records in damaged.items():
        with pytest.raises(RecordError, match=message):
            unpack_groups(records, 64, 16)


def test_streams_of_several_records_are_those_of_each(seed):
    """Scales, codes and outliers of split_records are those of ``read``, skipped records left out;
    what zero insertion makes of its sparse words too."""
    rng = random.Random(seed)
    x = vectors(rng, THRESHOLDS, 48)
    encoded = encode(torch.tensor(x), THRESHOLDS, 16)
    records = [pack_groups(encoded, token, 1, 16)[0] for token in range(len(x))]
    data = b"".join(records)
    skip, tokens = 2, len(records) - 3
    parts = split_records(data, [False] * len(data), tokens=tokens, skip=skip, blocks=3, block=16)
    expected = [read(record, 3, 16) for record in records[skip : skip + tokens]]
    assert [list(scale) for scale, _ in parts.scale] == [each["scale"] for each in expected]
    codes = b"".join(parts.dense)
    found = [code for byte in codes for code in (byte % 16, byte // 16)]
    assert found == [code for each in expected for code in each["code"]]
    sparse = b"".join(word.data[: word.end] for word in parts.sparse)
    beats = insert_zeros(
        sparse, [False] * len(sparse), tokens=tokens, skip=0, blocks=3, block=16, lanes=16
    )
    assert not any(beat.bad for beat in beats)
    outlier = [each for beat in beats for each in beat.outlier]
    group = [g for each in expected for g in each["group"]]
    assert [present for present, _, _ in outlier] == [int(g != Group.MIDDLE) for g in group]
    assert [fifth for _, _, fifth in outlier] == [f for each in expected for f in each["fifth"]]
    assert [word.last for word in parts.sparse] == [False] * (len(parts.sparse) - 1) + [True]


@pytest.mark.parametrize("skip", [0, 1])
def test_a_fault_ends_the_sparse_words_and_nothing_else(skip):
    """A count that is too large in record 1 of 3, and bytes missing."""
    x = [fp16([0.1, 1.0] * 16)] * 3
    encoded = encode(torch.tensor(x), THRESHOLDS, 16)
    records = [pack_groups(encoded, token, 1, 16)[0] for token in range(3)]
    at = len(records[0]) + 12 + 8
    data = bytearray(b"".join(records))
    data[at] = 17
    for damaged in (bytes(data), b"".join(records)[:at]):
        errors = [False] * len(damaged)
        parts = split_records(damaged, errors, tokens=3 - skip, skip=skip, blocks=2, block=16)
        given = 2 * (1 - skip)  # sound blocks
        assert (len(parts.scale), len(parts.dense)) == (3 - skip, 2 * (3 - skip))
        assert len(parts.sparse) == given + 1
        assert parts.sparse[-1][1:] == (0, 0, 0, True)
        assert not any(word.last for word in parts.sparse[:-1])


# ---- shapes and the cache

KV = KvShape(heads=4, head_dim=32, block=16, order="token", groups=2)
CACHE = CacheConfig(kv=KV, sequences=2, layers=1, pages=80, page_bytes=512, max_tokens=30)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"groups": 2}, "groups must be 1 in order head, not 2"),
        ({"order": "token", "groups": 3}, "groups must be a divisor of heads = 8, not 3"),
        (
            {"order": "token", "heads": 32},
            "groups must be so many that a record has at most 4095 bytes, not 1",
        ),
        (
            {"order": "token", "head_dim": 256, "block": 16},
            "groups must be so many that a record has at most 64 blocks, not 1",
        ),
        ({"order": "heads"}, "order must be head or token, not 'heads'"),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ConfigError) as error:
        KvShape(**wrong)
    assert str(error.value) == f"KvShape.{message}"


@pytest.mark.parametrize(
    ("shape", "layers", "by_head", "by_token"),
    [
        ({"heads": 3, "head_dim": 64}, 30, 420, 60),
        ({"heads": 32, "head_dim": 128, "groups": 4}, 32, 4160, 256),
        ({"heads": 32, "head_dim": 128, "groups": 2}, 32, 4160, 128),
    ],
)
def test_streams_of_a_sequence(shape, layers, by_head, by_token):
    """SmolLM2 and Llama-2-7B."""
    kv = KvShape(**shape, order="token")
    head = KvShape(heads=kv.heads, head_dim=kv.head_dim)
    page = 1 << (2 * kv.record_bytes_max - 1).bit_length()
    assert page == {1: 1024, 4: 4096, 2: 8192}[kv.groups]
    for each, streams in ((head, by_head), (kv, by_token)):
        cache = CacheConfig(kv=each, sequences=1, layers=layers, page_bytes=max(page, 4096))
        assert cache.streams == streams


def engine() -> KvEngine:
    """Thresholds for K and V; sequence 0 open."""
    found = KvEngine(CACHE)
    for kv in (0, 1):
        request = Request(Op.THRESHOLDS, kv=kv, thresholds=THRESHOLDS)
        assert found.request(request).status == Status.OK
    assert found.request(Request(Op.OPEN)).sequence == 0
    return found


def fill(cache: KvEngine, tokens: int, seed: int = 1) -> torch.Tensor:
    """(tokens, D) words appended to K and V of layer 0."""
    rng = random.Random(seed)
    x = [vector(rng, KV.elements) for _ in range(tokens)]
    for token, words in enumerate(x):
        for kv in (0, 1):
            request = Request(Op.APPEND, kv=kv, token=token, vector=words)
            assert cache.request(request).status == Status.OK
    return torch.tensor(x)


def test_what_is_read_is_what_the_arithmetic_gives():
    cache = engine()
    x = fill(cache, 20)
    expected = decode(encode(x, THRESHOLDS, KV.block), THRESHOLDS).reshape(20, 2, 64)
    answer = cache.request(Request(Op.READ, heads=4, token=20))
    assert torch.equal(torch.tensor(answer.words), expected.transpose(0, 1))
    answer = cache.request(Request(Op.READ, head=2, heads=2, token=7))
    assert torch.equal(torch.tensor(answer.words), expected[:7, 1:].transpose(0, 1))
    assert cache.request(Request(Op.TRIM, token=9)).status == Status.OK
    answer = cache.request(Request(Op.READ, head=0, heads=2, token=20))
    assert torch.equal(torch.tensor(answer.words), expected[9:, :1].transpose(0, 1))


def test_reads_name_whole_groups():
    cache = engine()
    fill(cache, 1)
    good = {(0, 2), (2, 2), (0, 4)}
    for head, heads in np.ndindex(6, 7):
        answer = cache.request(Request(Op.READ, head=int(head), heads=int(heads), token=1))
        is_good = (head, heads) in good
        assert answer.status == (Status.OK if is_good else Status.BAD_REQUEST), (head, heads)


def test_bytes_are_those_of_the_records():
    """A group is read with its scales."""
    cache = engine()
    x = fill(cache, 12)
    f = encode(x, THRESHOLDS, KV.block).sparse_fraction
    whole = bits_read(f, 4, 32, KV.block, heads_read=4) / 8 * x.numel() + 12 * 12
    assert cache.bytes_stored() == pytest.approx(2 * whole)
    assert cache.request(Request(Op.READ, heads=4, token=12)).bytes_read == pytest.approx(whole)
    parts = [
        cache.request(Request(Op.READ, head=head, heads=2, token=12)).bytes_read for head in (0, 2)
    ]
    assert sum(parts) == pytest.approx(whole)
