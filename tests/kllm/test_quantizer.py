"""Commands of the quantizer against plain Python: sorting, comparing, fractions."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from golden.fp16.format import FP16
from golden.fp16.ops import float_from_bits
from golden.index.nearest import cluster, midpoints
from golden.kllm.isa import CommandStatus, Norm, Opcode, OutlierMode, Outliers, Statistics
from golden.kllm.norms import norm_statistics
from golden.kllm.quantize import quantize_tokens, unsigned_quotient, unsigned_scale
from golden.kllm.quantizer import (
    codebook_fault,
    faults,
    quantize_command,
    quantize_integer_command,
)

INF, NAN, ONE = 0x7C00, 0x7E00, 0x3C00
CODEBOOK = torch.tensor([0xBC00, 0xB400, 0x2C00, 0x3A00])
EPSILON = int(np.float32(1e-5).view(np.uint32))
SIZES = {"vector_rows": 100, "slots": 8, "slot_elements": 64}
GOOD = {
    "src": 10, "stride": 4, "tokens": 3, "length": 40, "slot": 5, "k_max": 2, "k_min": 3,
    "mode": OutlierMode.ONLINE, "thresholds": 0, "norm": Norm.NONE, "epsilon": EPSILON,
}  # fmt: skip


def value(word: int) -> Fraction:
    return Fraction(float(float_from_bits(torch.tensor(int(word)), FP16)))


def tokens(seed: int, count: int, length: int) -> torch.Tensor:
    """Finite words of every size, with repetitions and both zeros."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, INF, (count, length)) | rng.integers(0, 2, (count, length)) << 15
    few = rng.choice([0, 0x8000, ONE, 0xBC00, 0x3C01], (count, length))
    return torch.tensor(np.where(rng.random((count, 1)) < 0.4, few, x))


def command(x, **given):
    keys = {
        "k_max": 2, "k_min": 1, "mode": OutlierMode.ONLINE, "upper": 0, "lower": 0,
        "codebook": CODEBOOK, "norm": Norm.NONE, "epsilon": EPSILON, "outliers_max": 8,
    } | given  # fmt: skip
    codebook, most = keys.pop("codebook"), keys.pop("outliers_max")
    statistics = Statistics(keys.pop("norm"), keys.pop("epsilon"))
    return quantize_command(x, codebook, Outliers(**keys), most, statistics)


@pytest.mark.parametrize(("k_max", "k_min"), [(2, 1), (0, 0), (0, 3), (4, 4)])
def test_online_outliers_are_those_of_a_sort(k_max, k_min):
    x = tokens(1, 30, 21)
    made = command(x, k_max=k_max, k_min=k_min)
    for t, row in enumerate(x.tolist()):
        order = sorted(
            range(len(row)),
            key=lambda p: (-(row[p] & 0x7FFF) - 1 if row[p] >> 15 else row[p], -p),
        )  # fmt: skip
        chosen = set(order[:k_min]) | set(order[len(order) - k_max :])
        assert set(torch.nonzero(made.outlier[t]).flatten().tolist()) == chosen
        assert made.words[t][made.outlier[t]].tolist() == [row[p] for p in sorted(chosen)]
        scale = max(row[p] & 0x7FFF for p in range(len(row)) if p not in chosen)
        assert int(made.scale[t]) == scale
    assert bool(made.valid.all())
    inlier = torch.where(made.outlier, 0, cluster(x, made.scale, CODEBOOK))
    assert torch.equal(made.index, inlier)
    assert made.rms_reciprocal.unique().tolist() == [0x3F800000]
    assert made.mean.unique().tolist() == [0]


def test_online_agrees_with_the_offline_quantizer():
    x = tokens(2, 8, 400)
    made = command(x, k_max=2, k_min=2)
    reference = quantize_tokens(x, CODEBOOK, share=0.005)
    assert torch.equal(made.index.to(torch.uint8), reference.index)
    assert torch.equal(made.outlier, reference.outlier)
    assert torch.equal(made.scale, reference.scale)


