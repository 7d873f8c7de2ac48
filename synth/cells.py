"""The project's own cell table: what blocks are mapped to when no Liberty file is given.

Source: the areas are those that the SkyWater open PDK publishes for the smallest drive strength
of each function in Sky130 HD (sky130_fd_sc_hd, typical corner). Every area is a multiple of the
site of 1.2512 um2 (0.46 um x 2.72 um). Names, functions and everything else are written here: no
timing, no power. It is a table for comparing blocks with each other, not for sign-off.

ABC maps to cells of one output only, so adder cells (half adder 12.512 um2, full adder
20.0192 um2) have no place in the table.
"""

import dataclasses

NAME = "senbazuru-sky130hd"
_SITE = 1.2512  # um2


@dataclasses.dataclass(frozen=True)
class TableCell:
    """One cell: ``sites`` of 1.2512 um2, and its function (Liberty syntax) of pins A, B, C, ..."""

    name: str
    sites: int
    function: str
    sequential: bool = False

    @property
    def area(self) -> float:
        """um2"""
        return round(self.sites * _SITE, 4)

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(pin for pin in "ABCDEFS" if pin in self.function)


def _gates() -> list[TableCell]:
    return [
        TableCell("inv", 3, "!A"),
        TableCell("buf", 3, "A"),
        TableCell("nand2", 3, "!(A&B)"),
        TableCell("nand3", 4, "!(A&B&C)"),
        TableCell("nand4", 5, "!(A&B&C&D)"),
        TableCell("nor2", 3, "!(A|B)"),
        TableCell("nor3", 4, "!(A|B|C)"),
        TableCell("nor4", 5, "!(A|B|C|D)"),
        TableCell("and2", 5, "A&B"),
        TableCell("and3", 5, "A&B&C"),
        TableCell("and4", 7, "A&B&C&D"),
        TableCell("or2", 5, "A|B"),
        TableCell("or3", 5, "A|B|C"),
        TableCell("or4", 6, "A|B|C|D"),
        TableCell("nand2b", 5, "!(!A&B)"),
        TableCell("nor2b", 5, "!(!A|B)"),
        TableCell("and2b", 6, "!A&B"),
        TableCell("or2b", 6, "!A|B"),
        TableCell("aoi21", 4, "!((A&B)|C)"),
        TableCell("aoi22", 6, "!((A&B)|(C&D))"),
        TableCell("aoi31", 5, "!((A&B&C)|D)"),
        TableCell("aoi211", 6, "!((A&B)|C|D)"),
        TableCell("aoi221", 7, "!((A&B)|(C&D)|E)"),
        TableCell("oai21", 4, "!((A|B)&C)"),
        TableCell("oai22", 5, "!((A|B)&(C|D))"),
        TableCell("oai31", 6, "!((A|B|C)&D)"),
        TableCell("oai211", 6, "!((A|B)&C&D)"),
        TableCell("oai221", 7, "!((A|B)&(C|D)&E)"),
        TableCell("ao21", 6, "(A&B)|C"),
        TableCell("ao22", 7, "(A&B)|(C&D)"),
        TableCell("oa21", 6, "(A|B)&C"),
        TableCell("oa22", 7, "(A|B)&(C|D)"),
        TableCell("maj3", 8, "(A&B)|(A&C)|(B&C)"),
        TableCell("xor2", 7, "(A&!B)|(!A&B)"),
        TableCell("xnor2", 7, "(A&B)|(!A&!B)"),
        TableCell("mux2", 9, "(A&!S)|(B&S)"),
        TableCell("muxi2", 8, "!((A&!S)|(B&S))"),
    ]


# The synchronous resets of the blocks become gates before a plain flip-flop; asynchronous resets
# do not occur in them. An enable is a flip-flop of its own or a mux2, whichever Yosys chooses.
_FLIP_FLOPS = [
    TableCell("dff", 16, "D", sequential=True),
    TableCell("dffe", 24, "(D&E)|(IQ&!E)", sequential=True),
]

CELLS: tuple[TableCell, ...] = (*_gates(), *_FLIP_FLOPS)


def _flip_flop_text(cell: TableCell) -> str:
    data = ["D", "E"] if "E" in cell.function else ["D"]
    pins = "".join(f"    pin({pin}) {{ direction : input; }}\n" for pin in data)
    return (
        f"  cell({cell.name}) {{\n"
        f"    area : {cell.area};\n"
        f'    ff(IQ, IQN) {{ clocked_on : "CLK"; next_state : "{cell.function}"; }}\n'
        "    pin(CLK) { direction : input; clock : true; }\n"
        f"{pins}"
        '    pin(Q) { direction : output; function : "IQ"; }\n'
        "  }\n"
    )


def _gate_text(cell: TableCell) -> str:
    pins = "".join(f"    pin({pin}) {{ direction : input; }}\n" for pin in cell.inputs)
    return (
        f"  cell({cell.name}) {{\n"
        f"    area : {cell.area};\n"
        f"{pins}"
        f'    pin(Y) {{ direction : output; function : "{cell.function}"; }}\n'
        "  }\n"
    )


def liberty_text() -> str:
    """The table as a Liberty library."""
    body = "".join(_flip_flop_text(cell) if cell.sequential else _gate_text(cell) for cell in CELLS)
    return f'library("{NAME}") {{\n{body}}}\n'
