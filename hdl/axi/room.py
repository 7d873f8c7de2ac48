"""The AXI blocks by name."""

from hdl.axi.lite_registers import AxiLiteRegisters, AxiLiteRegistersConfig
from hdl.axi.read_port import AxiReadPort, AxiReadPortConfig
from hdl.axi.write_port import AxiWritePort, AxiWritePortConfig
from hdl.registry import Registered, Room

BLOCKS = {
    "axi_read_port": Registered(
        component=AxiReadPort,
        config=AxiReadPortConfig(),
        configs={
            "small": AxiReadPortConfig(
                data_bits=64, id_bits=3, burst_beats=5, outstanding=3, length_bits=10
            ),
            "table1": AxiReadPortConfig(data_bits=1024, burst_beats=32),
        },
        golden="golden.axi.reference:read_words",
    ),
    "axi_write_port": Registered(
        component=AxiWritePort,
        config=AxiWritePortConfig(),
        configs={
            "small": AxiWritePortConfig(
                data_bits=64, id_bits=3, burst_beats=5, outstanding=3, length_bits=10
            ),
            "table1": AxiWritePortConfig(data_bits=1024, burst_beats=32),
        },
        golden="golden.axi.reference:write_packet",
    ),
    "axi_lite_registers": Registered(
        component=AxiLiteRegisters,
        config=AxiLiteRegistersConfig(),
        configs={
            "small": AxiLiteRegistersConfig(
                address_bits=6, command_depth=5, status_depth=3, readback_depth=1
            )
        },
        golden="golden.axi.reference:RegisterModel",
    ),
}

ROOM = Room(blocks=BLOCKS)
