"""A kit as files: which parts there are, and what each writes."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from golden.config import Config, ConfigError
from hdl.axi.notes import read_note
from hdl.back.deliver import Delivery, deliver, guarded
from hdl.back.licence import LICENCE
from hdl.back.separator import SEPARATORS
from hdl.block import Block
from hdl.kit import kits, texts
from hdl.kit.episodes import Vectors
from hdl.kit.fusesoc import core
from hdl.kit.runner import readme, run_script
from hdl.kit.testbench import bench_files
from hdl.memory.config import MemoryConfig

# Parts that are one file made of the description: end of its name, and what makes its text.
_OF_DESCRIPTION: dict[str, tuple[str, Callable]] = {
    "sdc": (".sdc", texts.constraints),
    "package": ("_pkg.sv", texts.sv_package),
    "header": (".h", texts.c_header),
    "registers": (".rdl", texts.register_description),
    "template": ("_template.vh", texts.template),
}
_OF_TOP = ("sdc", "template")  # of the wrapper, where there is one
PARTS = ("filelist", "core", *_OF_DESCRIPTION, "rams", "testbench")


def parts_of(text: str | None) -> tuple[str, ...]:
    """The parts of ``PART,PART``; None: all of them. ConfigError: an unknown part."""
    if text is None:
        return PARTS
    wanted = [part.strip() for part in text.split(",")]
    for part in wanted:
        if part not in PARTS:
            raise ConfigError(f"--parts must be among {', '.join(PARTS)}, not {part!r}")
    return tuple(part for part in PARTS if part in wanted)


def find_vectors(name: str, config: Config) -> Vectors:
    """Golden vectors of block ``name``.

    ConfigError: the block has none, or a package that makes them is missing.
    """
    hint = f"leave testbench out of --parts ({','.join(PARTS[:-1])})"
    try:
        found = kits.vectors(name, config)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the testbench of {name} needs {error.name}, which is not installed: "
            f"pip install '.[torch]'; {hint}"
        ) from None
    if found is None:
        raise ConfigError(f"{name} has no golden vectors for a testbench; {hint}")
    return found


@dataclasses.dataclass(frozen=True)
class KitDelivery:
    """A delivery with the files of its kit; ``hdl.back.deliver.write`` writes both."""

    delivery: Delivery
    kit: dict[str, str]  # without those of the delivery

    @property
    def name(self) -> str:
        return self.delivery.name

    @property
    def stem(self) -> str:
        return self.delivery.stem

    def files(self) -> dict[str, str]:
        return self.delivery.files() | self.kit


def check_kit_folder(made: KitDelivery, folder: Path, taken: Sequence[Path]) -> None:
    """ConfigError: the folder is that of another kit (``taken``: of this call), or has a README.

    README.md, run.sh and vectors have the same names in every kit.
    """
    title = made.kit["README.md"].splitlines()[0]
    old = folder / "README.md"
    is_other = old.is_file() and old.read_text(errors="replace").splitlines()[:1] != [title]
    if folder in taken or is_other:
        raise ConfigError(f"the kit of {made.stem} needs a folder of its own, not {folder}")


def _split(made: Delivery) -> tuple[Delivery, dict[str, str]]:
    """The delivery with its top alone in NAME.v, and a file for each other module.

    A waiver of NAME.vlt names lines of NAME.v. So each rule holds for the whole of every file.
    """
    others: dict[str, str] = {}
    verilog = made.verilog
    for module, text in made.modules.items():
        if module != made.stem:
            whole = guarded(module, text)
            verilog = verilog.replace(f"{whole}\n", "").replace(whole, "")
            others[f"{module}.v"] = f"// {LICENCE}\n{whole}"
    lines = [f"// {LICENCE}", "`verilator_config"]
    for file in (*others, f"{made.stem}.v"):
        for rule in made.waived:
            lines += [f'lint_off -rule {rule} -file "{place}{file}"' for place in ("", "*/")]
    return dataclasses.replace(made, verilog=verilog, waivers="\n".join([*lines, ""])), others


def _granularity(made: Delivery) -> dict[str, int]:
    """RAM macro -> bits that one of its write enables writes."""
    return {
        name: block.config.lane_bits
        for name, block in made.blocks.items()
        if isinstance(block.config, MemoryConfig)
    }


def make_kit(
    block: Block,
    name: str,
    parts: Sequence[str],
    vectors: Vectors | None,
    *,
    prefix: str = "",
    wrap: str | None = None,
    split: bool = False,
    separator: str = SEPARATORS[0],
) -> KitDelivery:
    """The kit of ``block`` as module ``{prefix}{name}``; identical bytes on every run.

    vectors: None, unless ``parts`` has the testbench. It tests the block inside a wrapper.
    split: one file per module.
    """
    made = deliver(block, name, prefix=prefix, wrap=wrap, separator=separator)
    inner, named = made.inner, {**made.description, "name": made.stem}
    others: dict[str, str] = {}
    if split:
        made, others = _split(made)
    sources = [*others, f"{made.stem}.v"]
    files = dict(others)
    for part, (end, make) in _OF_DESCRIPTION.items():
        text = make(made.description if part in _OF_TOP else named) if part in parts else None
        if text is not None:
            files[f"{made.stem}{end}"] = text
    if "rams" in parts:
        files[f"{made.stem}_rams.csv"] = texts.ram_table(made.description, _granularity(made))
    if "filelist" in parts:
        files[f"{made.stem}.f"] = _list(sources)
    if vectors is not None:
        files |= bench_files(inner, vectors, made.ports)
        files[f"{made.stem}_tb.f"] = _list([*sources, f"{made.stem}_tb.v"])
        files["run.sh"] = run_script(made.stem)
    if "core" in parts:
        files[f"{made.stem}.core"] = core(named, sources, files)
    known = {*files, *made.files()}
    files["README.md"] = readme(inner, known, vectors, read_note(block))
    return KitDelivery(made, files)


def _list(sources: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in (f"// {LICENCE}", *sources))


def kit_folder(name: str) -> Path:
    """The folder of a kit without ``-o``."""
    return Path("build") / "kits" / name
