"""The payload that every stream block carries."""

from amaranth.lib import data

from hdl.children import SIGNAL_BITS
from hdl.kinds import BITS
from hdl.ports import Payload

# Of data, with last in the same signal.
MAX_BITS = SIGNAL_BITS - 1

# Shape and text of the field that ends a packet.
LAST = (1, "the word ends its packet")


def payload_layout(width: int, last: bool = True) -> data.StructLayout:
    """``data``: ``width`` bits that the block does not read; ``last``, if any: ends a packet."""
    fields: dict = {"data": (width, "bits that pass unchanged", BITS)}
    return Payload(**fields, **({"last": LAST} if last else {}))
