"""VqCodebookCache against golden.vqllm.cache: entries of three tiers, faults, counters, cycles.

Shown to fail with:

- ``point`` of another beat, of the next one, or of another lane; an index from bit 0 of a code
- a stage not added to the bank of a read; rows of two stages overlap; two lanes of a bank at once
- a swap without a load; bounds, or the base, of the other codebooks; the other side's registers
- entries written to the side in use; a kept word of the beat before
- a refused entry not set to 0; a response, or ``bad``, of the beat before
- the latest response in place of the worst; the highest lane first
- a load that is too short, misaligned, or above 1, in use; the fault of the load before
- conflicts not counted; one beat too many in flight
- entries beyond the last of a stage written, or looked at; the first of a word alone looked at
- the bank of a neighbour without the stage, or of another round; the row of the first one for all
- the first neighbour in each register; a word too many for a stage
- bit 114 of register 7, or bit 16 of a counter, stuck at 0
"""

import dataclasses

import numpy as np
import pytest
import torch

from golden.axi.format import RESP_DECERR, RESP_SLVERR
from golden.config import ConfigError
from golden.index.format import CodebookFault
from golden.index.vectors.codebooks import other_bits
from golden.vqllm.cache import LookUps, Tiers, large_or_nonfinite
from golden.vqllm.config import NAMED, VqShape
from golden.words import layout_word
from hdl.vqllm.cache.cache import VqCodebookCache
from hdl.vqllm.cache.config import VqCodebookCacheConfig
from tb.simulate.run import simulate
from tb.vqllm.support.codebooks import host_params, image, load

ONE = 0x3C00
COUNT = 70_000  # which a counter passes, with its bit 16
LONGEST = 80_000  # cycles for that
WRONG = (0x3C01, 0xBC01, 0x7BFF, 0x7C00, 0xFC00, 0x7C01, 0xFFFF)


def cache(size, entries, stages, lookups, **fields):
    vq = VqShape(size=size, entries=entries, stages=stages)
    return VqCodebookCacheConfig(vq=vq, lookups=lookups, **fields)


CONFIGS = {
    "default": VqCodebookCacheConfig(),
    "aqlm3": VqCodebookCacheConfig(vq=NAMED["aqlm3"], shared=1024, banks=16),
    "gptvq2": VqCodebookCacheConfig(vq=NAMED["gptvq2"], lookups=16, registers=0, banks=32),
    "one": cache(1, 4, 1, 1, registers=1, shared=1, banks=1, beats=8, data_bits=64),
    "three": cache(3, 32, 3, 6, registers=5, shared=21, banks=4, beats=9, data_bits=64),
    "four": cache(16, 64, 4, 8, registers=64, shared=64, banks=2, data_bits=256),
    # The last word of a stage has entries that go beyond the rows of the stage.
    "part_word": cache(4, 32, 2, 4, registers=0, shared=14, banks=4, data_bits=256),
    "quip4": VqCodebookCacheConfig(vq=NAMED["quip4"], lookups=4, registers=8, shared=100, banks=4),
    "most_banks": cache(2, 65536, 1, 4, registers=7, shared=100, banks=64, data_bits=1024),
}


@dataclasses.dataclass
class Phase:
    """A codebook in use: what it says, its entries, and its look-ups."""

    tiers: Tiers
    base: int
    books: np.ndarray  # (stages, entries, size) words
    code: np.ndarray  # (beats, lanes) indices of entries
    use: np.ndarray
    point: np.ndarray  # the bits below them of a lattice's codes, 0 without
    refused: list


def entry_words(rng, *shape) -> np.ndarray:
    """Words of at most 1 in magnitude."""
    words = rng.integers(0, ONE + 1, shape)
    words = np.where(rng.random(shape) < 0.1, rng.choice([0, 1, 0x3FF, ONE], shape), words)
    return words | rng.integers(0, 2, shape) << 15


