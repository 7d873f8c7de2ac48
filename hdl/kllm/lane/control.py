"""The control of a lane: jobs to steps, and their checks."""

from types import SimpleNamespace

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import stream

from golden.kllm.format import Status
from golden.timing import Timing
from hdl.block import Block, Tier
from hdl.fp16.compare import is_special
from hdl.kllm.lane.config import LANES, STATUS_BITS, KllmPeLaneConfig, Loaded
from hdl.ports import In, Out
from hdl.stream.link import link
from hdl.stream.queue import queue

_JOBS_IN_FLIGHT = 4  # counted, handed over, reduced, scaled


class KllmLaneControl(Block):
    """Gives for each job its steps, and then one word of ``info``: header and beats checked.

    A step is a beat of ``a`` and ``w`` with its inliers and at most one outlier. Each further
    outlier of a beat is a step of its own, without inliers. The last step of a job has ``last``.

        =============================  ============================  ===========================
        condition                      steps                         ``info``
        =============================  ============================  ===========================
        a fault of the header          none                          not ``counted``
        a fault of the beats           up to the first end           ``counted``
        no fault                       all                           ``counted``, status 0
        =============================  ============================  ===========================

    With a fault the control drains what is left of ``a``, ``w`` and ``x``. ``packet`` carries a
    codebook packet between jobs: when as many jobs have ended (``done``) as were reported. A
    packet has priority over the next job.

    One step per cycle; the next job follows without a gap. Latency: ``a`` to ``step`` 0 cycles, the
    last step of a job to ``info`` 1 cycle. A queue holds ``info`` of 4 jobs. ``ready`` of job, a, w
    and x depends combinationally on ``valid`` of every input and on ``step.ready``. ``step.valid``
    depends combinationally on ``valid`` of a, w and x.
    Source: KLLM, section III-D. Golden: golden.kllm.lane.job_steps, job_status.

    A job has as many steps as the sum over its beats of max(1, outliers of the beat). ``index`` has
    the weight indices of the beat in each of its steps. ``tag.x`` is 0 in a step that takes no word
    of ``x``: without an outlier, or with more outliers than the header has. ``value`` is what the
    counters put above the weight index, the index or the integer.
    """

    tier = Tier.PART
    golden = "golden.kllm.lane:job_steps"
    default = KllmPeLaneConfig()
    configs = LANES

    def __init__(self, config: KllmPeLaneConfig):
        packet = stream.Signature(config.packet_layout)
        super().__init__(
            config,
            {
                "job": In(stream.Signature(config.job_layout), "Jobs."),
                "a": In(stream.Signature(config.a_layout), "Activations of the jobs."),
                "w": In(stream.Signature(config.w_layout), "Weights of the jobs."),
                "x": In(stream.Signature(config.value_layout), "Outlier values of the jobs."),
                "codebook": In(packet, "Codebook packets."),
                "loaded": In(Loaded, "What the codebook buffer holds."),
                "done": In(1, "A reported job has ended."),
                "packet": Out(packet, "Codebook packets between jobs."),
                "step": Out(stream.Signature(config.step_layout), "Steps of the jobs."),
                "info": Out(stream.Signature(config.info_layout), "What became of each job."),
            },
        )

    # Of a job's last beat; a beat with several outliers has further steps before it leaves.
    timing = Timing(
        latency=0,
        start="a",
        end="step",
        unit="step",
        delays=(("from a job's last step to info", 1),),
    )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        job, a, w, x = self.job.p, self.a, self.w, self.x
        infos = queue(m, "info_queue", config.info_layout, _JOBS_IN_FLIGHT)
        link(m, infos.o, self.info)
        info = infos.i
        in_flight = Signal(range(2 * _JOBS_IN_FLIGHT + 2))
        left = Signal(16)  # elements of the job not yet counted
        x_left = Signal(16)  # outlier values not yet taken
        taken = Signal(config.elements)  # outliers of this beat already multiplied
        status = Signal(STATUS_BITS)  # faults of the job so far
        # draining: the packet has ended
        a_done = Signal()
        w_done = Signal()
        beat = _beat(m, self, left, x_left, taken)
        step = Signal()
        fire = Signal()
        push = Signal()
        loading = Signal()
        s_a = Signal.like(job.s_a)
        last_column = Signal.like(job.last_column)
        counted = Signal()
        direct = Signal()  # every element is an outlier: the counters are left out
        of_header = Signal(STATUS_BITS)
        of_beats = Signal(STATUS_BITS)
        m.d.comb += [
            of_header.eq(_header_status(config, job, self.loaded)),
            of_beats.eq(status | beat.status),
            fire.eq(step & self.step.ready),
            push.eq(info.valid & info.ready),
            self.step.valid.eq(step),
            self.step.p.tag.direct.eq(direct),
            self.codebook.ready.eq(loading & self.packet.ready),
            self.packet.valid.eq(loading & self.codebook.valid),
            self.packet.payload.eq(self.codebook.payload),
            info.p.s_a.eq(s_a),
            info.p.last_column.eq(last_column),
            info.p.counted.eq(counted),
            info.p.direct.eq(direct),
        ]
        m.d.sync += in_flight.eq(in_flight + push - self.done)

        with m.FSM():

            def accept_job():
                """Takes the next job in the cycle in which no other job needs the registers."""
                with m.If(self.job.valid & ~self.codebook.valid):
                    m.d.comb += self.job.ready.eq(1)
                    m.d.sync += [
                        left.eq(job.length),
                        x_left.eq(job.outliers),
                        status.eq(of_header),
                        s_a.eq(job.s_a),
                        last_column.eq(job.last_column),
                        counted.eq(of_header == 0),
                        direct.eq((job.outliers == job.length) & ~job.integer),
                        a_done.eq(job.length == 0),
                        w_done.eq(job.length == 0),
                    ]
                    with m.If(of_header == 0):
                        m.next = "COUNT"
                    with m.Else():
                        m.next = "DRAIN"
                with m.Else():
                    m.next = "IDLE"

            with m.State("IDLE"):
                with m.If(self.codebook.valid & (in_flight == 0)):
                    m.next = "LOAD"
                with m.Else():
                    accept_job()
            with m.State("LOAD"):
                m.d.comb += loading.eq(1)
                with m.If(self.codebook.valid & self.codebook.ready & self.codebook.p.last):
                    m.next = "IDLE"
            with m.State("COUNT"):
                m.d.comb += [
                    step.eq(
                        a.valid
                        & w.valid
                        & (x.valid | ~beat.x_needed)
                        & (~beat.closing | ~beat.clean | info.ready)
                    ),
                    a.ready.eq(fire & ~beat.more),
                    w.ready.eq(fire & ~beat.more),
                    x.ready.eq(fire & beat.x_needed),
                    info.valid.eq(fire & beat.closing & beat.clean),
                    info.p.status.eq(of_beats),
                ]
                with m.If(fire):
                    m.d.sync += [
                        status.eq(of_beats),
                        x_left.eq(x_left - beat.x_needed),
                        taken.eq(beat.next_taken),
                    ]
                    with m.If(~beat.more):
                        m.d.sync += left.eq(left - config.elements)
                    with m.If(beat.closing):
                        m.d.sync += [a_done.eq(a.p.last), w_done.eq(w.p.last)]
                        with m.If(beat.clean):
                            accept_job()
                        with m.Else():
                            m.next = "DRAIN"
            with m.State("DRAIN"):
                m.d.comb += [
                    a.ready.eq(~a_done),
                    w.ready.eq(~w_done),
                    x.ready.eq(x_left != 0),
                    info.valid.eq(a_done & w_done & (x_left == 0)),
                    info.p.status.eq(status),
                ]
                with m.If(a.valid & a.p.last):
                    m.d.sync += a_done.eq(1)
                with m.If(w.valid & w.p.last):
                    m.d.sync += w_done.eq(1)
                with m.If(x.valid & x.ready):
                    m.d.sync += x_left.eq(x_left - 1)
                with m.If(push):
                    m.next = "IDLE"
        return m


