"""The small files of a kit: each is a function of the description of the block."""

from collections.abc import Iterator, Mapping

from hdl.back.licence import LICENCE
from hdl.back.render import comment
from hdl.kit.constants import Constant, constants

_LATENCY = 1  # cycles of a read of every RAM (hdl.memory)
_WORD = 32  # bits of an integer constant without a suffix


def _head(description: Mapping, what: str, mark: str = "//") -> list[str]:
    lines = [f"{mark} {LICENCE}", f"{mark} {what} of {description['name']}, block"]
    lines.append(f"{mark} {description['block']} of Senbazuru. Made by a program: do not edit.")
    return [*lines, ""]


def _text(lines) -> str:
    return "\n".join([*lines, ""])


def _with_meaning(line: str, each: Constant, mark: str, end: str = "") -> Iterator[str]:
    """The constant, after its meaning in a line of its own."""
    if each.meaning:
        yield f"{mark} {' '.join(each.meaning.replace('*/', '* /').split())}{end}"
    yield line


def sv_package(description: Mapping) -> str:
    """SystemVerilog package ``NAME_pkg``: each constant as a localparam."""
    lines = _head(description, "Constants")
    # Whoever imports the package uses a few of its constants.
    lines += ["/* verilator lint_off UNUSEDPARAM */", f"package {description['name']}_pkg;"]
    for group in constants(description):
        lines += ["", f"  // {group.title}"]
        for each in group.constants:
            kind = "int unsigned" if each.value < 1 << _WORD else "logic [127:0]"
            number = f"{max(_WORD, 128 * (each.value >> _WORD > 0))}'d{each.value}"
            lines += _with_meaning(f"  localparam {kind} {each.name} = {number};", each, "  //")
    return _text([*lines, "", "endpackage", "/* verilator lint_on UNUSEDPARAM */"])


def c_header(description: Mapping) -> str:
    """C header: each constant as a macro that begins with the block's name."""
    prefix = description["name"].upper()
    lines = [line.replace("//", "/*") + (" */" if line else "")
             for line in _head(description, "Constants")]  # fmt: skip
    lines += [f"#ifndef {prefix}_H", f"#define {prefix}_H"]
    for group in constants(description):
        lines += ["", f"/* {group.title} */"]
        for each in group.constants:
            suffix = "u" if each.value < 1 << _WORD else "ull"
            line = f"#define {prefix}_{each.name} {each.value}{suffix}"
            if each.value >> 64:
                line = f"/* {prefix}_{each.name} is {each.value}, more than 64 bits */"
            lines += _with_meaning(line, each, "/*", " */")
    return _text([*lines, "", "#endif"])


_ACCESS = {
    "RO": ("r", "w"),  # software, hardware
    "WO": ("w", "r"),
    "RW": ("rw", "rw"),
}


def register_description(description: Mapping) -> str | None:
    """SystemRDL 2.0 of the registers on AXI4-Lite; None: the block has none."""
    registers = description.get("registers")
    if not registers:
        return None
    lines = _head(description, "Registers")
    lines += [f"addrmap {description['name']}_registers {{", "  default regwidth = 32;"]
    for register in registers:
        software, hardware = _ACCESS[register["access"]]
        meaning = register["meaning"].replace("\\", "\\\\").replace('"', '\\"')
        lines += [
            "",
            "  reg {",
            f'    desc = "{meaning}";',
            f"    field {{ sw = {software}; hw = {hardware}; }} word[31:0];",
            f"  }} {register['name']} @ 0x{register['offset']:02x};",
        ]
    return _text([*lines, "};"])


def _by_role(description: Mapping, role: str) -> list[str]:
    return [port["name"] for port in description["ports"] if port["role"] == role]


def constraints(description: Mapping) -> str:
    """SDC: the clock, and the delays of inputs and outputs as variables."""
    lines = _head(description, "Timing constraints", "#")
    clocks = _by_role(description, "clock")
    lines += [
        "# Nanoseconds. Set them before this file is read, or change them here.",
        "if {![info exists clock_period]} { set clock_period 2.0 }",
        "if {![info exists input_delay]} { set input_delay [expr {0.3 * $clock_period}] }",
        "if {![info exists output_delay]} { set output_delay [expr {0.3 * $clock_period}] }",
        "",
    ]
    if clocks:
        lines.append(f"create_clock -name clk -period $clock_period [get_ports {{{clocks[0]}}}]")
    else:
        lines.append("create_clock -name clk -period $clock_period")
    for direction, command in (("input", "set_input_delay $input_delay"),
                               ("output", "set_output_delay $output_delay")):  # fmt: skip
        for port in description["ports"]:
            if port["direction"] == direction and port["name"] not in clocks:
                bus = f"{port['name']}[*]" if port["width"] > 1 else port["name"]
                lines.append(f"{command} -clock clk [get_ports {{{bus}}}]")
    return _text(lines)


def template(description: Mapping) -> str:
    """Declarations and an instance, to copy into the design that uses the block."""
    lines = _head(description, "Instance")
    for port in description["ports"]:
        lines += comment(f"{port['direction']}: {' '.join(port['meaning'].split())}")
        places = f"[{port['width'] - 1}:0] " if port["width"] > 1 else ""
        lines.append(f"wire {places}{port['name']};")
    names = [port["name"] for port in description["ports"]]
    connections = ",\n".join(f"    .{name}({name})" for name in names)
    return _text(
        [*lines, "", f"{description['name']} u_{description['name']} (", connections, ");"]
    )


def ram_table(description: Mapping, granularity: Mapping[str, int]) -> str:
    """CSV of the RAM macros. ``granularity``: module -> bits that one write enable writes."""
    lines = ["module,instances,width,depth,write_bits,read_ports,write_ports,read_latency"]
    for each in description["memories"]:
        bits = granularity.get(each["module"], each["width"])
        numbers = [each["count"], each["width"], each["depth"], bits]
        numbers += [each["read_ports"], each["write_ports"], _LATENCY]
        lines.append(",".join([each["module"], *map(str, numbers)]))
    return _text(lines)
