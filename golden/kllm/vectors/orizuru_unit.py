"""Keys for KllmOrizuruUnit, with the winners of golden."""

import numpy as np
import torch

from golden.kllm.orizuru import select_unit
from golden.words import pack

SETS = 1200


def unit_vectors(config, seed):
    rng = np.random.default_rng([seed, 20])
    shape = (SETS, config.leaves)

    def random_keys():
        """Random, of few values, or the ends of the range: ties are frequent."""
        kind = rng.integers(0, 3, (SETS, 1))
        few = rng.integers(0, 3, shape) + 0x7FFF
        ends = rng.integers(0, 2, shape) * 0xFFFF
        return np.choose(kind, [rng.integers(0, 1 << 16, shape), few, ends])

    def random_valid():
        return rng.random(shape) < rng.choice([0.0, 0.1, 0.5, 1.0], (SETS, 1))

    keys = [random_keys()] if config.shared else [random_keys(), random_keys()]
    carries = [rng.integers(0, 1 << config.carry_bits, shape) for _ in keys]
    valid = [random_valid(), random_valid()]
    tag = rng.integers(0, 1 << config.tag_bits, SETS)
    fields: list = []
    out: list = []
    mask: list = []
    for key, carry in zip(keys, carries, strict=True):
        fields += [(key, 16)] + ([(carry, config.carry_bits)] if config.carry_bits else [])
    fields += [(v.astype(int), 1) for v in valid]
    for tree, smallest in enumerate((False, True)):
        key, carry = keys[tree % len(keys)], carries[tree % len(keys)]
        winners, any_valid = select_unit(
            torch.as_tensor(key), torch.as_tensor(valid[tree]), smallest=smallest
        )
        index, found = winners.numpy()[:, None], any_valid.numpy()
        winner = [(np.take_along_axis(key, index, 1), 16), (index, config.index_bits), (found, 1)]
        if config.carry_bits:
            winner.append((np.take_along_axis(carry, index, 1), config.carry_bits))
        out += winner
        mask += [
            (np.where(found | (position == 2), (1 << bits) - 1, 0), bits)
            for position, (_, bits) in enumerate(winner)
        ]
    if config.tag_bits:
        fields.append((tag, config.tag_bits))
        out.append((tag, config.tag_bits))
        mask.append((np.full(SETS, (1 << config.tag_bits) - 1), config.tag_bits))
    return {"i": pack(*fields), "o": pack(*out), "mask": pack(*mask)}
