"""Commands of Unit.QUANTIZE, decoded and checked."""

import dataclasses
from fractions import Fraction

from amaranth import Module, Mux, Signal, Value
from amaranth.lib import stream

from golden.config import Config, nested
from golden.fp16.format import FP16
from golden.kllm.config import SlotShape, VectorShape
from golden.kllm.format import TokenKind
from golden.kllm.isa import ROW_ELEMENTS, CommandStatus, Norm, Opcode, OutlierMode
from golden.timing import Timing
from hdl.bits import let
from hdl.block import Block, FieldOf, Tier
from hdl.kllm.engine import command_stream, operand
from hdl.kllm.quantize.payloads import STATUS_BITS, quantize_job_layout
from hdl.ports import Out

_MAGNITUDE_BITS = FP16.bits - 1
# Operands that the job keeps as they are; commands that share one have it in the same place.
_KEPT = ("src", "stride", "length", "slot", "k_max", "k_min", "norm", "epsilon")


@dataclasses.dataclass(frozen=True, kw_only=True)
class KllmQuantizeDecodeConfig(Config):
    """The memories that commands may address."""

    vectors: VectorShape = nested(VectorShape, "the vector memory")
    slot: SlotShape = nested(SlotShape, "the slots")


class KllmQuantizeDecode(Block):
    """``job`` = ``command`` with its status, as far as it is known before anything is read.

        ==========================  ========================  =====  =======
        condition                   status                    dead   touches
        ==========================  ========================  =====  =======
        not an opcode of the unit   MALFORMED                 1      0
        golden.kllm.quantizer.      RANGE, CAPACITY or        1      0
        faults is not 0             both
        ONLINE, and k_max + k_min   CAPACITY                  1      1
        beyond ``outliers_max``
        ACTIVATION_CODEBOOK         0                         0      0
        other                       0                         0      1
        ==========================  ========================  =====  =======

    ``dead``: nothing is read. ``touches``: slots are written. A job that touches no slot is one
    token. A codebook has 2 rows. Operands that a command does not have keep their words; the kind
    of a MALFORMED one is OFFLINE.

    Latency: command to job 3 cycles. Throughput 1 command per 4 cycles. Nothing rounds.
    Golden: golden.kllm.quantizer.faults.

    Commands that share an operand have it in the same place. So the registers of QUANTIZE serve all
    three.
    """

    tier = Tier.PART
    golden = "golden.kllm.quantizer:faults"
    configs = FieldOf("kllm_quantizer", "decode", ("table1", "small"))

    def __init__(self, config: KllmQuantizeDecodeConfig):
        super().__init__(
            config,
            {
                "command": command_stream(),
                "job": Out(stream.Signature(quantize_job_layout), "The same, decoded and checked."),
            },
        )

    # One command at a time; the next one after its job.
    timing = Timing(latency=3, interval=Fraction(4), start="command", end="job", unit="command")

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        command = self.command.p
        held = {
            name: Signal.like(operand(command, Opcode.QUANTIZE, name), name=name, reset_less=True)
            for name in (*_KEPT, "tokens", "thresholds")
        }
        kind = Signal(TokenKind, reset_less=True)
        unknown = Signal(reset_less=True)
        offset = Signal(24, reset_less=True)  # of the last token
        status = Signal(STATUS_BITS, reset_less=True)
        dead = Signal(reset_less=True)
        touches = Signal(reset_less=True)
        length, tokens = held["length"], held["tokens"]
        rows = let(m, "rows", (length + (ROW_ELEMENTS - 1)) >> 4)
        is_codebook = let(m, "is_codebook", kind == TokenKind.CODEBOOK)
        m.d.comb += [
            *(self.job.p[name].eq(held[name]) for name in _KEPT),
            self.job.p.kind.eq(kind),
            self.job.p.dead.eq(dead),
            self.job.p.touches.eq(touches),
            self.job.p.status.eq(status),
            self.job.p.tokens.eq(Mux(touches, tokens, 1)),
            self.job.p.rows.eq(Mux(is_codebook, 2, rows)),
            self.job.p.upper.eq(held["thresholds"][16:]),
            self.job.p.lower.eq(held["thresholds"][:16]),
        ]
        fault = self._fault(m, held, kind, unknown, offset + rows)
        outliers = let(m, "outliers", held["k_max"] + held["k_min"])
        too_many = (kind == TokenKind.ONLINE) & (outliers > config.slot.outliers_max)
        with m.FSM():
            with m.State("COMMAND"):
                m.d.comb += self.command.ready.eq(1)
                m.d.sync += unknown.eq(0)
                m.d.sync += [
                    register.eq(operand(command, Opcode.QUANTIZE, name))
                    for name, register in held.items()
                ]
                with m.Switch(command.opcode):
                    with m.Case(Opcode.ACTIVATION_CODEBOOK):
                        m.d.sync += kind.eq(TokenKind.CODEBOOK)
                    with m.Case(Opcode.QUANTIZE):
                        mode = operand(command, Opcode.QUANTIZE, "mode")
                        online = mode == OutlierMode.ONLINE
                        m.d.sync += kind.eq(Mux(online, TokenKind.ONLINE, TokenKind.OFFLINE))
                    if config.slot.integer_bits:
                        with m.Case(Opcode.QUANTIZE_INTEGER):
                            m.d.sync += kind.eq(TokenKind.INTEGER)
                    with m.Default():
                        m.d.sync += [unknown.eq(1), kind.eq(TokenKind.OFFLINE)]
                with m.If(self.command.valid):
                    m.next = "LAST_TOKEN"
            with m.State("LAST_TOKEN"):
                m.d.sync += offset.eq(held["stride"] * (tokens - 1)[: len(tokens)])
                m.next = "CHECK"
            with m.State("CHECK"):
                m.d.sync += [
                    status.eq(fault),
                    dead.eq(fault != 0),
                    touches.eq((fault == 0) & ~is_codebook),
                ]
                with m.If((fault == 0) & too_many):
                    m.d.sync += [status.eq(int(CommandStatus.CAPACITY)), dead.eq(1)]
                m.next = "JOB"
            with m.State("JOB"):
                m.d.comb += self.job.valid.eq(1)
                with m.If(self.job.ready):
                    m.next = "COMMAND"
        return m

    def _fault(self, m: Module, held, kind: Signal, unknown: Signal, last_row: Value) -> Signal:
        """The status with which a command is refused. ``last_row``: rows from src to the end."""
        config, length = self.config, held["length"]
        is_online = kind == TokenKind.ONLINE
        halves = held["thresholds"][16:], held["thresholds"][:16]
        infinite = [half[:_MAGNITUDE_BITS] >= FP16.infinity for half in halves]
        wrong = Signal()
        fault = Signal(STATUS_BITS)
        m.d.comb += wrong.eq(
            Mux(
                kind == TokenKind.CODEBOOK,
                held["src"] + 2 > config.vectors.rows,
                (held["tokens"] == 0)
                | (length == 0)
                | (length > config.slot.elements)
                | (held["src"] + last_row > config.vectors.rows)
                | (held["slot"] + held["tokens"] > config.slot.slots)
                | ((kind != TokenKind.INTEGER) & (held["norm"] > max(Norm)))
                | ((kind == TokenKind.OFFLINE) & (infinite[0] | infinite[1])),
            )
        )
        with m.If(unknown):
            m.d.comb += fault.eq(int(CommandStatus.MALFORMED))
        with m.Else():
            too_few = is_online & (held["k_max"] + held["k_min"] >= length)
            m.d.comb += fault.eq(
                Mux(wrong, int(CommandStatus.RANGE), 0)
                | Mux(too_few, int(CommandStatus.CAPACITY), 0)
            )
        return fault
