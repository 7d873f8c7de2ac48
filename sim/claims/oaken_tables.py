"""Oaken's Tables 1 and 4: rates of three chips, and areas of a core.

Areas of our engines are those of docs/area.md, which ``python -m synth.compare oaken`` writes. They
are 28 nm equivalents without RAMs. The paper does not state how many elements its engines process
per cycle, so each width is a variant.
"""

import functools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from golden.config import ConfigError
from sim.claims.claim import Claim
from sim.claims.kllm_table import TABLE_1
from sim.constant import Quantity
from sim.engine import engine_of
from sim.hardware import MEMORIES

_PAPER = "Oaken"
# A link to docs/area.md, of which an installation has a copy here.
_PAGE = Path(__file__).resolve().parent / "area.md"
_CORE = Quantity(3.971, "mm2")  # Table 4
_AREAS = {
    "matrix processing unit": Quantity(0.908, "mm2"),
    "vector processing unit": Quantity(0.239, "mm2"),
}
_ENGINES = {"quantization": Quantity(0.074, "mm2"), "dequantization": Quantity(0.252, "mm2")}
_SHARES = {
    "matrix processing unit": 22.86, "vector processing unit": 6.03, "quantization": 1.86,
    "dequantization": 6.35,
}  # fmt: skip
_LANES = (8, 16, 32, 64)
_PRODUCTS = 135_000  # of a cycle: Table 1's 270 TFLOPS at its 1.0 GHz
_RETICLE = Quantity(26 * 33, "mm2")  # the largest field of a lithography machine
_KLLM_MAC = TABLE_1["MAC"].area * (1 / 32)  # in the 28 nm of Table 4
_FMA = re.compile(r"^\| fp16_fma, 4 stages \|(?:[^|]*\|){4} ([\d,]+) \|", re.M)
_ROW = re.compile(r"^\| (\w+), (\d+) \|(?:[^|]*\|){2} ([\d.]+) \|", re.M)


@functools.cache
def synthesised(page: Path = _PAGE) -> dict[str, float]:
    """mm2 of logic of each engine and width, ``NAME, LANES``. ConfigError: the page has none."""
    try:
        text = page.read_text()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{page.name}: {error}") from None
    section = re.search(r"<!-- generated: oaken_engines -->(.*?)<!-- end", text, re.S)
    rows = _ROW.findall(section[1] if section else "")
    found = {f"{name}, {lanes}": float(mm2) for name, lanes, mm2 in rows}
    if not found:
        raise ConfigError(f"{page.name}: has no areas of Oaken's engines")
    return found


def _area(variant: str) -> Quantity:
    areas = synthesised()
    if variant not in areas:
        raise ConfigError(f"{_PAGE.name}: has no row {variant}")
    return Quantity(areas[variant], "mm2")


def _overhead(variant: str) -> float:
    engines = _ENGINES["quantization"] + _ENGINES["dequantization"]
    rest = _CORE if variant == "of the core" else _CORE + -1.0 * engines
    return 100 * (engines / rest)