@pytest.mark.parametrize(
    ("upper", "lower"),
    [(0x4400, 0xC400), (0x8000, 0x0000), (0x0000, 0x8000), (0x3C00, 0xBC00), (0x3C01, 0x3C01)],
)
def test_offline_outliers_are_those_beyond_the_thresholds(upper, lower):
    x = tokens(3, 30, 21)
    made = command(x, mode=OutlierMode.OFFLINE, upper=upper, lower=lower, k_max=99, outliers_max=17)
    for t, row in enumerate(x.tolist()):
        beyond = [value(w) > value(upper) or value(w) < value(lower) for w in row]
        assert made.valid[t] == (sum(beyond) <= 17)
        assert int(made.status[t]) == (0 if made.valid[t] else CommandStatus.CAPACITY)
        if made.valid[t]:
            assert made.outlier[t].tolist() == beyond
            assert int(made.scale[t]) == max(upper & 0x7FFF, lower & 0x7FFF)
    assert bool(made.valid.any())


def test_norms_are_those_of_norm_statistics():
    x = tokens(4, 5, 60) & 0xBFFF
    for norm in (Norm.RMS, Norm.LAYER):
        made = command(x, norm=norm)
        mean, rms_reciprocal, status = norm_statistics(
            made.replace(words=x), CODEBOOK, EPSILON, norm == Norm.LAYER
        )
        assert not status.any()
        assert torch.equal(made.mean, mean)
        assert torch.equal(made.rms_reciprocal, rms_reciprocal)


@pytest.mark.parametrize("mode", OutlierMode)
@pytest.mark.parametrize("word", [INF, 0xFC00, NAN, 0xFC01])
def test_a_token_that_is_not_finite_fails_alone(mode, word):
    x = tokens(5, 3, 20) & 0xBFFF
    x[1, 19] = word
    made = command(x, mode=mode, upper=0x7BFF, lower=0xFBFF, norm=Norm.RMS)
    assert made.status.tolist() == [0, CommandStatus.NONFINITE, 0]
    assert made.command_status == CommandStatus.NONFINITE
    assert made.valid.tolist() == [True, False, True]
    assert not made.index[1].any()
    assert not made.outlier[1].any()
    assert not made.words[1].any()
    alone = command(x[2:], mode=mode, upper=0x7BFF, lower=0xFBFF, norm=Norm.RMS)
    assert torch.equal(made.index[2:], alone.index)
    assert made.rms_reciprocal[2] == alone.rms_reciprocal[0]


def test_online_counts_beyond_the_slot_are_refused_unread():
    x = tokens(6, 2, 20)
    x[0, 0] = NAN
    made = command(x, k_max=8, k_min=1)
    assert made.status.tolist() == [CommandStatus.CAPACITY] * 2
    assert command(x[1:], k_max=8, k_min=0).valid.all()
    both = command(x, mode=OutlierMode.OFFLINE, outliers_max=0)
    assert int(both.status[0]) == CommandStatus.CAPACITY | CommandStatus.NONFINITE


@pytest.mark.parametrize("bits", [4, 8])
def test_integers_are_rounded_fractions(bits):
    top = 2**bits - 1
    rng = np.random.default_rng(7)
    limit = np.array([2, 200, 0x0400, 0x2000, INF, INF])[:, None]
    x = torch.tensor(rng.integers(0, limit, (6, 80)))
    x[:, 3] = 0x8000
    made = quantize_integer_command(x, bits)
    assert bool(made.valid.all())
    assert not made.outlier.any()
    for t, row in enumerate(x.tolist()):
        scale = value(made.scale[t])
        exact = max(map(value, row)) / top
        # The nearest word: no neighbour is nearer.
        for beside in (-1, 1):
            if 0 <= int(made.scale[t]) + beside < INF:
                assert abs(exact - scale) <= abs(exact - value(int(made.scale[t]) + beside))
        for word, entry in zip(row, made.index[t].tolist(), strict=True):
            assert entry == (min(top, round(value(word) / scale)) if scale else 0)


