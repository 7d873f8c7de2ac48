"""golden.attention.stream against fractions."""

import dataclasses
import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch

from golden.attention.caps import cap_scores
from golden.attention.exact import products, scores
from golden.attention.format import Status, cap_operand, score_bits, total_bits, value_bits
from golden.attention.stream import NO_SINK, Attended, attend, phases
from golden.attention.timing import StreamCycles, StreamShape
from golden.fp16 import functions
from golden.fp16.format import FP16, FP32
from golden.fp16.ops import bits_from_float, float_from_bits
from tests.exact import exact, ordinary, rounded

LARGEST = 0x7BFF
MOST = 100


def finite(rng, *shape) -> torch.Tensor:
    """Any finite words."""
    words = rng.integers(0, 1 << 16, shape)
    return torch.tensor(np.where(words & FP16.infinity == FP16.infinity, words ^ 0x4000, words))


def query_output(q, k, v, cap: int = 0, sink: int = NO_SINK) -> list[int] | None:
    """The outputs of one query by fractions, or None: it has no result."""
    keys = [[exact(word) for word in row] for row in k.tolist()]
    query = [exact(word) for word in q.tolist()]
    s = [rounded(sum(a * b for a, b in zip(query, row, strict=True))) for row in keys]
    s = cap_scores(torch.tensor(s), cap).tolist()
    usable = [word for word in (*s, sink) if word != FP16.sign_bit | FP16.infinity]
    if any(word & 0x7FFF >= FP16.infinity for word in usable) or not usable:
        return None
    largest = max(map(exact, usable))
    e = [
        exact(int(functions.exp(rounded(exact(word) - largest)))) if word in usable else Fraction(0)
        for word in s
    ]
    alone = 0 if sink == NO_SINK else exact(int(functions.exp(rounded(exact(sink) - largest))))
    divisor = exact(rounded(sum(e) + alone, FP32), FP32)
    inverse = exact(rounded(1 / divisor, FP32), FP32)
    columns = [[exact(word) for word in column] for column in v.T.tolist()]
    sums = [sum(a * b for a, b in zip(e, column, strict=True)) for column in columns]
    return [rounded(exact(rounded(total, FP32), FP32) * inverse) for total in sums]


def one_head(q, k, v, *more, **error) -> Attended:
    """``attend`` of a single head: its words and bad queries."""
    if error.get("sinks") is not None:
        error["sinks"] = error["sinks"][None]
    found = attend(q[None], k[:, None], v[:, None], *more, **error)
    return dataclasses.replace(found, words=found.words[0], bad=found.bad[0])


def check(q, k, v, cap: int = 0, sinks=None) -> Status:
    found = one_head(q, k, v, MOST, cap=cap, sinks=sinks)
    for n, query in enumerate(q):
        wanted = query_output(query, k, v, cap, NO_SINK if sinks is None else int(sinks[n]))
        assert bool(found.bad[n]) == (wanted is None)
        assert found.words[n].tolist() == (wanted or [FP16.canonical_nan] * q.shape[1])
    assert found.status == (Status.OVERFLOW if found.bad.any() else Status.OK)
    return found.status


@pytest.mark.parametrize(("size", "rows"), [(16, 1), (16, 37), (64, 5), (80, 20)])
def test_attention_follows_its_definition(size, rows):
    rng = np.random.default_rng([size, rows])
    small = ordinary(rng, 3, size)
    small[1:] = (small[1:] & 0x83FF) | 0x2800  # scores near each other
    assert check(small, ordinary(rng, rows, size), ordinary(rng, rows, size)) == Status.OK
    check(small, ordinary(rng, rows, size), finite(rng, rows, size))
    tiny = torch.tensor(rng.integers(0, 0x400, (3, size)) | rng.integers(0, 2, (3, size)) << 15)
    check(tiny, finite(rng, rows, size), finite(rng, rows, size))
    check(finite(rng, 3, size), tiny[:1].expand(rows, size), tiny[:1].expand(rows, size))


