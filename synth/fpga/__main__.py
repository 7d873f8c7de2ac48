"""``python -m synth.fpga NAME``: what a block takes of an FPGA, and its clock after routing."""

from golden import command
from synth.fpga.report import main

if __name__ == "__main__":
    command.run("synth.fpga", main)
