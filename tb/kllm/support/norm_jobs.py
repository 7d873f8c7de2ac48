"""Tokens for the norm statistics: jobs with and without faults, and codebooks."""

import numpy as np
import torch

from golden.fp16.format import FP32
from golden.kllm.format import Status, beats
from golden.kllm.norms import norm_statistics
from golden.kllm.records import Tokens

ONE, INF, NAN = 0x3C00, 0x7C00, 0x7E00
EPSILON = int(np.float32(1e-5).view(np.uint32))


def codebooks(rng, entries) -> dict[str, tuple[np.ndarray, bool]]:
    """Packets of each phase, and whether they are valid."""
    random = rng.integers(0, 2, entries) << 15 | rng.integers(0, ONE + 1, entries)
    above = random.copy()
    above[rng.integers(0, entries - 1)] = 0xBC01
    trained = np.sort(rng.uniform(-1, 1, entries)).astype(np.float16).view(np.uint16)
    trained = trained.astype(np.int64)
    return {
        "none": (np.zeros(0, np.int64), False),
        "trained": (trained, True),
        "short": (trained[:-1], False),
        "ones": (np.resize([ONE, 0xBC00], entries), True),
        "long": (np.resize(trained, entries + 1), False),
        "random": (random, True),
        "above": (above, False),
        "longer": (np.resize(trained, 2 * entries + 2), False),
        "subnormal": (rng.integers(0, 2, entries) << 15 | rng.integers(0, 0x400, entries), True),
        "last_above": (np.concatenate([trained[:-1], [0x3C01]]), False),
        "again": (trained, True),
    }


class Job:
    """One token as the block sees it. cut: beats before ``last``; told: outliers of the job."""

    def __init__(self, rng, config, length, **given):
        codes = 2**config.bits_a
        self.config, self.length = config, length
        self.index = given.get("index")
        if self.index is None:
            self.index = rng.integers(0, codes, length)
        self.index = np.broadcast_to(self.index, length)
        share = given.get("share", 0.1)
        self.outlier = rng.random(length) < share
        drawn = rng.integers(0, 2, length) << 15 | rng.integers(0x3000, 0x5000, length)
        self.x = np.resize(given.get("x", drawn), length) if length else drawn
        self.s = given.get("s", int(rng.integers(0x3000, 0x4800)))
        self.epsilon = given.get("epsilon", EPSILON)
        self.layer_norm = given.get("layer_norm", bool(rng.integers(0, 2)))
        self.told = max(0, int(self.outlier.sum()) + given.get("more_outliers", 0))
        self.count = beats(length, config.elements)
        self.cut = max(0 if length == 0 else 1, self.count + given.get("more_beats", 0))
        size = max(self.count, self.cut) * config.elements
        pad = rng.integers(0, codes, size)
        pad[:length] = self.index
        self.beat_index = pad[: self.cut * config.elements].reshape(self.cut, config.elements)
        mask = rng.integers(0, 2, size)
        mask[:length] = self.outlier
        self.beat_mask = mask[: self.cut * config.elements].reshape(self.cut, config.elements)
        self.words = np.resize(self.x[self.outlier], self.told) if self.outlier.any() else drawn
        self.words = self.words[: self.told] if len(self.words) else np.full(self.told, ONE)
        if len(self.words) < self.told:
            self.words = np.resize(self.words, self.told)

    def token(self, valid: bool = True) -> Tokens:
        """The token; without a valid codebook all its indices are 0."""
        shape = (1, self.length)
        return Tokens(
            torch.tensor(self.index if valid else 0 * self.index).reshape(shape),
            torch.tensor(self.outlier).reshape(shape),
            torch.tensor(self.x).reshape(shape),
            torch.tensor([self.s]),
        )

    def golden(self, codebook, valid) -> tuple[int, int, int]:
        """(mean, rms_reciprocal, status)."""
        nan = FP32.canonical_nan
        loaded = codebook if valid else np.zeros(4, np.int64)
        token = self.token(valid)
        mean, rms_reciprocal, status = norm_statistics(
            token, torch.tensor(loaded), self.epsilon, self.layer_norm, self.config.k_max
        )
        special = self.s & INF == INF or self.epsilon & FP32.infinity == FP32.infinity
        header = Status(0 if valid else Status.CODEBOOK_MISSING)
        header |= Status.NONFINITE if special else Status(0)
        header |= Status.LENGTH_ZERO if self.length == 0 else Status(0)
        header |= Status.LENGTH_TOO_LONG if self.length > self.config.k_max else Status(0)
        if header:
            assert not valid or int(status) == header  # golden's word
            return nan, nan, int(header)
        if self.clean:
            return int(mean), int(rms_reciprocal), int(status)
        found = Status(0)
        if self.cut != self.count:
            found |= Status.LAST_MISPLACED
        if int(self.outlier[: self.cut * self.config.elements].sum()) != self.told:
            found |= Status.OUTLIER_COUNT
        if (self.words & INF == INF).any():
            found |= Status.NONFINITE
        if found:
            return nan, nan, int(found)
        return int(mean), int(rms_reciprocal), int(status)

    @property
    def clean(self) -> bool:
        return self.cut == self.count and self.told == int(self.outlier.sum())


