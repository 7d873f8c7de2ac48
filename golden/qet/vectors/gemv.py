"""Jobs of QetDequantGemv: matrices in memory, vectors, and what a fault spoils."""

import dataclasses
from typing import Any

import numpy as np
import torch

from golden.axi.format import RESP_DECERR, RESP_SLVERR
from golden.fp16.format import FP16
from golden.qet.config import LIMIT, QetShape, swap_bits
from golden.qet.format import Fault
from golden.qet.image import Image, image
from golden.qet.matrix import QetMatrix, StageCodes
from golden.qet.product import product
from golden.qet.swap import maps_of_words
from golden.vqllm.vectors.matrices import x_beats
from golden.words import layout_word


def random_matrix(shape, rng, rows: int, columns: int, entries=None) -> QetMatrix:
    """Any codes, maps and entries; entries: of each stage, by default random numbers of them."""
    stages = tuple(
        dataclasses.replace(
            stage, entries=entries[n] if entries else int(rng.integers(1, stage.entries + 1))
        )
        for n, stage in enumerate(shape.stages)
    )
    whole = QetShape(
        rows=rows, columns=columns, element_bits=16, group=shape.group, stages=stages,
        entry_bits=shape.entry_bits,
    )  # fmt: skip
    made, most = [], (1 << shape.entry_bits) - 1
    for stage in stages:
        size = whole.groups, stage.entries, shape.group
        ranges = np.zeros((0, 2), dtype=int)
        values = rng.integers(0, 0x4001, size) | rng.integers(0, 2, size) << 15
        if shape.entry_bits:
            low = int(rng.integers(-LIMIT, LIMIT + 1))
            highest = (LIMIT - low) // most + 1  # a part more than -2..2 has
            step = int(rng.integers(0, highest + 1))
            if rng.random() < 0.3:
                low = int(rng.choice([-LIMIT, LIMIT]))
                step = (LIMIT - low) // most + 1
            ranges = np.array([[low, step]])
            values = rng.integers(0, most + 1, size)
        bits = rng.integers(0, 2, (rows, whole.padded >> stage.levels, swap_bits(stage.levels)))
        made.append(
            StageCodes(
                stage,
                torch.tensor(values),
                torch.tensor(ranges),
                torch.tensor(rng.integers(0, stage.entries, (rows, whole.groups))),
                maps_of_words(torch.tensor(bits).bool(), stage.levels),
            )
        )
    return QetMatrix(whole, tuple(made), int(rng.integers(-8, 16)))


