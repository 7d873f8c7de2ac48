"""Jobs of an engine that fetches its matrices: images, streams, and what a fault spoils."""

import dataclasses
import functools
import itertools
from collections import Counter
from typing import Any

import numpy as np
import torch

from golden.axi.format import RESP_DECERR, RESP_SLVERR
from golden.fp16.format import FP16
from golden.index.format import SCALE_EXPONENT_MIN
from golden.vqllm.format import DESCRIPTOR, HEADER, Fault, ImageShape, Plan
from golden.vqllm.image import Image, image, part_look_ups, tiers
from golden.vqllm.matrix import VqMatrix
from golden.vqllm.product import by_dequantizing
from golden.vqllm.vectors.matrices import UNEVEN, lane_beats, uneven_x
from golden.words import layout_word

_NONE = Fault(0)
COUNTED = ("registers", "shared", "memory", "conflicts")


@dataclasses.dataclass
class EngineJob:
    """A matrix in memory, its plan and vectors; a fault changes what memory has and says.

    refused: (first address, last + 1, response); wrong: rows that are NaN
    """

    config: Any  # of the engine
    matrix: VqMatrix
    plan: Plan
    x: np.ndarray
    image: Image
    shape: ImageShape
    wrong: np.ndarray
    refused: list = dataclasses.field(default_factory=list)
    fault: Fault = _NONE
    resp: int = 0
    x_words: list = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.x_words = lane_beats(self.config.core, self.x)

    @property
    def parts(self):
        """(number, part) of those with codes."""
        return [(n, p) for n, p in enumerate(self.image.layout.parts) if p.beats and p.rows]

    def looks(self, part):
        return part_look_ups(self.matrix, part, self.shape)

    def counts(self) -> dict[str, int]:
        """Look-ups of all parts by tier, and conflicts."""
        where = tiers(self.plan, self.config.core.cache.banks)
        counts = Counter(dict.fromkeys(COUNTED, 0))
        for _, part in self.parts:
            counts.update(self.looks(part).counts(where))
        return dict(counts)

    def after(self, align: int) -> int:
        """The first multiple of ``align`` after the image and a page of junk."""
        return self.image.base + -(-(self.image.layout.size + 4096) // align) * align

    def refuse(self, rng, address: int) -> None:
        """The word at an address in the image."""
        size = self.shape.word_bytes
        self.resp = int(rng.choice([RESP_SLVERR, RESP_DECERR]))
        first = self.image.base + address // size * size
        self.refused.append((first, first + size, self.resp))

    def spoil(self, parts) -> None:
        for part in parts:
            self.wrong[list(part.rows)] = True

    def patch(self, fields, at: int, **values) -> None:
        """Other values in a descriptor or header."""
        size = -(-sum(fields.values()) // 8)
        word = int.from_bytes(self.image.data[at : at + size].tobytes(), "little")
        place = 0
        for name, bits in fields.items():
            if name in values:
                word = word & ~((1 << bits) - 1 << place) | values[name] << place
            place += bits
        self.image.data[at : at + size] = np.frombuffer(word.to_bytes(size, "little"), np.uint8)

    def descriptor(self, number: int) -> int:
        return number * self.shape.descriptor_bytes

    def params(self) -> dict:
        """Returns what the bench offers and expects."""
        config, job = self.config, self.image.job
        y, bad = by_dequantizing(torch.tensor(self.x), self.matrix)
        vectors, rows = len(self.x), self.matrix.shape.rows
        words = np.zeros((rows, config.core.batch), dtype=np.int64)
        words[:, :vectors] = y.numpy().T
        words[self.wrong] = FP16.canonical_nan
        fault = self.fault | (Fault.NONFINITE if bool(bad.any()) else _NONE)
        counts = dict.fromkeys(COUNTED, 0) if self.fault else self.counts()
        if self.fault & Fault.JOB:
            words = np.full((1, config.core.batch), FP16.canonical_nan)
        # Vectors that are not there multiply what the buffer had; their results are not compared.
        known = [0xFFFF * (b < vectors) for b in range(config.core.batch)]
        y_layout, status = config.finish.y_layout, config.status_layout
        fields = {name: job[name] for name, _ in config.job_layout}
        return {
            "base": self.image.base, "memory": self.image.data.tobytes().hex(),
            "refused": self.refused, "x": self.x_words,
            "job": [layout_word(config.job_layout, **fields)],
            "y": [layout_word(y_layout, word=row, last=int(n == len(words) - 1))
                  for n, row in enumerate(words.tolist())],
            "masks": [layout_word(y_layout, word=known, last=1)] * len(words),
            "status": [layout_word(status, fault=int(fault), resp=self.resp, **counts)],
            "status_mask": [layout_word(
                status, fault=(1 << len(Fault)) - 1, resp=3,
                **{name: (1 << 40) - 1 for name in COUNTED if not self.fault},
            )],
        }  # fmt: skip


def random_x(rng, vectors: int, columns: int) -> np.ndarray:
    return rng.normal(0, 1, (vectors, columns)).astype(np.float16).view(np.uint16).astype(np.int64)


def engine_job(
    config, matrix: VqMatrix, plan: Plan, x, *, tensor=1, base=0, rows=None
) -> EngineJob:
    """A job without a fault. ``rows``: most rows of a stripe in a core, by default all it has."""
    shape = dataclasses.replace(config.image, rows=rows or config.core.rows)
    found = image(matrix, shape, plan, tensor=tensor, base=base)
    wrong = np.zeros(matrix.shape.rows, dtype=bool)
    return EngineJob(config, matrix, plan, x, found, shape, wrong)


# Faults. Each changes a job; False: the job cannot have it.


def _any(rng, some):
    return some[rng.integers(len(some))]


def _same_tile(job, tile: int):
    return [part for _, part in job.parts if part.tile == tile]


def _no_descriptor(job, rng):
    number, part = _any(rng, job.parts)
    job.refuse(rng, job.descriptor(number))
    job.spoil([part])
    job.fault = Fault.NO_DESCRIPTOR


def _other_tensor(job, rng):
    number, part = _any(rng, job.parts)
    job.patch(DESCRIPTOR, job.descriptor(number), tensor=job.image.job["tensor"] ^ 4)
    job.spoil([part])
    job.fault = Fault.TENSOR


def _other_codebook(job, rng):
    _, part = _any(rng, job.parts)
    wrong = {"tile": part.tile ^ 1} if rng.random() < 0.5 else {"tensor": 9}
    job.patch(HEADER, job.image.layout.books[part.tile], **wrong)
    job.spoil(_same_tile(job, part.tile))
    job.fault = Fault.TENSOR


def _switch(job, rng, load: bool):
    """The load of a part that is not the first of its core is changed; it was ``load``.

    If there is one before a part of the same tile, which is right all the same, it is such a part.
    """
    some, same = [], []
    for core in range(job.shape.cores):
        own = [each for each in job.parts if each[1].core == core]
        for each, behind in itertools.zip_longest(own[1:], own[2:]):
            if each[1].load == load:
                some.append(each)
                if behind and not behind[1].load:
                    same.append(each)
    if not some:
        return False
    number, part = _any(rng, same or some)
    job.patch(DESCRIPTOR, job.descriptor(number), load=int(not load))
    job.spoil([part])
    job.fault = Fault.SWITCH
    return True


_no_switch = functools.partial(_switch, load=True)
_switch_in_mid_tile = functools.partial(_switch, load=False)


def _shape(job, rng):
    cache, core = job.config.core.cache, job.config.core
    number, part = _any(rng, job.parts)
    wrong = _any(rng, [
        {"shared": 0}, {"shared": cache.shared + 1}, {"registers": cache.registers + 1},
        {"registers": 1, "shared": 0}, {"tail": 0}, {"tail": core.vectors + 1}, {"words": 0},
        {"beats": core.sums.words // core.pieces + 1}, {"offset": core.sums.words // core.pieces},
        {"code": job.image.base + job.image.layout.codes[number] + 2},
        {"book": job.image.base + 4},
    ])  # fmt: skip
    job.patch(DESCRIPTOR, job.descriptor(number), **wrong)
    job.spoil([part])
    job.fault = Fault.SHAPE


def beyond_x(job, rng):
    """A part that ends beyond the vectors of the job, though not beyond those of the engine."""
    number, part = _any(rng, job.parts)
    beats = job.image.job["words"] // job.config.core.pieces
    job.patch(DESCRIPTOR, job.descriptor(number), offset=beats + 1 - part.beats)
    job.spoil([part])
    job.fault = Fault.SHAPE


def _few_codes(job, rng):
    shape = job.shape
    some = [(n, p) for n, p in job.parts if p.code_bytes(shape) > shape.word_bytes]
    if not some:
        return False
    number, part = _any(rng, some)
    words = part.code_bytes(shape) // shape.word_bytes - 1
    job.patch(DESCRIPTOR, job.descriptor(number), words=words)
    whole = words * shape.word_bytes // shape.beat_bytes // part.beats
    job.wrong[list(part.rows)[whole:]] = True
    job.fault = Fault.SHAPE
    return True


def _more_codes(job, rng):
    """Codes beyond the rows are dropped."""
    number, part = _any(rng, job.parts)
    shape = job.shape
    words = part.code_bytes(shape) // shape.word_bytes + int(rng.integers(1, 4))
    job.patch(DESCRIPTOR, job.descriptor(number), words=words)


def _book_entry(job, tile: int, stage: int, entry: int) -> int:
    shape = job.shape
    place = stage * shape.vq.stored + entry
    return job.image.layout.books[tile] + shape.word_bytes + place * shape.entry_bytes


def _loaded_entry(job, rng):
    _, part = _any(rng, job.parts)
    stage, entry = rng.integers(job.shape.vq.stages), rng.integers(job.plan.shared)
    return part, _book_entry(job, part.tile, int(stage), int(entry))


def _wrong_entry(job, rng):
    part, at = _loaded_entry(job, rng)
    word = int(rng.choice([0x3C01, 0xFC00, 0x7E00]))
    job.image.data[at : at + 2] = np.frombuffer(word.to_bytes(2, "little"), np.uint8)
    job.spoil(_same_tile(job, part.tile))
    job.fault = Fault.CODEBOOK


def _no_codebook(job, rng):
    part, at = _loaded_entry(job, rng)
    if rng.random() < 0.3:
        at = job.image.layout.books[part.tile]
    job.refuse(rng, at)
    job.spoil(_same_tile(job, part.tile))
    job.fault = Fault.NO_CODEBOOK


def _beats_wrong(job, part, beats) -> None:
    """Rows of a part, of which some beats are wrong."""
    rows = np.asarray(beats).reshape(len(part.rows), part.beats).any(1)
    job.wrong[np.array(part.rows)[rows]] = True


def _few_entries(job, rng):
    """A codebook with fewer entries than codes may name."""
    tile = _any(rng, job.parts)[1].tile
    some = _same_tile(job, tile)
    most = max(int(job.looks(part).code.max()) for part in some)
    if most < job.plan.shared:
        return False
    entries = int(rng.integers(job.plan.shared, most + 1))
    job.patch(HEADER, job.image.layout.books[tile], entries=entries)
    for part in some:
        looks = job.looks(part)
        _beats_wrong(job, part, ((looks.code >= entries) & looks.use).any(1).numpy())
    job.fault = Fault.CODE
    return True


def _no_code(job, rng):
    number, part = _any(rng, job.parts)
    shape = job.shape
    count = len(part.rows) * part.beats
    byte = int(rng.integers(count * shape.beat_bytes)) // shape.word_bytes * shape.word_bytes
    job.refuse(rng, job.image.layout.codes[number] + byte)
    starts = np.arange(count) * shape.beat_bytes
    hit = (starts < byte + shape.word_bytes) & (starts + shape.beat_bytes > byte)
    _beats_wrong(job, part, hit)
    job.fault = Fault.NO_CODE


def _far(job, rng):
    """(tile, stage, entry) of a look-up in memory."""
    some = []
    where = tiers(job.plan, 1)
    for _, part in job.parts:
        looks = job.looks(part)
        for beat, lane in torch.argwhere(looks.tier(where) == 2)[:50].tolist():
            some.append((part.tile, lane % looks.stages, int(looks.code[beat, lane])))
    return _any(rng, some) if some else None


def _spoil_entries(job, tile, stage, low, high) -> None:
    """Rows that look up entries low..high - 1 of a stage."""
    for part in _same_tile(job, tile):
        looks = job.looks(part)
        hit = (looks.code >= max(low, job.plan.shared)) & (looks.code < high) & looks.use
        _beats_wrong(job, part, (hit & (looks.stage == stage)).any(1).numpy())


def _wrong_far_entry(job, rng):
    found = _far(job, rng)
    if found is None:
        return False
    tile, stage, entry = found
    at = _book_entry(job, tile, stage, entry)
    job.image.data[at : at + 2] = np.frombuffer((0x7C00).to_bytes(2, "little"), np.uint8)
    _spoil_entries(job, tile, stage, entry, entry + 1)
    job.fault = Fault.CODEBOOK
    return True


def _no_entry(job, rng):
    found = _far(job, rng)
    if found is None:
        return False
    shape = job.shape
    tile, stage, entry = found
    first = entry // (count := shape.word_bytes // shape.entry_bytes) * count
    # The load must not read this word.
    if first < job.plan.shared or first + count > shape.vq.stored:
        return False
    job.refuse(rng, _book_entry(job, tile, stage, entry))
    _spoil_entries(job, tile, stage, first, first + count)
    job.fault = Fault.NO_ENTRY
    return True


def _no_scale(job, rng):
    if not job.config.scaled:
        return False
    words = job.shape.word_bytes // 2
    row = int(rng.integers(job.matrix.shape.rows))
    job.refuse(rng, job.image.layout.scales + 2 * row)
    first = row // words * words
    job.wrong[first : first + words] = True
    job.fault = Fault.NO_SCALE
    return True


def _after(config) -> int:
    """More words than a vector may have, or 0 where the bits of the field pass none."""
    return (config.core.sums.words + 1) % (1 << config.job_layout["words"].width)


# Numbers of a job that are out of range; an engine gives one row for it, so all of them run.
_BAD_JOBS = (
    lambda job: {"rows": 0},
    lambda job: {"rows": (1 << 20) + 1},
    lambda job: {"stripe": 0},
    lambda job: {"stripe": job.config.core.rows * (job.config.cores // job.plan.split) + 1},
    lambda job: {"pieces": 0},
    lambda job: {"split": 7},
    lambda job: {"words": 0},
    lambda job: {"words": _after(job.config)},
    lambda job: {"split": job.config.cores.bit_length()},
    lambda job: {"descriptors": job.image.job["descriptors"] + 2},
    lambda job: {"exponent": SCALE_EXPONENT_MIN - 1},
    lambda job: {"exponent": -16},
)


def _bad_job(wrong, job, rng):
    job.image.job.update(wrong(job))
    job.fault = Fault.JOB


def _bad_x(job, rng):
    x = job.x
    x[rng.integers(len(x)), rng.integers(x.shape[1])] = rng.choice([0x7C00, 0xFE01])
    job.x_words = lane_beats(job.config.core, x)


def _other_length(wrong, job, rng):
    """Vectors of other words than the job states, or more of them than a buffer holds."""
    words = uneven_x(rng, job.config.core.sums, job.x_words, len(job.x), wrong)
    if words is None:
        return False
    job.x_words = words
    job.wrong[:] = True
    job.fault = Fault.LENGTH
    return True


SPOILS = (
    _no_descriptor, _other_tensor, _other_codebook, _no_switch, _switch_in_mid_tile, _shape,
    _few_codes, _more_codes, _wrong_entry, _no_codebook, _few_entries, _no_code, _wrong_far_entry,
    _no_entry, _no_scale, *(functools.partial(_bad_job, wrong) for wrong in _BAD_JOBS),
    _bad_x,
    *(functools.partial(_other_length, wrong) for wrong in UNEVEN),
)  # fmt: skip