def test_integer_faults():
    x = torch.tensor([[0, ONE], [0x8001, ONE], [0x8000, NAN], [0xFC00, 0], [0xFE00, 0]])
    made = quantize_integer_command(x, 8)
    nonfinite, negative = CommandStatus.NONFINITE, CommandStatus.NEGATIVE
    both = nonfinite | negative
    assert made.status.tolist() == [0, negative, nonfinite, both, both]
    assert made.index[0].tolist() == [0, 255]


def test_quotients_of_any_words():
    x, s = torch.tensor([5, ONE, INF - 1, 3, 0x8003]), torch.tensor([2, 0, 1, 0x8002, 2])
    assert unsigned_quotient(x, s, 4).tolist() == [2, 0, 15, 2, 2]
    assert unsigned_scale(torch.tensor([0, 127, 128, 382, 383]), 8).tolist() == [0, 0, 1, 1, 2]
    with pytest.raises(ValueError, match="int_bits must be 4 or 8, not 5"):
        unsigned_scale(x, 5)


def check(**changes) -> CommandStatus:
    return faults(Opcode.QUANTIZE, GOOD | changes, **SIZES)


def test_faults_before_anything_is_read():
    assert check() == 0
    fits = [
        {"slot": 5}, {"tokens": 1, "slot": 7}, {"src": 89}, {"length": 64, "stride": 43},
        {"length": 6}, {"k_max": 36}, {"norm": 2},
    ]  # fmt: skip
    for edge in fits:
        assert check(**edge) == 0, edge
    wrong = [
        {"tokens": 0}, {"slot": 6}, {"src": 90}, {"length": 65}, {"norm": 3},
        {"length": 64, "stride": 44}, {"stride": 0xFFFF, "tokens": 2},
    ]  # fmt: skip
    for edge in wrong:
        assert check(**edge) == CommandStatus.RANGE, edge
    assert check(k_max=37) == CommandStatus.CAPACITY
    assert check(k_max=37, tokens=0) == CommandStatus.CAPACITY | CommandStatus.RANGE
    assert check(length=0) == CommandStatus.CAPACITY | CommandStatus.RANGE
    offline = {"mode": OutlierMode.OFFLINE, "k_max": 999}
    assert check(**offline, thresholds=0x7BFFFBFF) == 0
    for word in (INF, 0xFC00, NAN):
        assert check(**offline, thresholds=word) == CommandStatus.RANGE
        assert check(**offline, thresholds=word << 16) == CommandStatus.RANGE
        assert check(thresholds=word) == 0
    for src, expected in ((98, 0), (99, CommandStatus.RANGE)):
        assert faults(Opcode.ACTIVATION_CODEBOOK, {"src": src}, **SIZES) == expected
    integer = {name: GOOD[name] for name in ("src", "stride", "tokens", "length", "slot")}
    assert faults(Opcode.QUANTIZE_INTEGER, integer, **SIZES) == 0
    beyond = integer | {"slot": 6}
    assert faults(Opcode.QUANTIZE_INTEGER, beyond, **SIZES) == CommandStatus.RANGE


def test_codebooks_beyond_one_are_refused():
    middle = midpoints(CODEBOOK)
    assert codebook_fault(CODEBOOK, middle) == 0
    for word in (ONE + 1, 0xBC01, INF, NAN):
        for place in range(4):
            bad = CODEBOOK.clone()
            bad[place] = word
            assert codebook_fault(bad, middle) == CommandStatus.RANGE
        bad = middle.clone()
        bad[2] = word
        assert codebook_fault(CODEBOOK, bad) == CommandStatus.RANGE