@pytest.mark.parametrize("cap", [0, cap_operand(3.0), cap_operand(50.0)])
def test_caps_and_sinks_follow_their_definition(cap):
    """Sinks above all scores, among them, and far below; -infinity is none.

    Shown to fail: a sink that the cap applies to, or one counted twice; the sink of the
    neighbouring query; sinks left out.
    """
    rng = np.random.default_rng(cap)
    q, k, v = ordinary(rng, 6, 16), ordinary(rng, 9, 16), ordinary(rng, 9, 16)
    q = (q & 0x83FF) | 0x2C00
    near = [0, 0x8000, 0x4500, 0x5640, 0xD640, NO_SINK]
    for words in map(torch.tensor, (near, [LARGEST, 0xFBFF, 1, 2, 0x4000, 0x4200])):
        assert check(q, k, v, cap, words) == Status.OK
        found = one_head(q, k, v, MOST, cap=cap, sinks=words)
        plain = one_head(q, k, v, MOST, cap=cap)
        assert not torch.equal(found.words[0], plain.words[0])
    assert torch.equal(
        one_head(q, k, v, MOST, cap=cap, sinks=torch.full((6,), NO_SINK)).words, plain.words
    )
    check(q, k, v, cap)
    assert one_head(q, k, v, MOST, sinks=torch.full((6,), LARGEST)).words.count_nonzero() == 0


def test_faults_of_sinks():
    """NaN and +infinity spoil their query alone; scores of -infinity need no other than a sink."""
    rng = np.random.default_rng(9)
    q, k, v = (ordinary(rng, *shape) & 0xBBFF for shape in ((3, 16), (5, 16), (5, 16)))
    for word in (FP16.infinity, 0x7C01, 0xFFFF, 0xFC01):
        found = one_head(q, k, v, MOST, sinks=torch.tensor([0, word, NO_SINK]))
        assert (found.status, found.bad.tolist()) == (Status.NONFINITE, [False, True, False])
        assert (found.words[1] == FP16.canonical_nan).all()
        assert torch.equal(found.words[2], one_head(q, k, v, MOST).words[2])
    q[:], k[:] = LARGEST, 0xBC00
    found = one_head(q, k, v, MOST, sinks=torch.tensor([0, 0xFBFF, NO_SINK]))
    assert (found.status, found.bad.tolist()) == (Status.OVERFLOW, [False, False, True])
    assert not found.words[:2].any()
    assert one_head(q, k ^ 0x8000, v, MOST, sinks=torch.tensor([0] * 3)).bad.all()
    # A score beyond FP16 is one of the cap.
    for words in (k, k ^ 0x8000):
        assert check(q, words, v, cap_operand(50)) == Status.OK


def test_sinks_are_those_of_gpt_oss():
    """The attention function of transformers' gpt-oss, and that of gemma2 with its cap.

    Shown to fail: the sink of the neighbouring head.
    """
    from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward as capped
    from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward as with_sinks

    heads, group, rows, size = 2, 3, 12, 16
    generator = torch.Generator().manual_seed(5)
    q, k, v = (torch.randn(*shape, size, generator=generator).half()
               for shape in ((heads, group), (rows, heads), (rows, heads)))  # fmt: skip
    sinks = (2 * torch.randn(heads * group, generator=generator)).half()

    class Layer(torch.nn.Module):
        num_key_value_groups = group

    layer = Layer()
    layer.sinks, layer.is_sliding, layer.attention_dropout = sinks.double(), False, 0.0
    given = q.reshape(1, heads * group, 1, size), *(x.transpose(0, 1)[None] for x in (k, v))
    given = [x.double() for x in given]
    for cap in (0.0, 3.0):
        if cap:
            wanted, _ = capped(layer, *given, None, scaling=1.0, softcap=cap)
            found = attend(*(bits_from_float(x.double()) for x in (q, k, v)), MOST,
                           cap=cap_operand(cap))  # fmt: skip
        else:
            wanted, _ = with_sinks(layer, *given, None, scaling=1.0)
            found = attend(*(bits_from_float(x.double()) for x in (q, k, v)), MOST,
                           sinks=bits_from_float(sinks.double()).reshape(heads, group))  # fmt: skip
        wanted = wanted.reshape(heads, group, size)
        made = float_from_bits(found.words)
        assert float((made - wanted).norm() / wanted.norm()) < 0.003