def _header_status(config: KllmPeLaneConfig, job, loaded):
    """The status bits that the header alone decides."""
    mode = Mux(job.integer, Loaded.INTEGER.value, Loaded.KMEANS.value)
    return (
        Mux(job.length == 0, int(Status.LENGTH_ZERO), 0)
        | Mux(job.length > config.k_max, int(Status.LENGTH_TOO_LONG), 0)
        | Mux(loaded.as_value() != mode, int(Status.CODEBOOK_MISSING), 0)
        | Mux(is_special(job.s_a), int(Status.NONFINITE), 0)
        | Mux(job.last_column >= config.columns, int(Status.COLUMN_RANGE), 0)
        | Mux(
            (job.outliers > config.outliers_max) | (job.integer & (job.outliers != 0)),
            int(Status.OUTLIER_COUNT),
            0,
        )
    )


def _beat(m: Module, control: KllmLaneControl, left, x_left, taken) -> SimpleNamespace:
    """The step that the beat now offered allows, and what it says of the job.

    Drives the pairs and the outlier of ``control.step``. The result has:

    - more: the beat has another outlier after this one
    - x_needed: the step takes a word of x
    - closing: the step ends the job's beats; clean: nothing is left to drain after it
    - status: faults that this step adds
    - next_taken: ``taken`` after the step
    """
    a, w, x, step = control.a.p, control.w.p, control.x.p, control.step.p
    elements = control.config.elements
    present = Signal(elements)
    outlier = Signal(elements)
    todo = Signal(elements)
    chosen = Signal(range(max(elements, 2)))
    final = Signal()
    misplaced = Signal()
    excess = Signal()
    more = Signal()
    x_needed = Signal()
    closing = Signal()
    clean = Signal()
    status = Signal(STATUS_BITS)
    m.d.comb += [
        present.eq(Cat(left > e for e in range(elements))),
        outlier.eq(a.outlier & present),
        todo.eq(outlier & ~taken),
        more.eq((todo & (todo - 1))[:elements].any()),
        x_needed.eq(todo.any() & (x_left != 0)),
        excess.eq(todo.any() & (x_left == 0)),
        final.eq(left <= elements),
        closing.eq((final | a.last | w.last) & ~more),
        misplaced.eq(closing & ((a.last != final) | (w.last != final))),
        clean.eq((a.last & w.last) & (x_left == x_needed)),
        status.eq(
            Mux(misplaced, int(Status.LAST_MISPLACED), 0)
            | Mux(excess, int(Status.OUTLIER_COUNT), 0)
            | Mux(closing & (x_left != x_needed), int(Status.OUTLIER_COUNT), 0)
            | Mux(x_needed & is_special(x.word), int(Status.NONFINITE), 0)
        ),
    ]
    for e in reversed(range(elements)):
        with m.If(todo[e]):
            m.d.comb += chosen.eq(e)
    m.d.comb += [
        step.value.eq(control.a.p.value),
        step.inlier.eq(Mux(taken.any(), 0, present & ~a.outlier)),
        step.index.eq(w.index),
        step.last.eq(closing),
        step.tag.present.eq(x_needed),
        step.tag.x.eq(Mux(x_needed, x.word, 0)),  # stable: x may be idle
        step.tag.element.eq(chosen),
    ]
    following = Mux(more, taken | (todo & ~(todo - 1))[:elements], 0)
    return SimpleNamespace(
        more=more, x_needed=x_needed, closing=closing, clean=clean, status=status,
        next_taken=following,
    )  # fmt: skip