def codes(rng, config, tiers, kind: str, beats: int) -> np.ndarray:
    entries, shape = config.vq.stored, (beats, config.lookups)
    if kind == "hot":
        return rng.integers(0, max(1, tiers.registers), shape)
    if kind == "near":
        return rng.integers(0, tiers.shared, shape)
    if kind == "far":
        return rng.integers(min(tiers.shared, entries - 1), entries, shape)
    if kind == "one_bank":
        return rng.integers(0, -(-tiers.shared // config.banks), shape) * config.banks % entries
    if kind == "ends":
        bounds = (tiers.registers, tiers.shared)
        ends = [0, entries - 1, *bounds, *(bound - 1 for bound in bounds)]
        return rng.choice([end for end in ends if 0 <= end < entries], shape)
    return (entries * rng.random(shape) ** rng.choice([1, 2, 4])).astype(int)


def make_phase(
    rng, config, n: int, tiers: Tiers, kind: str, beats: int, books: np.ndarray | None = None
) -> Phase:
    vq = config.vq
    if books is None:
        books = entry_words(rng, vq.stages, vq.stored, vq.size)
    code = codes(rng, config, tiers, kind, beats)
    use = rng.random(code.shape) < (1.0 if n % 3 else 0.7)
    space = vq.stages * vq.stored * config.entry_bytes + (1 << 12)
    base = 0x10_0000 + n * -(-space // 4096) * 4096
    refused = []
    if kind == "any" and tiers.shared < vq.stored:
        both = int(rng.integers(beats))  # the worse response comes first
        for lane, response in ((0, RESP_DECERR), (config.lookups - 1, RESP_SLVERR)):
            j = int(rng.integers(tiers.shared, vq.stored))
            word = base + (lane % vq.stages * vq.stored + j) * config.entry_bytes
            word -= word % (config.data_bits // 8)
            refused.append((word, word + config.data_bits // 8, response))
            code[[both, rng.integers(beats)], lane] = j
            use[both, lane] = True
        for wrong in WRONG:
            j, lane = int(rng.integers(tiers.shared, vq.stored)), int(rng.integers(config.lookups))
            books[lane % vq.stages, j, rng.integers(vq.size)] = wrong
            code[rng.integers(beats), lane] = j
    point = rng.integers(0, 1 << vq.point_bits, code.shape)
    return Phase(tiers, base, books, code, use, point, refused)


def answers(config, phase: Phase) -> tuple[list[int], LookUps]:
    looks = LookUps(torch.tensor(phase.code), torch.tensor(phase.use), config.vq.stages)
    tier, stage = looks.tier(phase.tiers).numpy(), looks.stage.numpy()
    entry = phase.books[stage, phase.code]
    address = phase.base + (stage * config.vq.stored + phase.code) * config.entry_bytes
    resp = np.zeros_like(phase.code)
    for low, high, response in phase.refused:
        hit = (tier == 2) & (address >= low) & (address < high)
        resp = np.maximum(resp, hit * response)
    entry[(resp > 0) | (tier < 0)] = 0
    large, nonfinite = large_or_nonfinite(torch.tensor(entry))
    bad = ((large | nonfinite).numpy().any(-1) & (tier == 2)).any(1)
    points = [{"point": row} if config.vq.lattice else {} for row in phase.point.tolist()]
    words = [
        layout_word(
            config.entries_layout, entry=e.tolist(), **p, resp=int(r), bad=int(b), last=n % 2
        )
        for n, (e, p, r, b) in enumerate(zip(entry, points, resp.max(1), bad, strict=True))
    ]
    return words, looks


def bad_loads(rng, config, phase: Phase) -> list[dict]:
    """Loads with faults; after each of them the block takes another."""
    sound = phase.books[:, : phase.tiers.shared].reshape(-1, config.vq.size)
    found = []
    for wrong in WRONG:
        words = sound.copy()
        words[rng.integers(len(words)), rng.integers(config.vq.size)] = wrong
        found.append(load(config, phase.tiers, phase.base, words))
    last = (phase.tiers.shared - 1) % config.load_entries + 1  # entries of the last beat
    first = min(phase.tiers.shared, config.load_entries)
    for words in (
        sound[:-last], np.concatenate([sound, sound[:first]]), np.concatenate([sound] * 2),
    ):  # fmt: skip
        if len(words):
            found.append(load(config, phase.tiers, phase.base, words))
    plain = load(config, phase.tiers, phase.base, sound)
    shape = int(CodebookFault.SHAPE)
    refused = [
        {"shared": 0, "registers": 0, "base": phase.base},
        {"shared": phase.tiers.shared, "registers": phase.tiers.registers, "base": phase.base + 1},
    ]
    if config.registers:
        refused.append({"shared": config.registers - 1, "registers": config.registers,
                        "base": phase.base})  # fmt: skip
    found += [
        plain | {"info": layout_word(config.info_layout, **info), "fault": shape}
        for info in refused
    ]
    return found


def as_params(config, rng, phase: Phase, loads: list[dict]) -> dict:
    """The facts of a phase that the bench knows."""
    words, looks = answers(config, phase)
    uses = (phase.use << np.arange(config.lookups)).sum(1)
    code = phase.code << config.vq.point_bits | phase.point
    return {
        "loads": loads,
        "base": phase.base,
        "memory": image(config, rng, phase.books),
        "refused": phase.refused,
        "look": [
            layout_word(config.look_layout, code=code, use=int(use), switch=n == 0, last=n % 2)
            for n, (code, use) in enumerate(zip(code.tolist(), uses, strict=True))
        ],
        "entry": words,
        "cycles": looks.cycles(phase.tiers).tolist(),
        "counts": looks.counts(phase.tiers),
    }


def phases(config, rng) -> list[dict]:
    most = Tiers(config.registers, config.shared, config.banks)
    least = Tiers(0, 1, config.banks)
    kinds = ["near", "any", "ends", "hot", "far", "one_bank", "any", "ends", "any"]
    # Other bits in the registers of both buffers, and look-ups of all of them.
    kinds += ["hot"] * (4 if config.registers else 0)
    found, books = [], {}
    for n, kind in enumerate(kinds):
        shared = int(rng.integers(1, config.shared + 1))
        some = Tiers(int(rng.integers(0, min(config.registers, shared) + 1)), shared, config.banks)
        tiers = least if n == 4 else most if n < 6 or n > 8 else some
        # The last two: with the bits that the registers of their buffer had not.
        before = other_bits(books[n - 2]) if n > 10 else None
        phase = make_phase(rng, config, n, tiers, kind, 24 + 8 * (n % 3), before)
        books[n] = phase.books
        sound = phase.books[:, : tiers.shared].reshape(-1, config.vq.size)
        loads = bad_loads(rng, config, phase) if n in (1, 8) else []
        loads.append(load(config, tiers, phase.base, sound))
        found.append(as_params(config, rng, phase, loads))
    return found


def repeated(config, phase: dict, counter: str) -> dict:
    """The look-ups of a phase until a counter has passed 65,536."""
    times = COUNT // max(phase["counts"][counter], 1) + 1
    layout = config.look_layout
    switch = 1 << layout["switch"].offset
    again = [word & ~switch for word in phase["look"]]
    return phase | {
        "look": phase["look"] + again * (times - 1),
        "entry": phase["entry"] * times,
        "counts": {name: count * times for name, count in phase["counts"].items()},
    }


def long_phases(config, found: list[dict]) -> list[dict]:
    """Chooses of phases on chip one per counter that grows fast enough."""
    on_chip = [phase for phase in found if not phase["counts"]["memory"]]
    chosen = []
    for counter in ("registers", "shared", "conflicts"):
        phase = max(on_chip, key=lambda phase: phase["counts"][counter] / sum(phase["cycles"]))
        if sum(phase["cycles"]) * COUNT < LONGEST * phase["counts"][counter]:
            chosen.append(repeated(config, phase, counter))
    return chosen


def alone(config, rng) -> dict:
    """One look-up per beat, on chip."""
    tiers = Tiers(config.registers, config.shared, config.banks)
    phase = make_phase(rng, config, 20, tiers, "near", 12)
    phase.use = np.arange(config.lookups) == rng.integers(0, config.lookups, (12, 1))
    sound = phase.books[:, : tiers.shared].reshape(-1, config.vq.size)
    return as_params(config, rng, phase, [load(config, tiers, phase.base, sound)])


@pytest.mark.telling("one", "three", "part_word")
@pytest.mark.parametrize("name", CONFIGS)
def test_codebook_cache(name, seed):
    config = CONFIGS[name]
    rng = np.random.default_rng([seed, 161])
    found = phases(config, rng)
    params = {
        "phases": found,
        "long": long_phases(config, found),
        "alone": alone(config, rng),
        **host_params(config),
    }
    simulate(VqCodebookCache(config), "tb.vqllm.tb_codebook_cache", params=params, seed=seed)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"lookups": 7}, "lookups must be a multiple of vq.stages = 2, not 7"),
        ({"shared": 257}, "shared must be 1..256, not 257"),
        ({"registers": 33, "shared": 32}, "registers must be 0..32, not 33"),
        ({"data_bits": 64}, "data_bits must be a power of two in 128..1024, not 64"),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ConfigError) as error:
        VqCodebookCacheConfig(**wrong)
    assert str(error.value) == f"VqCodebookCacheConfig.{message}"
