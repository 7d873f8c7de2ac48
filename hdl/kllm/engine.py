"""What every engine of the accelerator has in common: commands in, memory clients, status out.

An engine runs the commands of one unit, one after another. Through clients it reads and writes the
vector memory V (rows of ROW_ELEMENTS FP16 words) and the activation slots. A client is a stream of
requests and, for reads, a stream of answers in the order of the requests, any number of cycles
later. A write is visible to every read that is requested after it was taken. The status of a
command is offered when all its writes have been taken. golden.kllm.machine says what a failed
command has written.
"""

from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from golden.fp16.format import FP16, FP32
from golden.kllm.format import activation_entry_bits
from golden.kllm.isa import COMMANDS, OPERANDS_MAX, ROW_ELEMENTS, CommandStatus, Opcode

__all__ = [
    "ROW",
    "SLOT_LENGTH_BITS",
    "SLOT_ROW_BITS",
    "command_layout",
    "command_stream",
    "descriptor_layout",
    "entry_row_layout",
    "entry_write_layout",
    "operand",
    "outlier_write_layout",
    "row_read",
    "row_write_layout",
    "slot_read",
    "status_stream",
]

ROW = data.ArrayLayout(FP16.bits, ROW_ELEMENTS)  # one row of the vector memory
SLOT_LENGTH_BITS = 14  # K_MAX
SLOT_ROW_BITS = 10  # rows of K_MAX entries

command_layout = data.StructLayout({"opcode": 8, "operand": data.ArrayLayout(32, OPERANDS_MAX)})


def command_stream():
    """A command whose operand words are within their declared bits."""
    return In(stream.Signature(command_layout))


def status_stream():
    """CommandStatus bits, one word per command, in order."""
    return Out(stream.Signature(data.StructLayout({"status": len(CommandStatus)})))


def operand(command, opcode: Opcode, name: str):
    """The operand ``name`` of a command payload, at its declared width."""
    table = COMMANDS[opcode]
    position = table.position(name)
    return command.operand[position][: table.operands[position].bits]


row_write_layout = data.StructLayout({"row": 16, "word": ROW})


def row_read(prefix: str) -> dict:
    """A read client of the vector memory: requests {row}, answers {word}."""
    return {
        f"{prefix}_request": Out(stream.Signature(data.StructLayout({"row": 16}))),
        f"{prefix}_row": In(stream.Signature(data.StructLayout({"word": ROW}))),
    }


def entry_row_layout(bits_a: int, integer_bits: int) -> data.StructLayout:
    """ROW_ELEMENTS entries (index, or integer, low-aligned) and their outlier mask."""
    entry = activation_entry_bits(bits_a, integer_bits)
    return data.StructLayout(
        {"value": data.ArrayLayout(entry, ROW_ELEMENTS), "outlier": ROW_ELEMENTS}
    )


def entry_write_layout(bits_a: int, integer_bits: int) -> data.StructLayout:
    """A row of entries into a slot: entry row ``row`` holds positions 16 * row .. 16 * row + 15."""
    return data.StructLayout(
        {"slot": 8, "row": SLOT_ROW_BITS, "entries": entry_row_layout(bits_a, integer_bits)}
    )


# An outlier's FP16 word into a slot, ``position`` counting the outliers in ascending place.
outlier_write_layout = data.StructLayout({"slot": 8, "position": SLOT_LENGTH_BITS, "word": 16})

# What a slot holds in addition to entries and outliers.
descriptor_layout = data.StructLayout(
    {
        "valid": 1,
        "integer": 1,  # entries are unsigned integers, no outliers
        "length": SLOT_LENGTH_BITS,
        "outliers": SLOT_LENGTH_BITS,
        "scale": FP16.bits,
        "rms_reciprocal": FP32.bits,  # 1.0 without statistics
        "mean": FP32.bits,  # +0 without statistics
    }
)


def slot_read(prefix: str, bits_a: int, integer_bits: int) -> dict:
    """A read client of the slots.

        request                               answer
        ``_slot`` {slot}                      ``_descriptor``
        ``_entry_request`` {slot, row}        ``_entries``
        ``_outlier_request`` {slot, position} ``_outlier``
    """
    return {
        f"{prefix}_slot": Out(stream.Signature(data.StructLayout({"slot": 8}))),
        f"{prefix}_descriptor": In(stream.Signature(descriptor_layout)),
        f"{prefix}_entry_request": Out(
            stream.Signature(data.StructLayout({"slot": 8, "row": SLOT_ROW_BITS}))
        ),
        f"{prefix}_entries": In(stream.Signature(entry_row_layout(bits_a, integer_bits))),
        f"{prefix}_outlier_request": Out(
            stream.Signature(data.StructLayout({"slot": 8, "position": SLOT_LENGTH_BITS}))
        ),
        f"{prefix}_outlier": In(stream.Signature(data.StructLayout({"word": FP16.bits}))),
    }