@dataclasses.dataclass
class GemvJob:
    """A matrix in memory and its vectors; a fault changes what memory has and says.

    refused: (first address, last + 1, response); wrong: rows that are NaN
    """

    config: Any  # of the engine
    matrix: QetMatrix
    x: np.ndarray
    image: Image
    wrong: np.ndarray
    refused: list = dataclasses.field(default_factory=list)
    fault: Fault = Fault(0)  # noqa: RUF009
    resp: int = 0

    @property
    def memory(self):
        return self.config.image

    def end(self) -> int:
        """The first word after the image and a page of junk."""
        size = self.memory.word_bytes
        return self.image.base + -(-(self.image.data.size + 4096) // size) * size

    def refuse(self, rng, address: int) -> None:
        size = self.memory.word_bytes
        self.resp = int(rng.choice([RESP_SLVERR, RESP_DECERR]))
        first = address // size * size
        self.refused.append((first, first + size, self.resp))
        # Memory may give any bytes with an error; they are no fault of their own.
        at = first - self.image.base
        junk = rng.integers(0, 256, size) if rng.random() < 0.5 else 255
        self.image.data[at : at + size] = junk

    def params(self) -> dict:
        config, batch = self.config, self.config.batch
        y, bad = product(torch.tensor(self.x), self.matrix)
        rows, vectors = self.matrix.shape.rows, len(self.x)
        words = np.zeros((rows, batch), dtype=np.int64)
        words[:, :vectors] = y.numpy().T
        words[self.wrong] = FP16.canonical_nan
        if self.fault & Fault.JOB:
            words = np.full((1, batch), FP16.canonical_nan)
        fault = self.fault | (Fault.NONFINITE if bool(bad.any()) else Fault(0))
        # Vectors that are not there multiply what the buffer had; their results are not compared.
        known = [0xFFFF * (b < vectors) for b in range(batch)]
        y_layout, status = config.finish.y_layout, config.status_layout
        fields = {name: self.image.job[name] for name, _ in config.job_layout}
        return {
            "base": self.image.base, "memory": self.image.data.tobytes().hex(),
            "refused": self.refused, "x": x_beats(config, self.x),
            "job": [layout_word(config.job_layout, **fields)],
            "y": [layout_word(y_layout, word=row, last=int(n == len(words) - 1))
                  for n, row in enumerate(words.tolist())],
            "masks": [layout_word(y_layout, word=known, last=1)] * len(words),
            "status": [layout_word(status, fault=int(fault), resp=self.resp)],
            "status_mask": [layout_word(status, fault=(1 << len(Fault)) - 1, resp=3)],
        }  # fmt: skip


def gemv_job(config, matrix: QetMatrix, x: np.ndarray, base: int = 0) -> GemvJob:
    """A job without a fault."""
    wrong = np.zeros(matrix.shape.rows, dtype=bool)
    return GemvJob(config, matrix, x, image(matrix, config.image, base), wrong)


# Faults. Each changes a job; False: the job cannot have it.


def _no_codebook(job, rng):
    """A word of the codebooks; all rows meet all tiles."""
    job.refuse(rng, int(rng.integers(job.image.job["books"], job.image.job["codes"])))
    job.wrong[:] = True
    job.fault = Fault.NO_CODEBOOK


def _no_code(job, rng, is_first=False):
    """A word of the rows of a tile."""
    size, count = job.memory.row_bytes, job.matrix.shape.rows
    tile = int(rng.integers(job.image.job["tiles"]))
    first = job.image.job["codes"] + tile * job.memory.row_words(count) * job.memory.word_bytes
    at = int(rng.integers(count * size)) // job.memory.word_bytes * job.memory.word_bytes
    at *= not is_first
    job.refuse(rng, first + at)
    starts = np.arange(count) * size
    job.wrong |= (starts < at + job.memory.word_bytes) & (starts + size > at)
    job.fault = Fault.NO_CODE


def _no_first_code(job, rng):
    _no_code(job, rng, is_first=True)


def _wrong_entry(job, rng):
    if job.config.shape.entry_bits:
        return False
    shape, total = job.memory, sum(stage.entries for stage in job.matrix.shape.stages)
    tile = int(rng.integers(job.image.job["tiles"]))
    at = tile * shape.book_words(total) * shape.word_bytes
    at += int(rng.integers(total)) * shape.entry_bytes
    at += 2 * int(rng.integers(shape.shape.columns))
    word = int(rng.choice([0x4001, 0xFC00, 0x7E00]))
    job.image.data[at : at + 2] = np.frombuffer(word.to_bytes(2, "little"), np.uint8)
    job.wrong[:] = True
    job.fault = Fault.CODEBOOK
    return True


def _beyond(job, rng):
    """A code that no entry has."""
    stages = list(job.matrix.stages)
    some = [
        n
        for n, (stage, most) in enumerate(
            zip(job.matrix.shape.stages, job.config.shape.stages, strict=True)
        )
        if stage.entries < 1 << most.code_bits
    ]
    if not some:
        return False
    n = int(rng.choice(some))
    codes = stages[n].codes.clone()
    row = int(rng.integers(len(codes)))
    codes[row, int(rng.integers(codes.shape[1]))] = stages[n].stage.entries
    other = dataclasses.replace(job.matrix, stages=tuple(stages))
    stages[n] = dataclasses.replace(stages[n], codes=codes)
    damaged = dataclasses.replace(other, stages=tuple(stages))
    job.image = _image_of_beyond(damaged, job)
    job.wrong[row] = True
    job.fault = Fault.CODE
    return True


def _image_of_beyond(damaged: QetMatrix, job) -> Image:
    """The image; golden would look the code up, so each codebook gets one more entry for that."""
    longer = tuple(
        dataclasses.replace(made, entries=torch.cat((made.entries, made.entries[:, :1]), 1))
        for made in damaged.stages
    )
    found = image(dataclasses.replace(damaged, stages=longer), job.config.image, job.image.base)
    start = found.job["codes"] - found.base
    rows = found.data[start:]
    books = job.image.data[: job.image.job["codes"] - job.image.base]
    return dataclasses.replace(job.image, data=np.concatenate((books, rows)))


SPOILS = (_no_codebook, _no_code, _no_first_code, _wrong_entry, _beyond)


def bad_jobs(job):
    """Numbers that are out of range, one job each."""
    config, fields = job.config, job.image.job
    most = (1 << config.shape.entry_bits) - 1
    found = [
        {"rows": 0}, {"rows": config.rows + 1}, {"tiles": 0}, {"tiles": config.tiles + 1},
        {"books": fields["books"] + 2}, {"codes": fields["codes"] + 1}, {"exponent": -9},
    ]  # fmt: skip
    for n, stage in enumerate(config.shape.stages):
        found += [{f"entries_{n}": 0}, {f"entries_{n}": stage.entries + 1}]
        if config.shape.entry_bits:
            step = max(2, fields[f"step_{n}"])
            found += [
                {f"low_{n}": -LIMIT - 1, f"step_{n}": 0}, {f"low_{n}": LIMIT + 1, f"step_{n}": 0},
                {f"low_{n}": LIMIT + most + 1 - step * most, f"step_{n}": step},
            ]  # fmt: skip
    for each in found:
        layout = config.job_layout
        if all(
            -(1 << layout[name].width - 1) <= value < 1 << layout[name].width
            for name, value in each.items()
        ):
            changed = dataclasses.replace(job.image, job=fields | each)
            yield dataclasses.replace(job, image=changed, fault=Fault.JOB)
