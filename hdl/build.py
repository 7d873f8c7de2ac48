"""``python -m hdl.build NAME``: write DIR/NAME.v and DIR/NAME.json."""

import argparse
import json
import resource
import sys
import time
from pathlib import Path

from golden.config import ConfigError
from hdl.arguments import folder
from hdl.registry import all_blocks, configuration, find
from hdl.verilog import WRAPS, Design, convert, port_rows

__all__ = ["build", "main"]


def build(name: str, config, directory: Path, wrap: str | None = None) -> Design:
    """Convert block ``name`` at ``config`` and write its two files into ``directory``."""
    design = convert(find(name).component(config), name, wrap)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{name}.v").write_text(design.verilog)
    (directory / f"{name}.json").write_text(json.dumps(design.description, indent=2) + "\n")
    return design


def _print_list() -> None:
    for name, block in all_blocks().items():
        summary = (block.component.__doc__ or "").strip().splitlines()[0]
        named = f"  [{', '.join(block.configs)}]" if block.configs else ""
        print(f"{name:20} {summary}{named}")


def _print_ports(rows: list[tuple]) -> None:
    for name, direction, bits, _, meaning in rows:
        print(f"  {direction:6} {bits!s:>9}  {'  ' * (not direction)}{name:24} {meaning}")


def _print_summary(design: Design, path: Path, seconds: float) -> None:
    description = design.description
    print(f"{design.name}: {len(description['modules'])} distinct modules")
    for port in description["ports"]:
        print(f"  {port['direction']:6} {port['width']:6}  {port['name']:24} {port['meaning']}")
    print(f"  latency     {description['latency']}")
    print(f"  throughput  {description['throughput']}")
    # The children of this process are Yosys alone.
    peak = max(
        resource.getrusage(who).ru_maxrss
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    size = len(design.verilog.encode())
    print(f"  {path}  {size / 1e6:.2f} MB  in {seconds:.1f} s, {peak / 1024:.0f} MiB at most")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m hdl.build", description=__doc__)
    parser.add_argument("name", nargs="?", help="block to build")
    parser.add_argument("assignments", nargs="*", metavar="field=value")
    parser.add_argument("--list", action="store_true", help="list all blocks")
    parser.add_argument("--config", metavar="NAMED", help="start from a named configuration")
    parser.add_argument("-o", dest="directory", type=folder, help="default build/NAME")
    parser.add_argument(
        "--wrap", choices=WRAPS, help="add the top NAME_axi with standard AXI port names"
    )
    parser.add_argument("--ports", action="store_true", help="print the ports, write nothing")
    options = parser.parse_intermixed_args(arguments)
    if options.list:
        if options.name is not None:
            parser.error(f"--list shows all blocks: it takes no name, not {options.name!r}")
        _print_list()
        return 0
    if options.name is None:
        parser.error("a block's name is needed (python -m hdl.build --list shows all)")
    directory = options.directory or Path("build") / options.name
    start = time.perf_counter()
    try:
        config = configuration(options.name, options.config, options.assignments)
        if options.ports:
            _print_ports(port_rows(find(options.name).component(config), options.wrap))
            return 0
        design = build(options.name, config, directory, options.wrap)
    except (ConfigError, OSError) as error:
        print(f"hdl.build: {error}", file=sys.stderr)
        return 2
    _print_summary(design, directory / f"{options.name}.v", time.perf_counter() - start)
    return 0


if __name__ == "__main__":
    sys.exit(main())