def jobs_of(rng, config, few) -> list[Job]:
    """Tokens of a phase; ``few``: none of the longest."""
    most, codes = config.k_max, 2**config.bits_a
    width = config.elements

    def job(length, **given):
        return Job(rng, config, length, **given)

    short = [1, 2, width, width + 1, min(3 * width, most), min(5 * width + 2, most)]
    jobs = [job(n, layer_norm=kind) for n in short for kind in (False, True)]
    middle = min(90, most)
    for kind in (False, True):
        jobs += [job(middle, layer_norm=kind, s=s) for s in (0, 0x8000, 1, 0x3FF, 0x7BFF, 0xBC00)]
        jobs += [job(middle, layer_norm=kind, share=share) for share in (0, 0.5, 1)]
        # constant tokens: the variance is 0, but for roundings
        jobs += [job(middle, layer_norm=kind, index=j, share=0) for j in range(codes)]
        jobs += [job(n, layer_norm=kind, share=1, x=x) for n in (7, middle) for x in (
            0x7BFF, 0xFBFF, 0x0001, 0x83FF, 0, [0x7BFF, 0xFBFF], [0x7BFF, 0x0001], 0x4A37,
        )]  # fmt: skip
        for epsilon in (0, 1, 0x80000000, 0xB727C5AC, 0x7F7FFFFF):
            jobs += [job(middle, layer_norm=kind, epsilon=epsilon)]
            jobs += [job(3, layer_norm=kind, epsilon=epsilon, s=0, share=0)]
    # faults
    jobs += [job(0), job(0, s=NAN), job(0, more_outliers=3), job(most + 1, share=0.02)]
    jobs += [job(most + width, share=0, s=INF)]
    if most < 1000:
        # more outliers than a count of k_max can hold
        jobs += [job(2 * most + 3, share=1) for _ in range(4)]
    jobs += [job(middle, s=s) for s in (INF, 0xFC00, NAN)]
    jobs += [job(middle, epsilon=e) for e in (0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001)]
    jobs += [job(middle, share=0.3, x=[ONE, ONE, x]) for x in (INF, 0xFC00, NAN, 0xFC01)]
    jobs += [job(middle, more_beats=n, share=share) for n in (-1, 1, 4) for share in (0, 0.2)]
    jobs += [job(middle, more_outliers=n, share=0.3) for n in (-1, 1, 5)]
    jobs += [job(middle, more_beats=2, more_outliers=1, share=0.3, x=NAN)]
    jobs += [job(int(rng.integers(1, most + 1) if most < 1000 else 200)) for _ in range(8)]
    jobs = [jobs[n] for n in rng.permutation(len(jobs))]
    if few:
        jobs = jobs[:14]
    else:
        extreme = [{"share": 1, "x": x} for x in (0x7BFF, 0xFBFF, 0x0001, 0x7BFE)]
        extreme += [{"share": 0, "index": j, "s": 0x7BFF} for j in (0, codes - 1)]
        extreme += [{"share": 0.01}, {"share": 0, "s": 1}]
        jobs += [job(most, layer_norm=bool(n % 2), **given) for n, given in enumerate(extreme)]
    return jobs
