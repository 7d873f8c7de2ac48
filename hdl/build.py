"""``python -m hdl.build NAME [NAME ...]``: write NAME.v, NAME.vlt and NAME.json of each block.

Any set of blocks compiles together, those of separate calls included: README.md shows two blocks in
one chip. ``field=value``, ``--config`` and ``--as`` are of one block: they need a call with one
NAME. ``-o``, ``--prefix``, ``--wrap``, ``--separator`` and ``--kit`` are of every block of the
call.
"""

import resource
import shlex
import sys
import time
import warnings
from pathlib import Path

from amaranth.hdl import UnusedElaboratable

from golden import command
from golden.config import Config, ConfigError
from hdl.arguments import folder
from hdl.back.deliver import Delivery, HasFiles, check_folder, check_identifier, deliver, write
from hdl.back.interface import Interface
from hdl.back.separator import SEPARATORS, check_name, delivered_names
from hdl.back.verilog import WRAPS, port_rows
from hdl.kit.parts import (
    PARTS,
    KitDelivery,
    check_kit_folder,
    find_vectors,
    kit_folder,
    make_kit,
    parts_of,
)
from hdl.pages.diagram import Drawing, diagram
from hdl.registry import all_blocks, configuration, find
from hdl.target import TARGETS, built_for

_LONGEST = 200  # of a top's name: a file's name has 255 bytes on most systems, and ends are added


def build(
    name: str,
    config,
    directory: Path,
    wrap: str | None = None,
    *,
    top: str | None = None,
    prefix: str = "",
) -> Delivery:
    """Convert block ``name`` at ``config`` and write its files into ``directory``.

    top: name of the module in the place of ``name``; prefix: of every module's name.
    """
    made = deliver(find(name).component(config), top or name, prefix=prefix, wrap=wrap)
    write([(directory, made)])
    return made


def _print_list() -> None:
    for name, block in all_blocks().items():
        summary = (block.component.__doc__ or "").strip().splitlines()[0]
        named = f"  [{', '.join(block.configs)}]" if block.configs else ""
        print(f"{name:20} {summary}{named}")


def _print_ports(rows: list[tuple]) -> None:
    for name, direction, bits, _, meaning in rows:
        print(f"  {direction:6} {bits!s:>9}  {'  ' * (not direction)}{name:24} {meaning}")


