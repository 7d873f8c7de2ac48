"""golden.vqllm.cache against loops over lanes and banks."""

import collections

import numpy as np
import pytest
import torch

from golden.index.format import CodebookFault
from golden.vqllm.cache import LookUps, Tiers, load_fault


def by_hand(code, use, stages, tiers):
    """(tier of each lane, cycles of each beat, counts)."""
    tier, cycles, counts = [], [], collections.Counter()
    for row, used in zip(code.tolist(), use.tolist(), strict=True):
        banks, far = collections.Counter(), 0
        tier.append([])
        for lane, index in enumerate(row):
            if not used[lane]:
                tier[-1].append(-1)
            elif index < tiers.registers:
                tier[-1].append(0)
                counts["registers"] += 1
            elif index < tiers.shared:
                tier[-1].append(1)
                counts["shared"] += 1
                banks[(index + lane % stages) % tiers.banks] += 1
            else:
                tier[-1].append(2)
                counts["memory"] += 1
                far += 1
        fullest = max(banks.values(), default=0)
        counts["conflicts"] += max(0, fullest - 1)
        cycles.append(max(1, fullest, far))
    return tier, cycles, counts


@pytest.mark.parametrize(
    ("stages", "tiers"),
    [
        (1, Tiers(0, 1, 1)),
        (2, Tiers(3, 20, 4)),
        (3, Tiers(64, 64, 8)),
        (4, Tiers(0, 64, 64)),
        (2, Tiers(5, 6, 2)),
    ],
)
def test_look_ups(stages, tiers):
    rng = np.random.default_rng([stages, tiers.shared])
    code, use = rng.integers(0, 64, (50, 4 * stages)), rng.random((50, 4 * stages)) < 0.8
    use[3] = False
    looks = LookUps(torch.tensor(code), torch.tensor(use), stages)
    tier, cycles, counts = by_hand(code, use, stages, tiers)
    assert looks.tier(tiers).tolist() == tier
    assert looks.cycles(tiers).tolist() == cycles
    names = ("registers", "shared", "memory", "conflicts")
    assert looks.counts(tiers) == {name: counts[name] for name in names}


@pytest.mark.parametrize(
    ("words", "expected", "fault"),
    [
        ([[0x3C00, 0xBC00], [0, 0x8000]], 2, CodebookFault(0)),
        ([[0x3C00, 0xBC00], [0, 0x8000]], 3, CodebookFault.SHAPE),
        ([[0x3C01, 0]], 1, CodebookFault.MAGNITUDE),
        ([[0x7BFF, 0xFC00]], 1, CodebookFault.MAGNITUDE | CodebookFault.NONFINITE),
        ([[0x7C01, 0]], 2, CodebookFault.SHAPE | CodebookFault.NONFINITE),
        ([[0, 0], [0x7C01, 0]], 1, CodebookFault.SHAPE),
    ],
)
def test_load_fault(words, expected, fault):
    assert load_fault(torch.tensor(words), expected) == fault