def _fma(page: Path = _PAGE) -> Quantity:
    """The area of our pipelined FP16 multiply-add. ConfigError: the page has none."""
    try:
        found = _FMA.search(page.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{page.name}: {error}") from None
    if not found:
        raise ConfigError(f"{page.name}: has no area of fp16_fma, 4 stages")
    return Quantity(float(found[1].replace(",", "")), "um2")


def chip_area(variant: str) -> Quantity:
    """The area of the cores of Table 4 that reach the peak of Table 1.

    A variant is the products of a core in a cycle, or the multiply-add that fills its matrix unit.
    """
    macs = {"KLLM's MAC": lambda: _KLLM_MAC, "fp16_fma, 4 stages": _fma}
    if variant in macs:
        products = int(_AREAS["matrix processing unit"] / macs[variant]())
    else:
        products = int(variant.split()[0])
    return -(-_PRODUCTS // products) * _CORE


def _file_bandwidth(hardware: str) -> Quantity:
    """Reads the bandwidth of the chip's file."""
    return Quantity(engine_of(hardware).memory.peak, "B/s")


def _standard_bandwidth(variant: str) -> Quantity:
    """The bandwidth of channels as the memory's standard has them."""
    kind, channels = variant.split(" x ")
    fields = json.loads((MEMORIES / f"{kind}.json").read_text())
    found = fields["bandwidth"]
    return int(channels) * Quantity(float(found["value"]), found["unit"])


def _file_capacity(hardware: str) -> Quantity:
    """Reads the capacity of the chip's file."""
    return Quantity(engine_of(hardware).memory.capacity, "B")


def _file_peak(hardware: str) -> Quantity:
    """The peak of the cores of the chip's file: 512 products each, at its clock."""
    engine = engine_of(hardware)
    return Quantity(2 * 512 * engine.settings.cores * engine.base("clock") / 1e12, "TFLOPS")


def _a100_peak(variant: str) -> Quantity:
    """The rate of 108 processors of 1,024 products a cycle, as NVIDIA's white paper has them."""
    value, unit = variant.split()
    return Quantity(2 * 108 * 1024 * Quantity(float(value), unit).to("Hz") / 1e12, "TFLOPS")


def _a100_clock(variant: str) -> Quantity:
    """The clock at which 108 processors of 1,024 products a cycle have so many TFLOPS."""
    value, unit = variant.split()
    return Quantity(Quantity(float(value), unit).to("TFLOPS") * 1e12 / (2 * 108 * 1024), "Hz")


def _table_1() -> list[Claim]:
    def made(what: str, claimed: float, unit: str, variants: list[str], **fields: Any) -> Claim:
        return Claim(
            paper=_PAPER, figure="Table 1", what=what, claimed=claimed, unit=unit,
            variants=variants, **fields,
        )  # fmt: skip

    return [
        made(
            "A100: peak in FP16", 312, "TFLOPS", ["1.4 GHz", "1.41 GHz"], measure=_a100_peak,
            near=1.01, reason="NVIDIA's 108 processors of 1,024 products a cycle",
        ),
        made(
            "A100: frequency", 1.4, "GHz", ["312 TFLOPS"], measure=_a100_clock, near=1.01,
            reason="NVIDIA's 108 processors of 1,024 products a cycle",
        ),
        made(
            "Oaken: peak in FP16", 270, "TFLOPS", ["oaken-hbm", "oaken-lpddr"],
            measure=_file_peak,
            reason="264 cores of 512 products are chosen for it; the paper states neither",
        ),
        made(
            "A100: memory bandwidth", 2.0, "TB/s", ["a100-80gb", "hbm2e x 40"],
            measure=lambda v: _standard_bandwidth(v) if " x " in v else _file_bandwidth(v),
            reason="NVIDIA's data sheet; five stacks of JEDEC's HBM2E at 3.2 Gb/s",
        ),
        made(
            "Oaken-HBM: memory bandwidth", 2.0, "TB/s", ["hbm2e x 40"],
            measure=_standard_bandwidth, reason="five stacks of JEDEC's HBM2E at 3.2 Gb/s",
        ),
        made(
            "Oaken-LPDDR: memory bandwidth", 1.1, "TB/s", ["lpddr5x x 64"],
            measure=_standard_bandwidth, reason="64 channels of JEDEC's LPDDR5X at 8.533 Gb/s",
        ),
        made(
            "A100 and Oaken-HBM: capacity", 80, "GB", ["a100-80gb", "oaken-hbm"],
            measure=_file_capacity,
            reason="our files take it from this table and NVIDIA's data sheet",
        ),
        made(
            "Oaken-LPDDR: capacity", 256, "GB", ["oaken-lpddr"], measure=_file_capacity,
            reason="our file takes it from this table",
        ),
        made(
            "Oaken: frequency", 1.0, "GHz", [],
            reason="docs/timing.md has our depths in FO4 without wires; "
            "no FO4 of 28 nm is measured here",
        ),
    ]  # fmt: skip


def _table_4() -> list[Claim]:
    def made(what: str, claimed: float, unit: str, reason: str, **fields: Any) -> Claim:
        return Claim(
            paper=_PAPER, figure="Table 4", what=what, claimed=claimed, unit=unit,
            reason=reason, **fields,
        )  # fmt: skip

    def share(name: str) -> Callable[[str], float]:
        return lambda _: 100 * ({**_AREAS, **_ENGINES}[name] / _CORE)

    return [
        *(
            made(
                f"area of the {name} engine", area.to("mm2"), "mm2",
                "our synthesis at 8 to 64 elements a cycle; the paper states no width",
                variants=[f"{name}, {lanes}" for lanes in _LANES], measure=_area,
            )
            for name, area in _ENGINES.items()
        ),
        *(
            made(
                f"area of the {name}", area.to("mm2"), "mm2",
                "no such unit here; its rate is not stated",
            )
            for name, area in {**_AREAS, "compute core": _CORE}.items()
        ),
        *(
            made(
                f"share of the {name}", claimed, "%", "the paper's own arithmetic",
                variants=["of the core"], measure=share(name), near=1.01,
            )
            for name, claimed in _SHARES.items()
        ),
        made(
            "overhead of both engines", 8.21, "%",
            "the paper's own arithmetic; it counts the engines in the core that it divides by",
            variants=["of the core", "of the core without them"], measure=_overhead, near=1.01,
        ),
    ]  # fmt: skip


_BOTH = Claim(
    paper=_PAPER, figure="Tables 1 and 4",
    what="cores of Table 4 with the peak of Table 1 fit a reticle of 858 mm2", claimed=1,
    unit="", trend=True, variants=["512 products", "KLLM's MAC", "fp16_fma, 4 stages"],
    measure=lambda variant: float(chip_area(variant) / _RETICLE <= 1),
    reason="264 cores of 512 products, as our files have them, are 1,048 mm2; multiply-adds that "
    "fill a matrix unit's 0.908 mm2 need more; the paper states no number of cores and no area of "
    "the chip; written after a look at our files",
)  # fmt: skip

CLAIMS: list[Claim] = [*_table_1(), *_table_4(), _BOTH]
