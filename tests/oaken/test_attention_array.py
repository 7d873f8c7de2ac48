"""Several attention engines as one, against the unit CACHE and against each engine alone."""

import dataclasses
import random

import pytest
import torch

from golden.attention.format import Status as JobStatus
from golden.kllm.cache import CacheUnit, Place
from golden.kllm.isa import CommandStatus
from golden.oaken.attention_array import AttentionArray
from golden.oaken.config import CacheConfig, KvShape
from golden.oaken.kv_engine import Request
from golden.oaken.vectors.kv_script import THRESHOLDS, fp16
from golden.paging.format import Kv, Op, Status

ENGINES, QUERIES = 2, 2
KV = KvShape(heads=4, head_dim=16, block=16, order="token")
WHOLE = CacheConfig(kv=KV, sequences=2, layers=1, pages=80, page_bytes=512, max_tokens=20)


def filled(tokens: int = 6, config: CacheConfig = WHOLE) -> tuple[AttentionArray, CacheUnit]:
    """Both with one sequence of the same vectors."""
    array, unit = AttentionArray(config.part(ENGINES), ENGINES), CacheUnit(config, 1, ENGINES)
    rng = random.Random(5)
    requests = [Request(Op.THRESHOLDS, kv=side, thresholds=THRESHOLDS) for side in Kv]
    requests.append(Request(Op.OPEN))
    for token in range(tokens):
        for side in Kv:
            words = fp16([rng.gauss(0, 1) for _ in range(KV.elements)])
            requests.append(Request(Op.APPEND, kv=side, token=token, vector=words))
    for request in requests:
        assert array.request(request) == unit.request(request)
        assert array.request(Request(Op.READ, heads=1)).status == Status.BAD_REQUEST
    return array, unit


def queries() -> torch.Tensor:
    rng = random.Random(7)
    words = [rng.gauss(0, 0.25) for _ in range(KV.elements * QUERIES)]
    return torch.tensor(fp16(words)).reshape(KV.heads, QUERIES, KV.head_dim)


def test_the_array_attends_as_the_unit_does() -> None:
    """Shown to fail: the parts of the queries in the other order."""
    array, unit = filled()
    q = queries()
    unit.batch[0] = Place(0, 5)
    (parts,), status = unit.attend([q.flatten()], 0)
    found = array.attend(q, 0, 0, 6)
    assert (found.status, found.result, status) == (Status.OK, JobStatus.OK, 0)
    wanted = torch.cat([part for part in parts if part is not None])
    assert torch.equal(found.words.flatten(), wanted)


@pytest.mark.parametrize("failed", range(ENGINES))
def test_one_engine_fails(failed: int) -> None:
    """Its words alone are NaN, or void; an APPEND that it refuses is in the others."""
    array, unit = filled()
    q, heads = queries(), KV.heads // ENGINES
    mine = slice(failed * heads, (failed + 1) * heads)
    memories = [{(Kv.V, 0): Status.SLAVE_ERROR} if n == failed else {} for n in range(ENGINES)]
    found = array.attend(q, 0, 0, 6, memories)
    assert found.status == Status.SLAVE_ERROR
    assert (found.words == 0x7E00).any(dim=(1, 2)).tolist() == [
        mine.start <= head < mine.stop for head in range(KV.heads)
    ]
    assert not found.void.any()
    for made in (array, unit):
        made.memory[failed] = Status.DECODE_ERROR
    unit.batch[0] = Place(0, 6)
    for side in Kv:
        request = Request(Op.APPEND, kv=side, token=6, vector=[0] * KV.elements)
        assert array.request(request).status == Status.DECODE_ERROR
        words = torch.zeros(KV.elements, dtype=torch.int64)
        assert unit.append([words], 0, side) == CommandStatus.BUS_ERROR
    found = array.attend(q, 0, 0, 7)
    assert found.status == Status.BEYOND_LENGTH
    assert found.void.tolist() == [n == failed for n in range(ENGINES)]
    (parts,), status = unit.attend([q.flatten()], 0)
    assert status == CommandStatus.SLOT_MISMATCH
    assert [part is None for part in parts] == found.void.tolist()


def test_results_of_engines() -> None:
    """The least that is not OK; OK where a READ fails."""
    array, _ = filled()
    q = queries() * 0 + 0x3000
    q[0], q[-1, -1] = 0x7BFF, 0x7E00
    assert array.attend(q, 0, 0, 6).result == JobStatus.NONFINITE
    memories = [{(Kv.K, 0): Status.MALFORMED}, {}]
    found = array.attend(q, 0, 0, 6, memories)
    assert (found.status, found.result) == (Status.MALFORMED, JobStatus.OK)


@pytest.mark.parametrize("failed", range(ENGINES))
def test_a_fork_fails_in_one_engine(failed: int) -> None:
    """No engine has the child, and the next one has one number.

    Shown to fail: the child stays where the FORK did not fail; the number is that of the child.
    """
    array, unit = filled(6, dataclasses.replace(WHOLE, sequences=3, forks=True))
    for made in (array, unit):
        free = [engine.free_pages for engine in made.engines]
        made.memory[failed] = Status.SLAVE_ERROR
        for _ in range(3):
            answer = made.request(Request(Op.FORK, token=6))
            assert (answer.status, answer.sequence) == (Status.SLAVE_ERROR, 0)
        assert [engine.free_pages for engine in made.engines] == free
        made.memory[failed] = Status.OK
        for child in (1, 2):
            answer = made.request(Request(Op.FORK, token=6))
            assert (answer.status, answer.sequence) == (Status.OK, child)
        assert made.request(Request(Op.FORK, token=6)).status == Status.TABLE_FULL
        assert made.request(Request(Op.FREE)).status == Status.OK  # the prompt, before them
        assert made.request(Request(Op.FORK, sequence=2, token=6)).status == Status.BAD_REQUEST
    words = queries()
    unit.batch[0] = Place(2, 5)
    (parts,), status = unit.attend([words.flatten()], 0)
    found = array.attend(words, 1, 0, 6)
    assert (found.status, status) == (Status.OK, 0)
    assert torch.equal(
        found.words.flatten(), torch.cat([part for part in parts if part is not None])
    )
