"""Jobs of an engine: checked, given to its cores, run one after another, and answered."""

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import stream

from hdl.bits import any_of, let, outside
from hdl.block import Block
from hdl.ports import In, Out
from hdl.stream.link import link
from hdl.stream.queue import queue
from hdl.vqllm.gemv.config import EXPONENT, VqGemvConfig

_WAITING = 2  # jobs


class VqGemvControl(Block):
    """A job goes to the cores that have rows of it, to the sum of the cores, and to the scales.

    The cores read ahead. ``go_on`` lets them work when the results of the job before are gone.
    A job whose numbers are out of range is void: one row, NaN.
    """

    def __init__(self, config: VqGemvConfig):
        scales = {"scales": Out(config.scales_signature, "Scales to read.")}
        super().__init__(
            config,
            {
                "job": In(stream.Signature(config.job_layout), "Matrices."),
                "core": Out(
                    stream.Signature(config.fetch.job_layout), "Jobs of core {0}."
                ).array(config.cores),
                "rows": Out(stream.Signature(config.reduce.job_layout), "Rows to add."),
                **(scales if config.scaled else {}),
                "users": Out(stream.Signature(config.cores), "Cores that take the vectors."),
                "go_on": Out(config.cores, "The job of these cores may begin."),
                "exponent": Out(config.run_layout["exponent"].shape, "Of the job that runs."),
                "ends": In(1, "The last result of a job leaves."),
                "answer": Out(1, "The job that ran is answered."),
                "answered": In(1, "The answer is taken."),
            },
        )  # fmt: skip

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        runs = queue(m, "runs", config.run_layout, _WAITING)
        users = queue(m, "waiting_users", config.cores, _WAITING)
        link(m, users.o, self.users)
        self._elaborate_jobs(m, runs, users)
        with m.FSM():
            with m.State("IDLE"):
                m.d.sync += self.exponent.eq(runs.o.p.exponent)
                with m.If(runs.o.valid):
                    m.d.comb += self.go_on.eq(runs.o.p.cores)
                    m.next = "RUN"
            with m.State("RUN"):
                with m.If(self.ends):
                    m.next = "ANSWER"
            with m.State("ANSWER"):
                m.d.comb += self.answer.eq(1)
                with m.If(self.answered):
                    m.d.comb += runs.o.ready.eq(1)
                    m.next = "IDLE"
        return m

    def _elaborate_jobs(self, m: Module, runs, users) -> None:
        """Each job is checked in a cycle, and goes to all in another one."""
        config = self.config
        cores, image = config.cores, config.image
        most = cores.bit_length() - 1
        job = Signal(config.job_layout, reset_less=True)
        held = Signal()
        void = Signal()
        p = self.job.p
        room, shift = (Signal(range(max(2, most + 1)), name=name) for name in ("room", "shift"))
        aligned = image.word_bytes.bit_length() - 1
        wrong = any_of([
            (p.rows == 0) | (p.rows > 1 << 20),
            (p.stripe == 0) | (p.pieces == 0),
            p.split > most,
            outside(p.words, range(1, config.core.sums.words + 1)),
            outside(p.exponent, EXPONENT),
            p.stripe > Const(config.core.rows) << room,
            p.descriptors[:aligned].any(),
            p.scales[:aligned].any() if config.scaled else 0,
        ])  # fmt: skip
        one = {"rows": 1, "stripe": 1, "pieces": 1, "split": 0}
        now = {name: let(m, f"now_{name}", Mux(void, one[name], job[name])) for name in one}
        m.d.comb += [room.eq(most - p.split), shift.eq(most - now["split"])]
        # A core without a row in the first stripe has none in any.
        of_rows = [Const(k) >> now["split"] for k in range(cores)]
        active = [
            let(m, f"active_{k}", (place < now["rows"]) & (place < now["stripe"]))
            for k, place in enumerate(of_rows)
        ]
        streams = [*self.core, self.rows, users.i, runs.i]
        if config.scaled:
            streams.append(self.scales)
        needs = [*active, *[Const(1)] * (len(streams) - cores)]
        # A queue that is ready stays so.
        ready = let(m, "all_ready", Cat(
            each.ready | ~need
            for each, need in zip(streams, needs, strict=True)
        ).all())  # fmt: skip
        goes = let(m, "goes", held & ready)
        m.d.comb += [
            self.job.ready.eq(~held | goes),
            *(each.valid.eq(goes & need) for each, need in zip(streams, needs, strict=True)),
            self.rows.p.rows.eq(now["rows"]),
            self.rows.p.stripe.eq(now["stripe"]),
            self.rows.p.split.eq(now["split"]),
            users.i.p.eq(Cat(active)),
            runs.i.p.exponent.eq(job.exponent),
            runs.i.p.cores.eq(Cat(active)),
        ]
        if config.scaled:
            m.d.comb += [self.scales.p.address.eq(job.scales), self.scales.p.rows.eq(now["rows"])]
        for k, core in enumerate(self.core):
            last = let(m, f"last_{k}", (Const(1) << shift) - 1)
            m.d.comb += [
                core.p.descriptors.eq(job.descriptors + k * image.descriptor_bytes),
                core.p.tensor.eq(job.tensor),
                core.p.rows.eq(now["rows"]),
                core.p.stripe.eq(now["stripe"]),
                core.p.pieces.eq(now["pieces"]),
                core.p.words.eq(job.words),
                core.p.later.eq(last - (Const(k) >> now["split"])),
                core.p.shift.eq(shift),
                core.p.void.eq(void),
            ]
        with m.If(goes):
            m.d.sync += held.eq(0)
        with m.If(self.job.valid & self.job.ready):
            m.d.sync += [held.eq(1), job.eq(p), void.eq(wrong)]
