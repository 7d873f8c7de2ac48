"""Yosys ``check -assert`` on the Verilog of a design."""

import tempfile
from pathlib import Path

from hdl.back.deliver import Delivery
from hdl.back.verilog import Design
from synth.yosys import YosysError, run


def check(design: Design | Delivery) -> None:
    """AssertionError, with Yosys' findings, unless ``check -assert`` passes on every module.

    It finds combinational loops, several drivers of one wire, and wires that are read and not
    driven. It also finds instances of modules or ports that do not exist.
    """
    with tempfile.TemporaryDirectory(prefix="check-") as folder:
        directory = Path(folder)
        (directory / "design.v").write_text(design.verilog)
        script = (
            f"read_verilog design.v\nhierarchy -check -top {design.name}\nproc\ncheck -assert\n"
        )
        try:
            run(script, directory)
        except YosysError:
            log = (directory / "yosys.log").read_text().splitlines()
            findings = [line for line in log if line.startswith(("Warning:", "ERROR:"))]
            raise AssertionError("\n".join([f"{design.name}:", *findings[:20]])) from None
