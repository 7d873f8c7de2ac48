"""Row height, site and wires of the libraries that a block can be placed in.

Liberty files have areas and delays, and nothing of these. They come from OpenROAD-flow-scripts
(https://github.com/The-OpenROAD-Project/OpenROAD-flow-scripts), folder ``flow/platforms``: the
site from a LEF file, the wire of signals from ``set_wire_rc -signal`` of ``setRC.tcl``.
"""

import dataclasses
import fnmatch

from synth.liberty import Library, LibraryError
from synth.placement import Site


@dataclasses.dataclass(frozen=True)
class Technology:
    """``cells`` matches the names of the library's cells.

    pf_per_um, kohm_per_um : of a wire of signals
    pdk, scl : names of LibreLane's PDK and cells; empty where it has none
    """

    name: str
    cells: str
    site: Site
    pf_per_um: float
    kohm_per_um: float
    source: str
    pdk: str = ""
    scl: str = ""


TECHNOLOGIES = (
    Technology(
        "sky130hd",
        "sky130_fd_sc_hd__*",
        Site(0.46, 2.72),
        1.72375e-4,
        1.20565e-3,
        "sky130hd/lef/sky130_fd_sc_hd.tlef, site unithd; sky130hd/setRC.tcl, met1, commit "
        "37646784833b4781400bfda391b2abda2b5c8ded",
        "sky130A",
        "sky130_fd_sc_hd",
    ),
    Technology(
        "asap7",
        "*_ASAP7_75t_R",
        Site(0.054, 0.27),
        1.65790e-4,
        2.65684e-2,
        "asap7/lef/asap7_tech_1x_201209.lef, site asap7sc7p5t; asap7/setRC.tcl, commit "
        "09df6d28c6af8aa479bf4784930484a1b5fb4196",
    ),
)


def technology_of(library: Library) -> Technology:
    """The technology of ``library``; LibraryError: none of TECHNOLOGIES has its smallest NAND."""
    name = library.nand2.name
    for each in TECHNOLOGIES:
        if fnmatch.fnmatchcase(name, each.cells):
            return each
    known = ", ".join(each.name for each in TECHNOLOGIES)
    raise LibraryError(
        f"{library.name}: a placement needs a row height and wires, which are known of {known}"
    )