def test_scores_beyond_the_format():
    """A score above FP16 spoils its query alone; one below it weighs nothing, unless all do."""
    q = torch.full((3, 16), LARGEST)
    q[0], q[2] = 0x1400, 0xFBFF
    k = torch.full((4, 16), 0x3C00)
    k[2] = 0xBC00
    v = ordinary(np.random.default_rng(2), 4, 16)
    assert one_head(q, k, v, MOST).bad.tolist() == [False, True, True]
    assert check(q, k, v) == Status.OVERFLOW
    assert one_head(q, k[:2], v[:2], MOST).bad.tolist() == [False, True, True]
    assert one_head(q, -k[2:3] & 0xFFFF, v[:1], MOST).bad.any()
    k[1] = 0  # a score of 0 beside one of -infinity
    k[2] = 0x3C00
    assert one_head(q, k, v, MOST).bad.tolist() == [False, True, False]
    check(q, k, v)


def test_faults_and_their_order():
    rng = np.random.default_rng(3)
    q, k, v = (ordinary(rng, *shape) & 0xBFFF for shape in ((2, 16), (5, 16), (5, 16)))
    for words, status in ((k, Status.NONFINITE), (v, Status.NONFINITE)):
        for special in (0x7C00, 0xFC00, 0x7C01, 0xFFFF):
            kept = int(words[4, 15])
            words[4, 15] = special
            found = one_head(q, k, v, MOST)
            assert (found.status, found.bad.tolist()) == (status, [True, True])
            assert (found.words == FP16.canonical_nan).all()
            assert one_head(q, k, v, MOST, error=True).status == Status.DATA
            assert one_head(q, k, v, 4, error=True).status == Status.LENGTH
            words[4, 15] = kept
    assert one_head(q, k[:0], v[:0], MOST).status == Status.LENGTH
    alone = one_head(q, k, v, 5)
    assert alone.status == Status.OK
    q[0, 3] = 0x7C00
    found = one_head(q, k, v, 5)
    assert (found.status, found.bad.tolist()) == (Status.NONFINITE, [True, False])
    assert (found.words[0] == FP16.canonical_nan).all()
    assert (found.words[1] == alone.words[1]).all()


def test_widths_hold_the_longest_sums():
    """The largest words of both signs, at the most elements and rows: not one bit is spare."""
    big = 65504 << 24
    for head_dim in (16, 80, 256):
        assert (head_dim * big * big).bit_length() == score_bits(head_dim) - 1
    for rows in (1, 1000, 32768):
        assert (rows * (big << 24)).bit_length() == value_bits(rows) - 1
        assert (rows << 24).bit_length() == total_bits(rows)
    for sign in (0, 0x8000):
        row = torch.full((1, 256), LARGEST)
        wanted = [256 * big * big * (-1 if sign else 1)]
        assert products(row | sign, row.T).integers() == wanted
        assert scores(row | sign, row).item() == FP16.infinity | sign
        v = torch.full((32768, 2), LARGEST | sign)
        sums = products(torch.full((1, 32768), 0x3C00), v).integers()
        assert sums == [32768 * (big << 24) * (-1 if sign else 1)] * 2
    found = one_head(
        torch.zeros(1, 2), torch.zeros(32768, 2), torch.full((32768, 2), LARGEST), 32768
    )
    assert found.words.tolist() == [[LARGEST] * 2]


def test_the_order_of_rows_never_matters():
    rng = np.random.default_rng(6)
    q, k, v = ordinary(rng, 2, 16), ordinary(rng, 90, 16), finite(rng, 90, 16)
    order = torch.tensor(rng.permutation(90))
    first, second = one_head(q, k, v, MOST), one_head(q, k[order], v[order], MOST)
    assert (first.words == second.words).all()


