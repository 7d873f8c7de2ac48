"""The AXI blocks by name."""

from hdl.axi.lite_registers import AxiLiteRegisters
from hdl.axi.read_port import AxiReadPort
from hdl.axi.write_port import AxiWritePort
from hdl.registry import Room, registered

BLOCKS = registered(
    AxiReadPort,
    AxiWritePort,
    AxiLiteRegisters,
)

ROOM = Room(blocks=BLOCKS)
