"""The interface that every engine of the accelerator has: commands in, memory clients, status out.

An engine runs the commands of one unit, one after another. Through clients it reads and writes the
vector memory V (rows of ROW_ELEMENTS FP16 words) and the activation slots. A client is a stream of
requests and, for reads, a stream of answers in the order of the requests, any number of cycles
later. A write is visible to every read that is requested after it was taken. The status of a
command is offered when all its writes have been taken. golden.kllm.machine says what a failed
command has written.
"""

from typing import Any, NamedTuple

from amaranth.lib import data, stream

from golden.fp16.format import FP16, FP32
from golden.kllm.format import activation_entry_bits
from golden.kllm.isa import COMMANDS, OPERANDS_MAX, ROW_ELEMENTS, SET, CommandStatus, Opcode
from hdl.block import Block
from hdl.kinds import NUMBER, index_of, mask_of, opcode
from hdl.ports import In, Out, Payload

ROW = data.ArrayLayout(FP16.bits, ROW_ELEMENTS)  # one row of the vector memory
SLOT_LENGTH_BITS = 14  # K_MAX
SLOT_ROW_BITS = 10  # rows of K_MAX entries

_SLOT = (8, "number of the slot", index_of("slots"))
_SLOT_ROW = (
    SLOT_ROW_BITS,
    "row of entries within the slot: positions 16 * row and up",
    index_of("rows"),
)
_POSITION = (
    SLOT_LENGTH_BITS,
    "number of the outlier within its token, in ascending place",
    index_of("outliers"),
)

command_layout = Payload(
    opcode=(8, "golden.kllm.isa.Opcode", opcode(SET)),
    operand=(
        data.ArrayLayout(32, OPERANDS_MAX),
        "operands in the order of the command's table, bits above the declared ones 0",
        NUMBER,
    ),
)


# Of a command that its engine sees before its waits are over.
release_layout = Payload(
    aborted=(1, "an abort came before the command might run: it changes nothing"),
)


def command_stream(text: str | tuple[str, ...] = "Commands of the unit, one after another."):
    """A command whose operand words are within their declared bits."""
    return In(stream.Signature(command_layout), text)


def status_stream(text: str | tuple[str, ...] = "One word per command, in order."):
    """CommandStatus bits, one word per command, in order."""
    status = Payload(
        status=(len(CommandStatus), "golden.kllm.isa.CommandStatus, 0: done", CommandStatus)
    )
    return Out(stream.Signature(status), text)


def operand(command, opcode: Opcode, name: str):
    """The operand ``name`` of a command payload, at its declared width."""
    table = COMMANDS[opcode]
    position = table.position(name)
    return command.operand[position][: table.operands[position].bits]


row_write_layout = Payload(
    row=(16, "row of the vector memory", index_of("rows")),
    word=(ROW, "16 FP16 words, element 0 first", FP16),
)


# The rows that a running command still writes, in ascending order.
front_layout = Payload(
    valid=(1, "its results are certain: others may read the rows before ``next``"),
    next=(17, "first row that may be unwritten", NUMBER),
    end=(17, "row after the last one", NUMBER),
)


def row_read(prefix: str, what: str = "rows") -> dict:
    """A read client of the vector memory: requests {row}, answers {word}. ``what`` it reads."""
    parts = row_write_layout.parts
    return {
        f"{prefix}_request": Out(
            stream.Signature(Payload(row=parts["row"])), f"Requests for {what}."
        ),
        f"{prefix}_row": In(
            stream.Signature(Payload(word=parts["word"])),
            "The rows, in the order of the requests.",
        ),
    }


def entry_row_layout(bits_a: int, integer_bits: int) -> data.StructLayout:
    """ROW_ELEMENTS entries (index, or integer, low-aligned) and their outlier mask."""
    entry = activation_entry_bits(bits_a, integer_bits)
    return Payload(
        value=(data.ArrayLayout(entry, ROW_ELEMENTS), "index, or integer, of each element", NUMBER),
        outlier=(ROW_ELEMENTS, "mask of the elements that are outliers", mask_of("elements")),
    )


def entry_write_layout(bits_a: int, integer_bits: int) -> data.StructLayout:
    """A row of entries into a slot: entry row ``row`` holds positions 16 * row .. 16 * row + 15."""
    return Payload(
        slot=_SLOT,
        row=_SLOT_ROW,
        entries=(entry_row_layout(bits_a, integer_bits), "the row's entries"),
    )


# An outlier's FP16 word into a slot, ``position`` counting the outliers in ascending place.
outlier_write_layout = Payload(slot=_SLOT, position=_POSITION, word=(FP16.bits, "FP16 word", FP16))

# What a slot holds in addition to entries and outliers.
descriptor_layout = Payload(
    valid=(1, "the slot holds a token"),
    integer=(1, "entries are unsigned integers, none is an outlier"),
    length=(SLOT_LENGTH_BITS, "elements of the token", NUMBER),
    outliers=(SLOT_LENGTH_BITS, "outliers of the token", NUMBER),
    scale=(FP16.bits, "s_A of the token, FP16", FP16),
    rms_reciprocal=(FP32.bits, "1 / RMS of the token, FP32; 1.0 without statistics", FP32),
    mean=(FP32.bits, "mean of the token, FP32; +0 without statistics", FP32),
)


class SlotRead(NamedTuple):
    """One kind of read of the slots: requests, and their answers in order."""

    request: Any
    answer: Any


class SlotClient(NamedTuple):
    """The streams of one read client of the slots."""

    descriptor: SlotRead
    entries: SlotRead
    outlier: SlotRead


def slot_client(block: Block, prefix: str) -> SlotClient:
    """The streams that ``slot_read(prefix, ...)`` gave ``block``."""
    names = ("slot", "descriptor"), ("entry_request", "entries"), ("outlier_request", "outlier")
    streams = ((getattr(block, f"{prefix}_{name}") for name in pair) for pair in names)
    return SlotClient(*(SlotRead(*pair) for pair in streams))


def slot_read(prefix: str, bits_a: int, integer_bits: int) -> dict:
    """A read client of the slots.

    request                               answer
    ``_slot`` {slot}                      ``_descriptor``
    ``_entry_request`` {slot, row}        ``_entries``
    ``_outlier_request`` {slot, position} ``_outlier``
    """
    return {
        f"{prefix}_slot": Out(stream.Signature(Payload(slot=_SLOT)), "Requests for descriptors."),
        f"{prefix}_descriptor": In(
            stream.Signature(descriptor_layout), "The descriptors, in the order of the requests."
        ),
        f"{prefix}_entry_request": Out(
            stream.Signature(Payload(slot=_SLOT, row=_SLOT_ROW)), "Requests for rows of entries."
        ),
        f"{prefix}_entries": In(
            stream.Signature(entry_row_layout(bits_a, integer_bits)),
            "The rows, in the order of the requests.",
        ),
        f"{prefix}_outlier_request": Out(
            stream.Signature(Payload(slot=_SLOT, position=_POSITION)), "Requests for outliers."
        ),
        f"{prefix}_outlier": In(
            stream.Signature(Payload(word=(FP16.bits, "FP16 word", FP16))),
            "The outliers' words, in the order of the requests.",
        ),
    }