def test_heads_are_apart():
    """Each head has the outputs that it has alone; a fault of a row is one of all heads."""
    rng = np.random.default_rng(7)
    q, k, v = ordinary(rng, 3, 2, 16) & 0xBFFF, ordinary(rng, 9, 3, 16), ordinary(rng, 9, 3, 16)
    q[1, 1, 3] = 0x7E00
    k[:, 2], q[2, 0] = 0x3C00, LARGEST
    found = attend(q, k, v, MOST)
    for head in range(3):
        alone = one_head(q[head], k[:, head], v[:, head], MOST)
        assert (found.words[head] == alone.words).all()
        assert (found.bad[head] == alone.bad).all()
    assert found.bad.tolist() == [[False, False], [False, True], [True, False]]
    assert found.status == Status.NONFINITE
    v[8, 2, 15] = 0x7C00
    assert attend(q, k, v, MOST).bad.all()


def test_phases_hide_each_softmax_behind_the_next_keys():
    assert phases([3]) == [(False, 0), (True, 0)]
    assert phases([3, 0, 4]) == [
        (False, 0), (False, 1), (True, 0), (False, 2), (True, 1), (True, 2),
    ]  # fmt: skip


SHAPES = [
    StreamShape(lanes=64, beats=1, turns=1, queries=3, cells=12, max_rows=8192),
    StreamShape(lanes=64, beats=2, turns=1, queries=1, cells=4, max_rows=4096),
    StreamShape(lanes=16, beats=3, turns=2, queries=4, cells=8, max_rows=4096),
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", [1, 2, 5, 9, 20, 64, 1000, 4096])
def test_formulas_of_cycles(shape, rows):
    """A long run, and runs of few jobs, against the cycle of each transfer."""
    cycles = StreamCycles(shape)
    cycles.run([rows] * 40)
    steady = [b - a for a, b in itertools.pairwise(cycles.cycles["status"][15:36])]
    assert set(steady) == {shape.interval(rows)}
    assert len(cycles.cycles["rows"]) == 2 * 40 * rows * shape.beats
    assert len(cycles.cycles["o"]) == 40 * shape.outputs
    for jobs in (1, 2, 3):
        if jobs == 1 or rows * shape.row >= 64:
            few = StreamCycles(shape)
            few.run([rows] * jobs)
            first = few.cycles["rows"][0] - (shape.turns - 1)
            assert few.cycles["status"][-1] - first + 1 == shape.run(rows, jobs)


def test_a_run_reads_its_rows_without_a_gap():
    """K of the next job hides the softmax: two jobs wait once for K, and once for the sums."""
    shape = SHAPES[0]
    cycles = StreamCycles(shape)
    cycles.run([500] * 10)
    moves = cycles.cycles["rows"]
    gaps = [b - a - 1 for a, b in itertools.pairwise(moves) if b - a > 1]
    assert len(gaps) == 2
    assert moves[-1] - moves[0] + 1 == 10_000 + sum(gaps)


@pytest.mark.parametrize("shape", SHAPES)
def test_timing_is_that_of_the_transfers(shape):
    timing = shape.timing()
    cycles = StreamCycles(shape)
    cycles.run([40])
    cycles.run([40] * 3)
    moves, o, status = (cycles.cycles[name] for name in ("rows", "o", "status"))
    stretch = 40 * shape.beats  # beats of K, or of V, of a job
    first = [moves[n * stretch] for n in range(8)]
    last = [moves[(n + 1) * stretch - 1] for n in range(8)]
    assert o[0] - last[1] == timing.latency
    assert status[0] - o[shape.outputs - 1] == timing.delay("from the last of o to status")
    gap = first[1] - last[0] - (shape.turns - 1)
    assert gap == timing.delay("from K to V of a run of one job")
    gap = first[3] - last[2] - (shape.turns - 1)
    assert gap == timing.delay("from the first to the second K of a run")
    gap = first[7] - last[6] - (shape.turns - 1)
    assert (
        gap == timing.delay("from V to the next V at least, and one per beat of o") + shape.outputs
    )
    steps = moves[shape.beats] - moves[0]
    assert steps == timing.interval
