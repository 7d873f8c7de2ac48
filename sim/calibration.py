"""Measured cycles as CSV, and which rows may be fitted. Pure Python.

| file of ``sim/calib`` | a row is |
|---|---|
| units.csv | a block alone, or a whole operation, with what golden's timing predicts |
| kllm_runs.csv | a run of a layer: the machine, the layer, the memory's latency, the commit |
| kllm_cycles.csv | the commands of one kind in a run: how many, and their cycles |
| kllm_products.csv | a product on the whole accelerator, its tokens quantized before it |

The files of layers may be missing: no layer of the present programs is measured then, and the
delays are of an earlier fit. A run is for fitting (``train``) or for judging (``held-out``). A hash
of the run's fields draws it, so nobody chooses. A third is for fitting. No product is.
"""

import contextlib
import csv
import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from golden.config import ConfigError
from golden.files import replacing
from golden.kllm.config import LaneShape, MachineConfig, PortShape, SlotShape, VectorShape
from golden.kllm.layer.shape import LayerOptions, LayerShape
from golden.kllm.product import ProductCase
from golden.oaken.config import CacheConfig, KvShape
from sim.kllm.units import JUDGES, RANGED, TIMINGS, Units, fit_of

FOLDER = Path(__file__).parent / "calib"
RUNS, CYCLES, UNITS = "kllm_runs.csv", "kllm_cycles.csv", "units.csv"
PRODUCTS = "kllm_products.csv"
Made = TypeVar("Made")

VERSION = 1  # of the files of senbazuru.runs.cycles
SHARE = 3  # one run in so many is for fitting
TRAIN, HELD_OUT, GUIDE, JUDGE = "train", "held-out", "guide", "judge"
GUIDE_TOKENS = 3  # of the run that showed two rules which the schedule lacked
# Of the products that were in view when the rules for QUANTIZEs and MATMULs in a row were made.
GUIDE_LENGTHS = (576, 1536, 2048, 4096)


def mark_of(fields: Mapping[str, Any]) -> str:
    """TRAIN or HELD_OUT, by a hash of the fields; GUIDE for what rules were made from."""
    if fields.get("tokens", 1) == GUIDE_TOKENS:
        return GUIDE
    text = json.dumps(dict(sorted(fields.items())), sort_keys=True)
    return HELD_OUT if hashlib.sha256(text.encode()).digest()[0] % SHARE else TRAIN


def _mark(fields: Mapping[str, Any], folder: Path) -> str:
    """``mark_of``; JUDGE of all runs in the folder of the judges."""
    return JUDGE if folder.name == JUDGES else mark_of(fields)


def check_count(name: str, value: Any, least: int = 1) -> None:
    """ConfigError: no whole number of ``least`` or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name} must be {least} or more, not {value!r}")


def csv_rows(file: Path) -> list[dict[str, str]]:
    """The rows of a file. ConfigError: it is missing, no text, or a row has other cells."""
    try:
        with file.open() as text:
            rows = list(csv.DictReader(text))
    except OSError as error:
        raise ConfigError(f"{error.filename}: {error.strerror}") from None
    except (ValueError, csv.Error) as error:
        raise ConfigError(f"{file}: {error}") from None
    for number, row in enumerate(rows):
        if any(name is None or value is None for name, value in row.items()):
            raise ConfigError(f"{file}: row {number} must have a cell for each column")
    return rows


def published_rows(
    path: Path, fields: Sequence[str], row: Callable[[str, Mapping[str, str | None]], Made]
) -> list[Made]:
    """``row(where, cells)`` of each row; where : FILE:LINE, which it names in its errors.

    ConfigError: there is no such file, it has other fields or no rows.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path.name}: {error}") from None
    reader = csv.DictReader(lines)
    if tuple(reader.fieldnames or ()) != tuple(fields):
        raise ConfigError(f"{path.name}: fields must be {', '.join(fields)}")
    made = [row(f"{path.name}:{n}", found) for n, found in enumerate(reader, 2)]
    if not made:
        raise ConfigError(f"{path.name}: has no rows")
    return made


