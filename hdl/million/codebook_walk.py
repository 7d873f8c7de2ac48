"""Blocks that read the codebooks in a store, word by word: their jobs and their addresses."""

import dataclasses

from amaranth import Module, Mux, Signal
from amaranth.hdl import Value
from amaranth.lib import data

from golden.config import bounded
from golden.million.format import EXPONENT_MIN, EXPONENTS
from hdl.kinds import index_of
from hdl.million.layouts import EXPONENT_SHAPE
from hdl.million.shapes import VectorConfig
from hdl.stream.queue import queue


@dataclasses.dataclass(frozen=True, kw_only=True)
class CodebookReaderConfig(VectorConfig):
    """Codebooks and products per cycle."""

    books: int = bounded(1, 1, 128, "codebooks of the store")

    @property
    def address(self) -> range:
        """The addresses of codebook words."""
        return range(max(2, self.books * self.pq.entries * self.parts))

    @property
    def book_parts(self) -> dict:
        """Fields of a job."""
        return {
            "book": (range(max(2, self.books)), "codebook", index_of("codebooks")),
            "entries": (range(self.pq.entries + 1), "rows of the codebook, 1 or more"),
            "exponent": (EXPONENT_SHAPE, "log2 of the scale of the codebook, -8..15"),
        }

    @property
    def kept_parts(self) -> dict:
        """Fields of a job that waits."""
        return {
            "base": self.address,
            "last_row": range(self.pq.entries),
            "grid": range(len(EXPONENTS)),
        }


def waiting_jobs(m: Module, config: CodebookReaderConfig, job, extra: dict):
    """The jobs, two of them waiting, with the address of their codebook.

    extra: further fields of the job, which are passed on: name to shape.
    """
    jobs = queue(m, "jobs", data.StructLayout({**config.kept_parts, **extra}), 2)
    m.d.comb += [
        jobs.i.valid.eq(job.valid),
        job.ready.eq(jobs.i.ready),
        jobs.i.p.base.eq(job.p.book * (config.pq.entries * config.parts)),
        jobs.i.p.last_row.eq(job.p.entries - 1),
        jobs.i.p.grid.eq(job.p.exponent - EXPONENT_MIN),
        *(jobs.i.p[name].eq(job.p[name]) for name in extra),
    ]
    return jobs.o


class Walk:
    """The words of a codebook: for each part, for each row. ``step`` goes on to the next.

    part, row: of the word; address: its address; first_row, last_row: of the part; last: of all.
    """

    def __init__(self, m: Module, config: CodebookReaderConfig, job, step: Value):
        parts = config.parts
        self.row = Signal(range(config.pq.entries))
        self.part = Signal(range(max(2, parts)))
        offset = Signal(config.address)  # row * parts + part
        self.first_row = self.row == 0
        self.last_row = Signal()
        self.last = Signal()
        self.address = job.base + offset
        m.d.comb += [
            self.last_row.eq(self.row == job.last_row),
            self.last.eq(self.last_row & (self.part == parts - 1)),
        ]
        with m.If(step):
            following = Mux(self.last, 0, self.part + 1)
            m.d.sync += [
                self.row.eq(Mux(self.last_row, 0, self.row + 1)),
                self.part.eq(Mux(self.last_row, following, self.part)),
                offset.eq(Mux(self.last_row, following, offset + parts)),
            ]
