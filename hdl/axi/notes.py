"""Pages and kits tell by one text what a block with AXI4 reads needs of its memory."""

from amaranth.lib import wiring

from hdl.axi.signature import Axi4, Axi4Read
from hdl.block import Block

_RLAST = (
    "The memory must set RLAST with the last word of each burst, and with no other",
    "(IHI 0022, A3.4.1). After an early RLAST, data are wrong without a status, or a read waits",
    "for ever: only a reset of block and bus ends that. After a missing RLAST, data are wrong.",
    "No answer has a time limit.",
)


def read_note(block: Block) -> tuple[str, ...]:
    """Lines of the note; none if ``block`` reads no AXI4 memory."""
    ports = [
        each.signature
        for each in block.signature.members.values()
        if each.is_signature and each.flow == wiring.Out
    ]
    return _RLAST if any(isinstance(each, Axi4 | Axi4Read) for each in ports) else ()
