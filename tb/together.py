"""``python -m tb.together [--defaults] [NAME ...]``: do the files of all blocks compile together?

Writes every registered block, or those named, into one folder, as ``python -m hdl.build`` does.
Each has its smallest named configuration, and is written twice: without and with ``--prefix``.
``--defaults`` writes the default configuration too, whose top is then NAME. The smallest one is
``small_NAME``. Each tool then reads all files at once:

- Yosys checks that every module that has an instance is there, once;
- Verilator lints with ``-Wall`` and the waivers that lie next to the files;
- Icarus elaborates all tops, where it is installed.

Prints seconds of each step. Exit status: 0; 1 if a tool finds anything; 2 bad input.
"""

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from golden import command
from golden.config import Config, ConfigError
from golden.files import claimed, made_folder
from hdl.arguments import folder
from hdl.back.deliver import Delivery, package, write
from hdl.back.verilog import convert
from hdl.registry import Registered, all_blocks, find
from synth.yosys import YosysError, run
from tb.simulate.compile import tool_environment

PREFIX = "other_"
SMALL = "small_"


def smallest(block: Registered) -> Config:
    """The smallest named configuration: what compiles together is no matter of sizes."""
    return block.configs.get("small", next(iter(block.configs.values()), block.config))


def _clear(folder: Path) -> None:
    """Remove the files of an earlier run; FileExistsError for a folder that holds anything else."""
    found = sorted(each for each in folder.iterdir() if each.suffix != ".lock")
    for each in found:
        if each.suffix not in (".v", ".vlt", ".json", ".part") or each.is_dir():
            raise FileExistsError(f"{each} is no file of this command: choose another folder")
    for each in found:
        each.unlink()


def emit_all(
    names: Iterable[str], folder: Path, defaults: bool = False
) -> Iterator[list[Delivery]]:
    """Write each block without and with PREFIX, and its default if asked; yield what was written.

    With ``defaults`` the top of the smallest configuration is SMALL and the block's name.
    """
    for name in names:
        block = find(name)
        top = SMALL + name if defaults else name
        design = convert(block.component(smallest(block)), top)
        made = [package(design), package(design, PREFIX)]
        if defaults and block.config != smallest(block):
            made.append(package(convert(block.component(block.config), name)))
        write((folder, each) for each in made)
        yield made


def yosys(folder: Path) -> str:
    """The message of Yosys on all files of ``folder``, empty: nothing."""
    files = " ".join(sorted(file.name for file in folder.glob("*.v")))
    with tempfile.TemporaryDirectory(prefix="together-") as work:
        for file in folder.glob("*.v"):
            shutil.copy(file, work)
        try:
            run(f"read_verilog {files}\nhierarchy -check\n", Path(work))
        except YosysError as error:
            return str(error)
    return ""


def verilator(folder: Path, names: Iterable[str]) -> str:
    """The beginning of what Verilator's lint finds in the files of ``names`` together."""
    files = [f"{name}.{kind}" for kind in ("vlt", "v") for name in names]
    # Every block is a top of its own.
    command = ["verilator", "--lint-only", "-Wall", "-Wno-MULTITOP", *files]
    result = subprocess.run(
        command, cwd=folder, env=tool_environment(), capture_output=True, text=True
    )
    return (result.stderr or f"exit {result.returncode}")[:20000] if result.returncode else ""


def icarus(folder: Path) -> str | None:
    """The findings of Icarus in all files of ``folder``; None: it is not installed."""
    if shutil.which("iverilog") is None:
        return None
    files = sorted(file.name for file in folder.glob("*.v"))
    command = ["iverilog", "-g2005", "-Wall", "-tnull", *files]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return result.stderr[:20000] if result.returncode else ""


def _report(tool: str, found: str | None, start: float) -> bool:
    seconds = time.perf_counter() - start
    said = "not installed: skipped" if found is None else "finds errors" if found else "clean"
    print(f"{tool:10} {said}, {seconds:.1f} s", flush=True)
    if found:
        print(found)
    return bool(found)


def _run(names: list[str], folder: Path, defaults: bool) -> bool:
    """Write the files into ``folder`` and give them to each tool; whether one finds anything."""
    _clear(folder)
    start, made = time.perf_counter(), []
    for place, each in enumerate(emit_all(names, folder, defaults), start=1):
        made += each
        print(f"  [{place}/{len(names)}] {each[0].name}", flush=True)
    modules = {name: text for each in made for name, text in each.modules.items()}
    written = sum(len(each.modules) for each in made)
    waived: dict[str, int] = {}
    for each in made:
        for rule, number in each.waived.items():
            waived[rule] = waived.get(rule, 0) + number
    print(f"{len(made)} files, {written} modules, {len(modules)} of them distinct")
    print(f"waivers: {', '.join(f'{number} {rule}' for rule, number in sorted(waived.items()))}")
    print(f"emission   {time.perf_counter() - start:.1f} s")
    start = time.perf_counter()
    failed = _report("Yosys", yosys(folder), start)
    start = time.perf_counter()
    stems = [each.stem for each in made]
    failed |= _report("Verilator", verilator(folder, stems), start)
    start = time.perf_counter()
    failed |= _report("Icarus", icarus(folder), start)
    return failed


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m tb.together", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="blocks; default: all")
    parser.add_argument(
        "--defaults", action="store_true", help="the default configuration of each block too"
    )
    parser.add_argument("-o", dest="folder", type=folder, default=Path("build") / "together")
    options = parser.parse_args(arguments)
    try:
        names = options.names or list(all_blocks())
        for name in names:
            find(name)
        # Not the folder itself: hdl.back.deliver.write takes its lock.
        with made_folder(options.folder), claimed(options.folder / "together"):
            failed = _run(names, options.folder, options.defaults)
    except (ConfigError, OSError) as error:
        print(f"tb.together: {error}", file=sys.stderr)
        return 2
    return int(failed)


if __name__ == "__main__":
    command.run("tb.together", main)
