"""NAME.core: the kit as a package of FuseSoC (CAPI2)."""

from collections.abc import Iterable, Iterator, Mapping

from hdl.back.licence import LICENCE


def vlnv(description: Mapping) -> str:
    """Vendor, library, name and version of the core."""
    return f"senbazuru:blocks:{description['name']}:{description['versions']['senbazuru']}"


def _fileset(name: str, files: Iterable[str], kind: str) -> Iterator[str]:
    yield f"  {name}:"
    yield f"    file_type: {kind}"
    yield "    files:"
    yield from (f"      - {file}" for file in files)


def _simulation(name: str, tool: str, bench: str, filesets: str, options: list[str]):
    yield f"  {name}:"
    yield "    flow: sim"
    yield f"    filesets: [{filesets}]"
    yield f"    toplevel: {bench}"
    yield "    flow_options:"
    yield f"      tool: {tool}"
    yield from (f"      {option}" for option in options)


def core(description: Mapping, sources: list[str], files: Iterable[str]) -> str:
    """``sources``: the block's Verilog, children first. ``files``: all files of the kit."""
    name, files = description["name"], set(files)
    vectors = sorted(file for file in files if file.startswith("vectors/"))
    lines = [
        "CAPI=2:",
        f"# {LICENCE}",
        f"name: {vlnv(description)}",
        f"description: {description['block']}, made by Senbazuru",
        "filesets:",
        *_fileset("rtl", sources, "verilogSource-2005"),
    ]
    lines += _fileset("waivers", [f"{name}.vlt"], "vlt")
    filesets = "rtl, waivers"
    if f"{name}_pkg.sv" in files:
        lines += _fileset("package", [f"{name}_pkg.sv"], "systemVerilogSource")
    if vectors:
        lines += _fileset("testbench", [f"{name}_tb.v"], "verilogSource-2005")
        # The simulator runs in a folder of its own and reads the vectors from there.
        copied = [f"{file}: {{copyto: {file}}}" for file in vectors]
        lines += _fileset("vectors", copied, "user")
    lines += [
        "targets:",
        "  default:",
        f"    filesets: [{filesets}]",
        f"    toplevel: {description['modules'][-1]}",
    ]
    if vectors:
        bench, filesets = f"{name}_tb", f"{filesets}, testbench, vectors"
        options = ["iverilog_options: [-g2005]", "vvp_options: [-N]"]
        lines += _simulation("sim", "icarus", bench, filesets, options)
        options = ["mode: binary", "verilator_options: [--timing]"]
        lines += _simulation("sim_verilator", "verilator", bench, filesets, options)
    return "\n".join([*lines, ""])
