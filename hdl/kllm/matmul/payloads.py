"""The payloads that the phases of the matmul engine hand to each other."""

from golden.fp16.format import FP16, FP32
from golden.kllm.isa import CommandStatus
from hdl.kinds import NUMBER, index_of
from hdl.kllm.engine import ROW, SLOT_LENGTH_BITS
from hdl.ports import Payload

_ROW_COUNT_BITS = 11  # rows of the longest token

# A job of kllm_weight_supply.
supply_job_layout = Payload(
    address=(32, "first port word of the weight image", index_of("port words")),
    beats=(SLOT_LENGTH_BITS, "weight beats of a group", NUMBER),
    groups=(16, "groups of outputs", NUMBER),
    tokens=(8, "tokens of the command", NUMBER),
    fold=(1, "the scales are multiplied by rms"),
)
supply_rms_layout = Payload(word=(FP32.bits, "factor of one token's weight scales, FP32", FP32))
supply_done_layout = Payload(
    error=(1, "a word of the weights came with error"),
    refused=(1, "never set: the configuration admits no job that the supply refuses"),
)

# A MATMUL that runs: jobs for groups, for tokens.
matmul_work_layout = Payload(
    slot=(8, "number of the slot", index_of("slots")),
    tokens=(8, "tokens of the command", NUMBER),
    groups=(16, "groups of outputs", NUMBER),
    length=(SLOT_LENGTH_BITS, "elements of a token", NUMBER),
    rows=(_ROW_COUNT_BITS, "rows of a token", NUMBER),
    beats=(SLOT_LENGTH_BITS, "beats of a token", NUMBER),
    direct=(1, "the token is rows of the vector memory, not a slot"),
    integer=(1, "the slot holds integers"),
    void=(1, "zeros take the weights, which were requested for nothing; no slot or row is read"),
)

# Words of rows: for groups, for tokens, ``words`` words in ``rows`` rows from src + t * stride.
row_work_layout = Payload(
    src=(16, "first row", index_of("rows")),
    stride=(16, "rows from one token to the next", NUMBER),
    groups=(16, "groups of outputs", NUMBER),
    tokens=(8, "tokens of the command", NUMBER),
    rows=(_ROW_COUNT_BITS, "rows of a token", NUMBER),
    words=(SLOT_LENGTH_BITS, "words of a token", NUMBER),
)

# The outliers of one job.
outlier_count_layout = Payload(
    outliers=(SLOT_LENGTH_BITS, "outliers of the job", NUMBER),
    slot=(8, "number of the slot", index_of("slots")),
)

# A word of a packet; ``last`` is the end of a token.
packet_word_layout = Payload(word=(FP16.bits, "FP16 word", FP16), last=(1, "end of the token"))

# A row of a packet.
packet_row_layout = Payload(
    word=(ROW, "16 FP16 words, the first lowest", FP16), last=(1, "end of the packet")
)

row_layout = Payload(word=(ROW, "16 FP16 words, element 0 first", FP16))

# A command whose outputs are to be collected.
ticket_layout = Payload(
    fault=(len(CommandStatus), "golden.kllm.isa.CommandStatus so far", CommandStatus),
    dst=(16, "first row of the outputs", index_of("rows")),
    stride=(16, "rows from one token to the next", NUMBER),
    tokens=(8, "tokens of the command", NUMBER),
    outputs=(16, "outputs of a token", NUMBER),
    groups=(16, "groups of outputs", NUMBER),
    done=(1, "nothing to collect: a codebook, or a refused command"),
    void=(1, "the outputs are dropped, and the status is ``fault``"),
)
