"""Blocks on an FPGA: resources and clocks after placement and routing.

| module | what is in it |
|---|---|
| devices | the devices, and what they have |
| harness | a top with six pins around a block with any number of ports |
| tools | Yosys and nextpnr as processes: errors in one line, seconds, memory |
| flow | a block from its Verilog to resources, clock and worst path |
| report | ``python -m synth.fpga NAME``: one block |
| table | ``python -m synth.fpga.table``: the tables of docs/fpga.md |
"""
