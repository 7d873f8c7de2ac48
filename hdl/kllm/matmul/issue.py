"""Commands of the matmul engine: checked, then started."""

from fractions import Fraction
from typing import NamedTuple

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import stream

from golden.kllm.isa import Codebook, CommandStatus, MatmulMode, Opcode
from golden.kllm.timing import matmul_supply, matmul_ticket
from golden.timing import Timing
from hdl.block import Block, FieldOf, Tier
from hdl.children import add
from hdl.kinds import index_of
from hdl.kllm.engine import command_stream, descriptor_layout, operand, release_layout
from hdl.kllm.lane.packet import row_beyond, words_beyond
from hdl.kllm.matmul.check import KllmMatmulCheck
from hdl.kllm.matmul.config import KllmMatmulConfig, KllmMatmulPhaseConfig
from hdl.kllm.matmul.descriptors import KllmDescriptorWalk
from hdl.kllm.matmul.payloads import (
    matmul_work_layout,
    packet_row_layout,
    packet_word_layout,
    row_work_layout,
    supply_job_layout,
    supply_rms_layout,
)
from hdl.ports import In, Out, Payload
from hdl.stream.link import link
from hdl.stream.queue import queue


class KllmMatmulIssue(Block):
    """Checks each command, loads codebooks, and starts the walks of each MATMUL.

    One ticket per command tells the collection what to expect. The checks of a command overlap the
    outputs of the commands before it. ``command`` of a MATMUL is taken when the walks are done.

        ================  =========================================================================
        command           steps
        ================  =========================================================================
        LANE_CODEBOOK     wait for ``release`` and ``is_idle``; range; the command is taken; packet
                          from ``packet`` to ``codebook``; ticket
        WEIGHT_BASE       with the field ``based``: as LANE_CODEBOOK, but two words become the base;
                          without it: refused with RANGE
        MATMUL, DIRECT    range and codebook; groups; supply; wait for ``release`` and ``is_idle``;
                          ticket; walks
        MATMUL            range and codebook; groups; supply; wait for ``release``; descriptors;
                          ticket; factors; walks
        other             wait for ``release``; ticket with MALFORMED
        refused           wait for ``release``; ticket with the first fault
        aborted           ticket with ABORTED
        ================  =========================================================================

    While a packet comes, the engine checks the next command and requests its weights. That command
    waits for the packet's ticket as it waits for ``release``.

    Weights are requested before the command may run. SLOT_MISMATCH, an abort, or a bad word in the
    packet of its codebook may then end it. Its ticket and its work are void: jobs of zeros take the
    weights, and nothing is written.

    Latency: ``command.valid`` to ``supply`` golden.kllm.timing.matmul_supply, then to ``ticket``
    matmul_ticket. Throughput 1 command at a time. The engine divides outputs into groups at one
    group per cycle. Golden: golden.kllm.issue.issue.

    LANE_CODEBOOK waits for ``is_idle`` because it reads rows. The engine takes it when its packet
    begins (decision 0266). Nothing but the request of weights happens before ``release`` (decision
    0265). With fold_norm the descriptors are read a second time: the queue has room for those of
    every slot. A packet with a word above 1 leaves no codebook. A packet outside the vector memory
    changes nothing.
    """

    tier = Tier.PART
    golden = "golden.kllm.issue:issue"
    configs = FieldOf("kllm_accelerator", "matmul_config", ("table1", "small"))
    checked = "small"

    def __init__(self, config: KllmMatmulConfig):
        packet = packet_word_layout if config.lane.packet_words == 1 else packet_row_layout
        super().__init__(
            config,
            {
                "command": command_stream("LANE_CODEBOOK and MATMUL commands."),
                "release": In(
                    stream.Signature(release_layout),
                    "One word per command, when it may run. Taken together with the command.",
                ),
                "slot": Out(
                    stream.Signature(Payload(slot=(8, "number of the slot", index_of("slots")))),
                    "Descriptors wanted.",
                ),
                "descriptor": In(
                    stream.Signature(descriptor_layout), "Those descriptors, in order."
                ),
                "packet": In(stream.Signature(packet), "Words of a codebook."),
                "codebook": Out(
                    stream.Signature(config.lane.packet_layout), "Codebook packets of the lanes."
                ),
                "supply": Out(stream.Signature(supply_job_layout), "Weights wanted."),
                "supply_rms": Out(
                    stream.Signature(supply_rms_layout),
                    "Factor of each token's weight scales.",
                ),
                "ticket": Out(stream.Signature(config.ticket_layout), "What to collect."),
                "is_idle": In(1, "Nothing is left to collect."),
                "start": Out(1, "The walks of a MATMUL begin."),
                "work": Out(matmul_work_layout, "The MATMUL."),
                "row_start": Out(1, "The walk of rows begins."),
                "row_work": Out(row_work_layout, "Its rows."),
                "is_codebook": Out(1, "The rows are a codebook's."),
                "done": In(1, "Every walk is done."),
            },
        )

    @property
    def timing(self) -> Timing:
        """DIRECT of one group has the least latency; ``matmul_supply`` has that of each command.

        The interval is that of the same, with walks of one cycle.
        """
        ticket = 1 + matmul_ticket()
        return Timing(
            latency=matmul_supply(1),
            start="command, as offered,",
            end="supply",
            interval=Fraction(matmul_supply(1) + ticket + 4),
            unit="command",
            delays=(
                ("from supply to ticket of DIRECT, if released", ticket),
                ("from ticket to start, without fold_norm", 0),
                ("from the end of the walks to the end of the command", 1),
                ("from the last codebook to its ticket", 1),
            ),
        )

    def _of(self, name: str):
        return operand(self.command.p, Opcode.MATMUL, name)

    def elaborate(self, platform) -> Module:
        m = Module()
        command, of = self.command.p, self._of
        check = add(m, "check", KllmMatmulCheck(self.config))
        reader = add(m, "reader", KllmDescriptorWalk(KllmMatmulPhaseConfig()))
        # Room for every token: the supply may take the last factors only when the lanes have taken
        # weights, and the lanes get their jobs after the last factor.
        factors = queue(
            m,
            "factors",
            self.supply_rms.payload.shape(),
            depth=max(3, self.config.slot.slots),
            storage="memory",
        )
        link(m, factors.o, self.supply_rms)
        link(m, reader.slot, self.slot)
        link(m, self.descriptor, reader.descriptor)

        groups = Signal(16)
        sizes = {"groups": groups, "tokens": of("tokens")}
        m.d.comb += [
            check.command.eq(command),
            reader.first.eq(of("slot")),
            reader.tokens.eq(of("tokens")),
            factors.i.p.word.eq(reader.o.p.rms_reciprocal),
            self.supply.p.address.eq(self._address(m)),
            self.supply.p.beats.eq(check.beats),
            self.supply.p.fold.eq(of("fold_norm")),
            self.ticket.p.dst.eq(of("dst")),
            self.ticket.p.stride.eq(of("stride")),
            self.ticket.p.outputs.eq(of("outputs")),
            *(
                getattr(stream.p, name).eq(size)
                for stream in (self.supply, self.ticket)
                for name, size in sizes.items()
            ),
            self.work.slot.eq(of("slot")),
            self.work.tokens.eq(of("tokens")),
            self.work.groups.eq(groups),
            self.work.length.eq(of("length")),
            self.work.rows.eq(check.rows),
            self.work.beats.eq(check.beats),
            self.work.direct.eq(of("mode") == MatmulMode.DIRECT),
            self.work.integer.eq(of("mode") == MatmulMode.INTEGER),
            self.row_work.src.eq(of("src")),
            self.row_work.stride.eq(of("src_stride")),
            self.row_work.groups.eq(groups),
            self.row_work.tokens.eq(of("tokens")),
            self.row_work.rows.eq(check.rows),
            self.row_work.words.eq(check.words),
        ]
        if self.config.front:
            ordered = (of("tokens") == 1) & ~self.work.direct
            m.d.comb += self.ticket.p.ordered.eq(ordered)
        self._control(m, check, reader, factors, groups)
        return m

    @property
    def _is_short(self) -> bool:
        """Whether a packet may have come when the next command is offered."""
        return self.config.lane.packet_words > 1 or self.config.based

    def _address(self, m: Module) -> Value:
        """First word of the weights of a MATMUL."""
        if not self.config.based:
            return self._of("weights")
        self.base = Signal(32, name="base")
        self.loads_base = Signal(name="loads_base")  # the packet at hand is a base
        address = Signal(32, name="weight_address")
        m.d.comb += address.eq(self._of("weights") + Mux(self._of("based"), self.base, 0))
        return address

    def _control(self, m: Module, check, reader, factors, groups: Signal) -> None:
        """The steps of a command."""
        work = self.work
        # A command's turn comes after the packet of the codebook before it.
        in_turn = self.release.valid & ~self.is_codebook
        released = in_turn & ~self.release.p.aborted
        aborted = in_turn & self.release.p.aborted
        # Why the weights that were requested have no use; 0: they have.
        fault = Signal(len(CommandStatus))
        m.d.comb += [work.void.eq(fault != 0), self.ticket.p.void.eq(work.void)]
        # Of the latest packet, from its start on. ``is_bad``: a word of it is out of range.
        loaded = Signal()
        loaded_kind = Signal(Codebook)
        is_bad = Signal()
        wanted_kind = Mux(work.integer, int(Codebook.INTEGER), int(Codebook.KMEANS))
        mismatch = Signal()
        loads = Signal()
        is_packet = self.command.p.opcode == Opcode.LANE_CODEBOOK
        if self.config.based:
            is_base = self.command.p.opcode == Opcode.WEIGHT_BASE
            is_packet = is_packet | is_base
        codebook_kind = operand(self.command.p, Opcode.LANE_CODEBOOK, "kind")
        group_outputs = Signal(17)
        # The ticket may be a packet's meanwhile.
        of_ticket = not self._is_short
        outputs = self.ticket.p.outputs if of_ticket else self._of("outputs")

        def end(status) -> None:
            """The ticket says that nothing is to be collected, and the command is over."""
            m.d.comb += [
                self.ticket.p.fault.eq(status),
                self.ticket.p.done.eq(1),
                self.ticket.valid.eq(1),
            ]
            with m.If(self.ticket.ready):
                m.next = "END"

        def refuse(status) -> None:
            """The same, in the command's turn."""
            with m.If(aborted):
                end(int(CommandStatus.ABORTED))
            with m.Elif(released):
                end(status if isinstance(status, Value) else int(status))

        with m.FSM(name="issue") as fsm:
            with m.State("IDLE"):
                m.d.sync += [mismatch.eq(0), groups.eq(0), group_outputs.eq(0)]
                m.d.sync += fault.eq(0)
                with m.If(self.command.valid):
                    m.next = "SIZE"
            with m.State("SIZE"):
                with m.If(is_packet):
                    with m.If(aborted):
                        end(int(CommandStatus.ABORTED))
                    with m.Elif(released & self.is_idle):
                        m.next = "CODEBOOK"
                with m.Elif(self.command.p.opcode == Opcode.MATMUL):
                    m.next = "CHECK"
                with m.Else():
                    is_absent = self.command.p.opcode == Opcode.WEIGHT_BASE
                    refuse(
                        CommandStatus.MALFORMED if self.config.based
                        else Mux(is_absent, int(CommandStatus.RANGE), int(CommandStatus.MALFORMED))
                    )  # fmt: skip
            with m.State("CODEBOOK"):
                with m.If(check.range_fault):
                    end(int(CommandStatus.RANGE))
                with m.Else():
                    m.d.comb += self.row_start.eq(1)
                    m.d.sync += loads.eq(1)
                    replaced = [loaded.eq(1), loaded_kind.eq(codebook_kind), is_bad.eq(0)]
                    if self.config.based:
                        m.d.sync += self.loads_base.eq(is_base)
                        with m.If(~is_base):
                            m.d.sync += replaced
                    else:
                        m.d.sync += replaced
                    m.next = "END"
            with m.State("CHECK"):
                with m.If(check.range_fault):
                    refuse(CommandStatus.RANGE)
                with m.Elif(~loaded | (loaded_kind != wanted_kind)):
                    refuse(CommandStatus.CODEBOOK_MISSING)
                with m.Else():
                    m.next = "GROUPS"
            with m.State("GROUPS"):
                with m.If(group_outputs < outputs):
                    m.d.sync += [
                        groups.eq(groups + 1),
                        group_outputs.eq(group_outputs + self.config.group_outputs),
                    ]
                with m.Else():
                    m.next = "SUPPLY"
            with m.State("SUPPLY"):
                is_taken: Value = self.supply.ready
                if self.config.based:  # a base that is on its way counts
                    is_known = ~(self._of("based") & self.is_codebook & self.loads_base)
                    m.d.comb += self.supply.valid.eq(is_known)
                    is_taken = is_known & is_taken
                else:
                    m.d.comb += self.supply.valid.eq(1)
                with m.If(is_taken):
                    m.next = "RELEASE"
            self._turn(m, reader, factors, _Turn(released, aborted, is_bad, fault, mismatch))
            with m.State("RUN"):
                with m.If(self.done):
                    m.next = "END"
            with m.State("END"):
                m.d.comb += [self.command.ready.eq(1), self.release.ready.eq(1)]
                m.next = "IDLE"
        with m.If(self.start & work.direct & ~work.void):
            m.d.comb += self.row_start.eq(1)
        m.d.comb += self.is_codebook.eq(loads | fsm.ongoing("CODEBOOK"))
        self._packet(m, check, loads, loaded_kind, is_bad)

    def _turn(self, m: Module, reader, factors, turn: "_Turn") -> None:
        """The states of a MATMUL from its turn to the start of its walks."""
        work, descriptor = self.work, reader.o.p
        with m.State("RELEASE"):
            with m.If(turn.aborted):
                m.d.sync += turn.fault.eq(int(CommandStatus.ABORTED))
                m.next = "TICKET"
            with m.Elif(turn.released & turn.is_bad):
                m.d.sync += turn.fault.eq(int(CommandStatus.CODEBOOK_MISSING))
                m.next = "TICKET"
            with m.Elif(turn.released & work.direct):
                m.next = "TICKET"
            with m.Elif(turn.released):
                m.d.comb += reader.start.eq(1)
                m.next = "DESCRIPTORS"
        with m.State("DESCRIPTORS"):
            m.d.comb += reader.o.ready.eq(1)
            with m.If(reader.o.valid):
                wrong = (
                    ~descriptor.valid
                    | (descriptor.length != work.length)
                    | (descriptor.integer != work.integer)
                )
                m.d.sync += turn.mismatch.eq(turn.mismatch | wrong)
            with m.If(reader.done):
                m.d.sync += turn.fault.eq(Mux(turn.mismatch, int(CommandStatus.SLOT_MISMATCH), 0))
                m.next = "TICKET"
        with m.State("TICKET"):
            # The rows of DIRECT may be outputs that are still to be written.
            m.d.comb += [
                self.ticket.p.fault.eq(turn.fault),
                self.ticket.valid.eq(~work.direct | work.void | self.is_idle),
            ]
            with m.If(self.ticket.valid & self.ticket.ready):
                with m.If(self._of("fold_norm")):
                    m.d.comb += reader.start.eq(1)
                    m.next = "FACTORS"
                with m.Else():
                    m.d.comb += self.start.eq(1)
                    m.next = "RUN"
        with m.State("FACTORS"):
            m.d.comb += [
                factors.i.valid.eq(reader.o.valid),
                reader.o.ready.eq(factors.i.ready),
            ]
            with m.If(reader.done):
                m.d.comb += self.start.eq(1)
                m.next = "RUN"

    def _packet(self, m: Module, check, loads: Signal, kind: Signal, is_bad: Signal) -> None:
        """The packet of a codebook, up to its ticket. Meanwhile the next command may be offered."""
        lane, work, word = self.config.lane, self.row_work, self.packet.p.word
        is_whole = Signal()
        products = Const(0, 1)
        counts = lane.select_config.is_fixed and lane.packet_words == 1
        if counts:  # products of a K-Means packet still to come
            products = Signal(range(lane.bins + 1), reset_less=True)
        if lane.packet_words == 1:
            beyond = words_beyond(lane, word, products != 0)
        else:  # the centroids of either packet are its last row
            beyond = row_beyond(lane, word, ~self.packet.p.last)
        src = Signal.like(work.src, reset_less=True)
        rows, words = (Signal.like(each, reset_less=True) for each in (work.rows, work.words))
        with m.If(self.is_codebook):
            m.d.comb += [
                work.src.eq(src),
                work.stride.eq(0),
                work.groups.eq(1),
                work.tokens.eq(1),
                work.rows.eq(rows),
                work.words.eq(words),
            ]
        with m.If(~loads):
            m.d.sync += [
                src.eq(operand(self.command.p, Opcode.LANE_CODEBOOK, "src")),
                rows.eq(check.rows),
                words.eq(check.words),
                is_whole.eq(0),
            ]
            if counts:
                m.d.sync += products.eq(lane.bins)
        is_refused = is_bad
        if self.config.based:
            is_refused = is_bad & ~self.loads_base
            with m.Elif(self.loads_base & ~is_whole):
                self._take_base(m, is_whole)
        with m.Elif(~is_whole):
            link(m, self.packet, self.codebook)
            with m.If(self.codebook.valid & self.codebook.ready):
                now_beyond = Mux(kind == Codebook.KMEANS, *beyond)
                m.d.sync += [is_bad.eq(is_bad | now_beyond), is_whole.eq(self.codebook.p.last)]
                if counts:
                    m.d.sync += products.eq(products - (products != 0))
        with m.Else():
            if self._is_short:  # the next command may be offered meanwhile
                m.d.comb += self.ticket.p.as_value().eq(0)
            m.d.comb += [
                self.ticket.p.fault.eq(Mux(is_refused, int(CommandStatus.RANGE), 0)),
                self.ticket.p.done.eq(1),
                self.ticket.valid.eq(1),
            ]
            with m.If(self.ticket.ready):
                m.d.sync += loads.eq(0)

    def _take_base(self, m: Module, is_whole: Signal) -> None:
        """The two words of a base, the lower one first, or the row that begins with them."""
        word = self.packet.p.word
        if self.config.lane.packet_words > 1:
            base = Cat(word[0], word[1])
        else:
            base = Cat(self.base[16:], word)
        m.d.comb += self.packet.ready.eq(1)
        with m.If(self.packet.valid):
            m.d.sync += [self.base.eq(base), is_whole.eq(self.packet.p.last)]


class _Turn(NamedTuple):
    """The state of a MATMUL when its turn comes."""

    released: Value  # the commands that it waits for are complete
    aborted: Value  # it ends without a result
    is_bad: Value  # the codebook before it was refused
    fault: Signal  # why its weights have no use
    mismatch: Signal  # a slot so far is not what it needs