@contextlib.contextmanager
def cells_of(file: Path) -> Iterator[None]:
    """Errors of a file's cells as one ConfigError that names the file."""
    try:
        yield
    except ConfigError as error:
        raise in_file(file, error) from None
    except (KeyError, ValueError, TypeError) as error:
        raise ConfigError(f"{file}: {error!r}") from None


def in_file(file: Path, error: ConfigError) -> ConfigError:
    """The error with the name of the file, once."""
    return error if str(error).startswith(str(file)) else ConfigError(f"{file}: {error}")


def of_one_commit(file: Path, runs: Sequence[Any]) -> None:
    """ConfigError: no runs, or of several commits."""
    commits = sorted({run.commit for run in runs})
    if not runs:
        raise ConfigError(f"{file}: must have rows")
    if len(commits) > 1:
        raise ConfigError(f"{file}: commit must be one, not {', '.join(commits)}")


@dataclasses.dataclass(frozen=True)
class _Run:
    """A run on the accelerator. fields: the machine's, with the units and the latency."""

    fields: Mapping[str, Any]
    commit: str

    def _of(self, names: Sequence[str]) -> dict[str, Any]:
        return {name: self.fields[name] for name in names}

    @property
    def machine(self) -> MachineConfig:
        f = self.fields
        return MachineConfig(
            lane=LaneShape(**self._of(("lanes", "columns", "elements", "bits_b"))),
            slot=SlotShape(
                elements=f["slot_elements"],
                **self._of(("slots", "outliers_max", "bits_a", "integer_bits")),
            ),
            vectors=VectorShape(rows=f["vector_rows"]),
            ports=PortShape(ports=f["ports"], bits=f["port_bits"]),
            **self._of(("product", "softmax_elements", "replay_beats")),
        )

    @property
    def units(self) -> Units:
        return Units(function_width=self.fields["width"], **self._of(("counter", "macs")))


@dataclasses.dataclass(frozen=True)
class LayerRun(_Run):
    """A measured layer. fields: of RUNS, without mark and commit; cycles: by opcode.

    ``all`` is the opcode of the whole layer. A value of ``cycles`` is (commands, cycles).
    """

    cycles: Mapping[str, tuple[int, int]]

    @property
    def machine(self) -> MachineConfig:
        f = self.fields
        kv = KvShape(
            heads=f["cache_heads"], head_dim=f["cache_head_dim"], block=f["block"],
            order="token", groups=f["groups"],
        )  # fmt: skip
        cache = CacheConfig(
            kv=kv, sequences=1, layers=1, pages=1 << 20, page_bytes=f["page_bytes"],
            max_tokens=f["max_tokens"],
        )  # fmt: skip
        others = self._of(("batch", "queries", "engines"))
        return dataclasses.replace(super().machine, cache=cache, **others)

    @property
    def units(self) -> Units:
        names = (
            "functions", "ahead", "banks", "packet_words", "cache_bits", "attention_lanes",
            "attention_macs", "attention_words",
        )  # fmt: skip
        found = self._of(names)
        return dataclasses.replace(super().units, **{**found, "ahead": bool(found["ahead"])})

    @property
    def mark(self) -> str:
        return mark_of(self.fields)

    @property
    def name(self) -> str:
        """Short and unique: what differs between runs."""
        f = self.fields
        made = f"{f['lanes']} lanes, {f['ports']} ports, context {f['context']}"
        made += f", latency {f['latency']}"
        if f["tokens"] > 1:
            made += f", {f['tokens']} tokens"
        others = {"glu": "index", "fuse": 1, "functions": 1, "ahead": 0, "banks": 1}
        for name, usual in others.items():
            made += f", {name} {f[name]}" if f[name] != usual else ""
        return made

    @property
    def shape(self) -> LayerShape:
        names = ("hidden", "heads", "kv_heads", "head_size", "intermediate", "epsilon")
        return LayerShape(**self._of(names))

    @property
    def options(self) -> LayerOptions:
        return LayerOptions(fuse=bool(self.fields["fuse"]), **self._of(("glu", "share")))

    @property
    def total(self) -> int:
        """Cycles of the layer."""
        return self.cycles.get("all", (0, 0))[1]

    def opcodes(self) -> dict[str, int]:
        """Cycles of the commands of each kind."""
        return {name: cycles for name, (_, cycles) in self.cycles.items() if name != "all"}


