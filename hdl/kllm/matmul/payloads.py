"""What the phases of the matmul engine hand to each other."""

from amaranth.lib import data

from golden.fp16.format import FP16
from golden.kllm.isa import CommandStatus
from hdl.kllm.engine import ROW, SLOT_LENGTH_BITS

__all__ = [
    "matmul_work_layout",
    "outlier_count_layout",
    "packet_word_layout",
    "row_layout",
    "row_work_layout",
    "supply_job_layout",
    "ticket_layout",
]

_ROW_COUNT_BITS = 11  # rows of the longest token

# A job of kllm_weight_supply.
supply_job_layout = data.StructLayout(
    {"address": 32, "beats": SLOT_LENGTH_BITS, "groups": 16, "tokens": 8, "fold": 1}
)

# A MATMUL that runs: jobs for groups, for tokens.
matmul_work_layout = data.StructLayout(
    {
        "slot": 8,
        "tokens": 8,
        "groups": 16,
        "length": SLOT_LENGTH_BITS,
        "rows": _ROW_COUNT_BITS,  # of a token
        "beats": SLOT_LENGTH_BITS,  # of a token
        "direct": 1,  # the token is rows of the vector memory, not a slot
        "integer": 1,
    }
)

# Words of rows: for groups, for tokens, ``words`` words in ``rows`` rows from src + t * stride.
row_work_layout = data.StructLayout(
    {
        "src": 16,
        "stride": 16,
        "groups": 16,
        "tokens": 8,
        "rows": _ROW_COUNT_BITS,
        "words": SLOT_LENGTH_BITS,
    }
)

# The outliers of one job.
outlier_count_layout = data.StructLayout({"outliers": SLOT_LENGTH_BITS, "slot": 8})

# A word of a packet; ``last`` is the end of a token.
packet_word_layout = data.StructLayout({"word": FP16.bits, "last": 1})

row_layout = data.StructLayout({"word": ROW})

# A command whose outputs are to be collected.
ticket_layout = data.StructLayout(
    {
        "fault": len(CommandStatus),
        "dst": 16,
        "stride": 16,
        "tokens": 8,
        "outputs": 16,
        "groups": 16,
        "done": 1,  # nothing to collect: a codebook, or a refused command
    }
)