def _print_summary(made: Delivery, path: Path, seconds: float) -> None:
    description = made.description
    print(f"{made.name}: {len(description['modules'])} distinct modules")
    for port in description["ports"]:
        print(f"  {port['direction']:6} {port['width']:6}  {port['name']:24} {port['meaning']}")
    print(f"  latency     {description['latency']}")
    print(f"  throughput  {description['throughput']}")
    waived = ", ".join(f"{number} {rule}" for rule, number in made.waived.items()) or "none"
    print(f"  waivers     {waived}")
    # The children of this process are Yosys alone.
    peak = max(
        resource.getrusage(who).ru_maxrss
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    size = len(made.verilog.encode())
    print(f"  {path}  {size / 1e6:.2f} MB  in {seconds:.1f} s, {peak / 1024:.0f} MiB at most")


def _configurations(options) -> dict[str, Config]:
    """NAME -> configuration, of every NAME of the call; ConfigError for what cannot be."""
    names = [word for word in options.words if "=" not in word]
    assignments = [word for word in options.words if "=" in word]
    for name in names[1:]:
        if name not in all_blocks() and hasattr(find(names[0]).config, name):
            raise ConfigError(f"{name!r} must be field=value")
    for name in names:
        find(name)
        if names.count(name) > 1:
            raise ConfigError(
                f"{name} is named {names.count(name)} times: "
                "build each in a call of its own, with --as TOP"
            )
    if len(names) > 1:
        given = [*assignments, *(["--config"] if options.config is not None else [])]
        given += ["--as"] if options.top is not None else []
        if given:
            raise ConfigError(
                f"{given[0]} is for one block: give {' and '.join(names)} one call each"
            )
    return {name: configuration(name, options.config, assignments) for name in names}


def _check_top(name: str, config: Config, options) -> None:
    """ConfigError: the top's name is a keyword, a port of the block, or too long for a file."""
    top = options.prefix + (name if options.top is None else options.top)
    given = "--prefix" if options.top is None else "--as"
    if options.prefix and options.top is not None:
        given = "--prefix and --as together"
    check_identifier(given, top)
    if len(top) > _LONGEST:
        raise ConfigError(f"{given}: the name must have 1..{_LONGEST} letters, not {len(top)}")
    block = find(name).component(config)
    block._MustUse__silence = True  # it is not elaborated
    check_name(given, top, options.separator)
    ports = Interface.of(block, ("clk", "rst")).names
    made = delivered_names(ports, options.separator).values()
    if top in ports or top.lower() in map(str.lower, made):
        raise ConfigError(f"{given} must not be {top!r}, a port of {name}")


def _make(name: str, config: Config, options) -> Delivery | KitDelivery:
    top = name if options.top is None else options.top
    named = {
        "prefix": options.prefix, "wrap": options.wrap, "separator": options.separator,
    }  # fmt: skip
    with built_for(options.target):
        if not options.kit:
            return deliver(find(name).component(config), top, **named)
        parts = parts_of(options.parts)
        vectors = find_vectors(name, config) if "testbench" in parts else None
        block = find(name).component(config)
        return make_kit(block, top, parts, vectors, split=options.split, **named)


def _check_kit(options) -> None:
    """ConfigError: an option of kits without ``--kit``, or an unknown part."""
    for option in ("parts", "split"):
        if getattr(options, option) and not options.kit:
            raise ConfigError(f"--{option} is for --kit")
    parts_of(options.parts)


def _build_all(configs: dict[str, Config], options) -> None:
    """All blocks are converted before the first file is written."""
    done: list[tuple[Delivery | KitDelivery, Path, float]] = []
    drawings: list[tuple[Path, Drawing]] = []
    for name, config in configs.items():
        folder = kit_folder(name) if options.kit else Path("build") / name
        folder = options.directory or folder
        check_folder(folder)
        start = time.perf_counter()
        made = _make(name, config, options)
        if isinstance(made, KitDelivery):
            check_kit_folder(made, folder, [each for _, each, _ in done])
        for other, *_ in done:
            if {made.name, made.stem} & {other.name, other.stem}:
                raise ConfigError(f"two blocks would be the module {made.name}")
        done.append((made, folder, time.perf_counter() - start))
        if options.diagram:
            svg = diagram(find(name).component(config), made.stem)
            drawings.append((folder, Drawing(made.stem, svg)))
    deliveries: list[tuple[Path, HasFiles]] = [(folder, made) for made, folder, _ in done]
    write([*deliveries, *drawings])
    for made, folder, seconds in done:
        if isinstance(made, KitDelivery):
            _print_summary(made.delivery, folder / f"{made.stem}.v", seconds)
            _print_kit(made, folder)
        else:
            _print_summary(made, folder / f"{made.stem}.v", seconds)
    for folder, drawing in drawings:
        print(f"  {folder / drawing.stem}.svg")


def _print_kit(made: KitDelivery, folder: Path) -> None:
    files = [name for name in made.kit if "/" not in name]
    print(f"  kit         {', '.join(files)}")
    if "run.sh" in files:
        script = shlex.quote(str(folder / "run.sh"))
        print(f"  testbench   sh {script} icarus, or sh {script} verilator")


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m hdl.build", description=__doc__)
    parser.add_argument("words", nargs="*", metavar="NAME | field=value", help="blocks to build")
    parser.add_argument("--list", action="store_true", help="list all blocks")
    parser.add_argument("--config", metavar="NAMED", help="start from a named configuration")
    parser.add_argument(
        "-o", dest="directory", type=folder, help="default build/NAME, or build/kits/NAME"
    )
    parser.add_argument("--as", dest="top", metavar="TOP", help="name of the module and its files")
    parser.add_argument(
        "--prefix", default="", metavar="P", help="begin the name of every module, TOP included"
    )
    parser.add_argument(
        "--wrap", choices=WRAPS, help="add the top NAME_axi with standard AXI port names"
    )
    parser.add_argument(
        "--target", choices=TARGETS, default=TARGETS[0], help="fpga: queues in RAM of LUTs"
    )
    parser.add_argument(
        "--separator", choices=SEPARATORS, default=SEPARATORS[0],
        help="joins the parts of the top's port names, __ by default; VHDL takes _",
    )  # fmt: skip
    parser.add_argument(
        "--kit", action="store_true", help="write all that an integrator checks in, and a testbench"
    )
    parser.add_argument(
        "--parts", metavar="P,P", help=f"with --kit: only these of {', '.join(PARTS)}"
    )
    parser.add_argument("--split", action="store_true", help="with --kit: one file per module")
    parser.add_argument("--ports", action="store_true", help="print the ports, write nothing")
    parser.add_argument(
        "--diagram", action="store_true", help="write NAME.svg too: the parts and their streams"
    )
    options = parser.parse_intermixed_args(arguments)
    if options.list:
        if options.words:
            parser.error(f"--list shows all blocks: it takes no name, not {options.words[0]!r}")
        _print_list()
        return 0
    if not any("=" not in word for word in options.words):
        parser.error("a block's name is needed (python -m hdl.build --list shows all)")
    try:
        _check_kit(options)
        if options.wrap and options.separator != SEPARATORS[0]:
            raise ConfigError(
                f"--separator {options.separator} is for ports without --wrap {options.wrap}, "
                "whose names have no __"
            )
        if options.prefix:
            check_identifier("--prefix", options.prefix)
        if options.top is not None:
            check_identifier("--as", options.top)
        configs = _configurations(options)
        for name, config in configs.items():
            _check_top(name, config, options)
        if options.ports:
            for name, config in configs.items():
                if len(configs) > 1:
                    print(name)
                block = find(name).component(config)
                _print_ports(port_rows(block, options.wrap, options.separator))
            return 0
        _build_all(configs, options)
    except BrokenPipeError:
        raise
    except (ConfigError, OSError) as error:
        # What was half elaborated would each complain at the end.
        warnings.simplefilter("ignore", UnusedElaboratable)
        print(f"hdl.build: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    command.run("hdl.build", main)