@dataclasses.dataclass(frozen=True)
class ProductRun(_Run):
    """A measured product. fields: of PRODUCTS, without cycles and commit.

    quantized, cycles : from the program to the status of the first QUANTIZE, of the last MATMUL
    ConfigError: a number out of range.
    """

    quantized: int
    cycles: int

    def __post_init__(self) -> None:
        f = self.fields
        numbers = {name: f[name] for name in ("length", "outputs", "latency")}
        for name, value in {**numbers, "quantized": self.quantized, "cycles": self.cycles}.items():
            check_count(name, value)
        if f["outliers"] not in ("online", "offline"):
            raise ConfigError(f"outliers must be online or offline, not {f['outliers']!r}")
        _ = self.case, self.machine, self.units  # which check their numbers

    @property
    def mark(self) -> str:
        """GUIDE or HELD_OUT: nothing was fitted on a product."""
        return GUIDE if self.fields["length"] in GUIDE_LENGTHS else HELD_OUT

    @property
    def case(self) -> ProductCase:
        f = self.fields
        return ProductCase(
            tokens=f["tokens"],
            at_a_time=f["tokens_at_a_time"],
            online=f["outliers"] == "online",
        )

    @property
    def matrix(self) -> str:
        """The matrix, the machine and its memory."""
        f = self.fields
        machine = f"{f['lanes']} lanes, {f['ports']} ports, latency {f['latency']}"
        return f"{f['length']} x {f['outputs']}, {machine}"

    @property
    def tokens(self) -> str:
        """Writes how many tokens there are, and how many at a time."""
        return f"{self.fields['tokens']}/{self.fields['tokens_at_a_time']}"


@dataclasses.dataclass(frozen=True)
class Unit:
    """A figure of a bench at some rate: nothing of it is fitted.

    parameters : JSON of what the block was given; predicted_by : a function of golden's timing
    ConfigError: no cycles.
    """

    command: str
    block: str
    parameters: str
    cycles: int
    predicted: int
    predicted_by: str
    commit: str

    def __post_init__(self) -> None:
        check_count("cycles", self.cycles)
        check_count("predicted", self.predicted)


def read_units(file: Path, commit: str) -> list[Unit]:
    """The figures that golden predicts. ConfigError names the file and what is wrong."""
    try:
        found = json.loads(file.read_text())
        return [
            Unit(
                each["command"], each["block"], json.dumps(each["parameters"]), each["cycles"],
                each["predicted"], each["predicted_by"], commit,
            )
            for each in found["figures"]
            if each["predicted"] is not None
        ]  # fmt: skip
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(f"{file}: no measured cycles: {error!r}") from None


def save_units(units: Sequence[Unit], folder: Path = FOLDER) -> None:
    names = [field.name for field in dataclasses.fields(Unit)]
    _write(folder / UNITS, names, [dataclasses.asdict(each) for each in units])


def load_units(folder: Path = FOLDER) -> list[Unit]:
    """ConfigError: the file is missing or odd."""
    file = folder / UNITS
    with cells_of(file):
        return [
            Unit(**{**row, **{n: int(row[n]) for n in ("cycles", "predicted")}})  # type: ignore[arg-type]
            for row in csv_rows(file)
        ]


def _flat(configuration: Mapping[str, Any]) -> dict[str, Any]:
    machine = configuration["machine"]
    lane, slot = machine["lane"], machine["slot"]
    return {
        **{name: lane[name] for name in ("lanes", "columns", "elements", "bits_b")},
        "slot_elements": slot["elements"],
        **{name: slot[name] for name in ("slots", "outliers_max", "bits_a", "integer_bits")},
        "vector_rows": machine["vectors"]["rows"],
        "ports": machine["ports"]["ports"],
        "port_bits": machine["ports"]["bits"],
        **{name: machine[name] for name in ("product", "softmax_elements", "replay_beats")},
        "counter": configuration["build"]["counter"],
        "macs": configuration["build"]["macs"],
        "width": configuration["width"],
    }


