"""Sizes and range check of one command."""

from amaranth import Module, Mux, Signal

from golden.kllm.format import integer_packet_length, kmeans_packet_length
from golden.kllm.isa import ROW_ELEMENTS, Codebook, MatmulMode, Opcode, row_count
from golden.timing import Timing
from hdl.block import Block, FieldOf, Tier
from hdl.kinds import NUMBER
from hdl.kllm.engine import SLOT_LENGTH_BITS, command_layout, operand
from hdl.kllm.matmul.config import KllmMatmulConfig
from hdl.kllm.matmul.payloads import row_work_layout
from hdl.ports import In, Out


class KllmMatmulCheck(Block):
    """``range_fault`` = the command's operands are outside the ranges of golden.kllm.isa.

    ``words``, ``rows`` and ``beats`` are the sizes of a token of MATMUL, and of the packet of
    LANE_CODEBOOK. With the field ``based`` WEIGHT_BASE has 2 words. A row is 16 words. A beat is
    ``lane.elements`` words.

    Latency: 1 cycle from ``command`` to every output. ``command`` must not change meanwhile.
    The outputs of an unknown opcode have no meaning. Golden: golden.kllm.issue.is_outside.
    """

    tier = Tier.PART
    golden = "golden.kllm.issue:is_outside"
    configs = FieldOf("kllm_accelerator", "matmul_config", ("table1", "small"))

    def __init__(self, config: KllmMatmulConfig):
        super().__init__(
            config,
            {
                "command": In(command_layout, "The command at hand."),
                "words": Out(
                    row_work_layout.members["words"], "Words of a token or packet.", NUMBER
                ),
                "rows": Out(row_work_layout.members["rows"], "Rows of a token or packet.", NUMBER),
                "beats": Out(SLOT_LENGTH_BITS, "Beats of a token.", NUMBER),
                "range_fault": Out(1, "An operand is out of range."),
            },
        )

    # The sizes in registers; the fault follows from them and from the command.
    timing = Timing(latency=1, start="command", end="every output", unit="command")

    def elaborate(self, platform) -> Module:
        m = Module()
        config, lane, command = self.config, self.config.lane, self.command

        def of(name):
            return operand(command, Opcode.MATMUL, name)

        mode, tokens, length, outputs = of("mode"), of("tokens"), of("length"), of("outputs")
        direct, integer = mode == MatmulMode.DIRECT, mode == MatmulMode.INTEGER
        is_codebook = command.opcode == Opcode.LANE_CODEBOOK
        kind = operand(command, Opcode.LANE_CODEBOOK, "kind")
        codebook_src = operand(command, Opcode.LANE_CODEBOOK, "src")
        kmeans_words = kmeans_packet_length(lane.bits_a, lane.packet_bits_b)
        integer_words = integer_packet_length(lane.packet_bits_b)
        is_kmeans = kind == Codebook.KMEANS

        def packet(kmeans, integers):
            return Mux(is_kmeans, kmeans, integers)

        packet_words = packet(kmeans_words, integer_words)
        packet_rows = packet(row_count(kmeans_words), row_count(integer_words))
        if config.based:
            is_base = command.opcode == Opcode.WEIGHT_BASE
            is_codebook = is_codebook | is_base
            packet_words = Mux(is_base, 2, packet_words)
            packet_rows = Mux(is_base, 1, packet_rows)

        out_rows = Signal(13)
        # rows from the first token to the last one
        span = Signal(24)
        src_span = Signal(24)
        last_token = Signal(8)
        token_rows = (length + (ROW_ELEMENTS - 1)) // ROW_ELEMENTS
        m.d.comb += last_token.eq(tokens - 1)
        m.d.sync += [
            self.words.eq(Mux(is_codebook, packet_words, length)),
            self.rows.eq(Mux(is_codebook, packet_rows, token_rows)),
            self.beats.eq((length + (lane.elements - 1)) // lane.elements),
            out_rows.eq((outputs + (ROW_ELEMENTS - 1)) // ROW_ELEMENTS),
            span.eq(of("stride") * last_token),
            src_span.eq(of("src_stride") * last_token),
        ]

        no_integers = int(not lane.integer_bits)
        longest = Mux(direct, min(config.slot.elements, lane.outliers_max), config.slot.elements)
        src_fault = Signal()
        matmul_fault = Signal()
        src = Mux(is_codebook, codebook_src, of("src") + src_span)
        m.d.comb += [
            src_fault.eq(src + self.rows > config.vectors.rows),
            matmul_fault.eq(
                (mode == 3)
                | (tokens == 0)
                | (length == 0)
                | (length > longest)
                | (outputs == 0)
                | (of("dst") + span + out_rows > config.vectors.rows)
                | Mux(
                    direct,
                    src_fault | of("fold_norm"),
                    of("slot") + tokens > config.slot.slots,
                )
                | ((tokens > 1) & (self.beats > config.replay_beats))
                | (integer & no_integers)
                | (of("based") & int(not config.based))
            ),
            self.range_fault.eq(
                Mux(
                    is_codebook,
                    src_fault | ((kind == Codebook.INTEGER) & no_integers),
                    matmul_fault,
                )
            ),
        ]
        return m