def _check_plain(configuration: Mapping[str, Any]) -> None:
    """ConfigError: a build that a row of a product has no column for."""
    for name, wanted in (("functions", 1), ("ahead", False), ("banks", 1)):
        found = configuration.get(name, wanted)  # they came after the first runs
        if found != wanted:
            raise ConfigError(f"{name} must be {wanted}, not {found!r}")


def _cached(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the unit CACHE, and those that only runs of layers vary."""
    machine, build = configuration["machine"], configuration["cache"]
    cache = machine["cache"]
    kv = cache["kv"]
    return {
        **{name: machine[name] for name in ("batch", "queries", "engines")},
        "cache_heads": kv["heads"],
        "cache_head_dim": kv["head_dim"],
        **{name: kv[name] for name in ("block", "groups")},
        **{name: cache[name] for name in ("page_bytes", "max_tokens")},
        "functions": configuration["functions"],
        "ahead": int(configuration["ahead"]),
        "banks": configuration["banks"],
        "packet_words": configuration["build"]["packet_words"],
        "cache_bits": build["data_bits"],
        "attention_lanes": build["lanes"],
        "attention_macs": build["macs"],
        "attention_words": build["token_beats"],
    }


_SHAPE = (
    "tokens", "context", "hidden", "heads", "kv_heads", "head_size", "intermediate", "epsilon",
    "fuse", "glu", "share",
)  # fmt: skip


def read_figures(file: Path, commit: str) -> LayerRun:
    """The run of one file of senbazuru.runs.layer. ConfigError names the file and what is wrong."""
    try:
        found = json.loads(file.read_text())
        if found["version"] != VERSION:
            raise ConfigError(f"{file}: version must be {VERSION}, not {found['version']!r}")
        figures = found["figures"]
        first = figures[0]
        if first["command"] != "senbazuru.runs.layer":
            command = first["command"]
            raise ConfigError(f"{file}: must come from senbazuru.runs.layer, not {command}")
        given = first["parameters"]
        fields = {
            **_flat(first["configuration"]),
            **_cached(first["configuration"]),
            "latency": given["memory_latency"],
            **{name: given[name] for name in _SHAPE},
        }
        cycles: dict[str, tuple[int, int]] = {}
        for each in figures:
            key = each["parameters"]["opcode"].partition(" ")[0]
            count, total = cycles.get(key, (0, 0))
            cycles[key] = count + 1, total + each["cycles"]
        made = LayerRun(fields, commit, cycles)
        for name, least in (("tokens", 1), ("context", 0), ("latency", 0)):
            check_count(name, fields[name], least)
        _ = made.machine, made.units, made.shape, made.options  # which check their numbers
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None
    except ConfigError as error:
        raise in_file(file, error) from None
    except (LookupError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{file}: no figures of a layer: {error!r}") from None
    return made


_PRODUCT = ("length", "outputs", "tokens", "tokens_at_a_time", "outliers")


def read_products(file: Path, commit: str) -> list[ProductRun]:
    """The runs of one file of senbazuru.runs.accelerator_rates. ConfigError names the file."""
    try:
        figures = json.loads(file.read_text())["figures"]
        made = []
        for one, last in zip(figures[::2], figures[1::2], strict=True):
            given = last["parameters"]
            if last["command"] != "senbazuru.runs.accelerator_rates" or one["parameters"] != given:
                raise ConfigError(f"{file}: must come from senbazuru.runs.accelerator_rates")
            _check_plain(last["configuration"])
            fields = {
                **_flat(last["configuration"]),
                "latency": given["memory_latency"],
                **{name: given[name] for name in _PRODUCT},
            }
            made.append(ProductRun(fields, commit, one["cycles"], last["cycles"]))
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None
    except ConfigError as error:
        raise in_file(file, error) from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(f"{file}: no measured products: {error!r}") from None
    return made


def save_products(runs: Sequence[ProductRun], folder: Path = FOLDER) -> None:
    names = [*runs[0].fields, "quantized", "cycles", "commit"]
    rows = [
        {**run.fields, "quantized": run.quantized, "cycles": run.cycles, "commit": run.commit}
        for run in runs
    ]
    _write(folder / PRODUCTS, names, rows)


def load_products(folder: Path = FOLDER) -> list[ProductRun]:
    """ConfigError: the file is missing or odd."""
    file, made = folder / PRODUCTS, []
    with cells_of(file):
        for row in csv_rows(file):
            numbers = int(row.pop("quantized")), int(row.pop("cycles"))
            commit = row.pop("commit")
            fields = {name: _value(text) for name, text in row.items()}
            made.append(ProductRun(fields, commit, *numbers))
    of_one_commit(file, made)
    return made


def save(runs: Sequence[LayerRun], folder: Path = FOLDER) -> None:
    """Write both files; a run's number joins them."""
    names = list(runs[0].fields)
    rows = [
        {"run": n, "mark": _mark(run.fields, folder), **run.fields, "commit": run.commit}
        for n, run in enumerate(runs)
    ]
    _write(folder / RUNS, ["run", "mark", *names, "commit"], rows)
    cycles = [
        {"run": n, "opcode": name, "commands": count, "cycles": total}
        for n, run in enumerate(runs)
        for name, (count, total) in run.cycles.items()
    ]
    _write(folder / CYCLES, ["run", "opcode", "commands", "cycles"], cycles)


def _write(file: Path, names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    with replacing(file) as part, part.open("w", newline="") as out:
        writer = csv.DictWriter(out, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def ranges_of(runs: Sequence[LayerRun]) -> dict[str, list[int]]:
    """Least and largest of each number of ``RANGED``."""
    return {n: [f(run.fields[n] for run in runs) for f in (min, max)] for n in RANGED}


def fitted_runs(folder: Path = FOLDER) -> list[LayerRun]:
    """``load_runs``. ConfigError: also if the delays were fitted on runs of another commit."""
    runs, commit = load_runs(folder), fit_of(folder).commit
    if runs and commit != runs[0].commit:
        raise ConfigError(
            f"{folder / TIMINGS}: fitted on runs of commit {commit}, and {RUNS} has those of "
            f"{runs[0].commit}: python -m sim.calibrate --fit"
        )
    return runs


def load_runs(folder: Path = FOLDER) -> list[LayerRun]:
    """None where there is no such file. ConfigError: an odd one, a mark that is not the hash's, or
    commits that differ. Judges may be of several, as nothing is fitted on them.
    """
    if not (folder / RUNS).exists():
        return []
    rows, cycles = csv_rows(folder / RUNS), csv_rows(folder / CYCLES)
    made = []
    try:
        by_run: dict[str, dict[str, tuple[int, int]]] = {}
        for each in cycles:
            counts = int(each["commands"]), int(each["cycles"])
            check_count("commands", counts[0])
            check_count("cycles", counts[1])
            by_run.setdefault(each["run"], {})[each["opcode"]] = counts
        for row in rows:
            number, mark, commit = row.pop("run"), row.pop("mark"), row.pop("commit")
            fields = {name: _value(text) for name, text in row.items()}
            if _mark(fields, folder) != mark:
                raise ConfigError(
                    f"{folder / RUNS}: mark of run {number} must be {mark_of(fields)}, not {mark}"
                )
            made.append(LayerRun(fields, commit, by_run.get(number, {})))
    except ConfigError as error:
        raise in_file(folder, error) from None
    except (KeyError, ValueError, TypeError) as error:
        raise ConfigError(f"{folder / RUNS}: {error!r}") from None
    if not made or not all(run.total and run.opcodes() for run in made):
        raise ConfigError(f"{folder}: {RUNS} and {CYCLES} must have runs, each with cycles")
    if folder.name != JUDGES:
        of_one_commit(folder / RUNS, made)
    return made
