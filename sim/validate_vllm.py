"""``python -m sim.validate_vllm``: a published measurement of vLLM next to ``sim.serving``.

``sim/calib/vllm.csv`` has figures of GPUStack's documentation, of ``docs/performance-lab/
qwen3-14b/a100.md``: one A100 80 GB, vLLM 0.11.0 with its default settings, Qwen3-14B, all requests
at once. No constant of the chip ``a100-vllm-v1`` is fitted on them. That attention needs tiles was
found from them; the size of a tile is that of the kernel's source.

The source states sums of tokens. The requests of a workload are as equal as whole numbers allow.
The lengths of ShareGPT are not stated, so they are drawn, and only the whole time is compared.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from golden import command
from golden.config import ConfigError
from golden.markers import table
from sim.calibration import FOLDER, published_rows
from sim.engine import Engine, engine_of
from sim.model import Model, find_model
from sim.serving.arrivals import Load, requests_of
from sim.serving.metrics import spread
from sim.serving.outcome import Outcome
from sim.serving.pages import Page, Pages
from sim.serving.policy import Policy
from sim.serving.schedule import serve
from sim.serving.times import Amount, StepTimes
from sim.serving.trace import Request
from sim.tables import print_tables
from sim.work import Shape

PAGE = Path(__file__).resolve().parent.parent / "docs" / "serving.md"
FILE = FOLDER / "vllm.csv"
CHIP, MODEL = "a100-vllm-v1", "qwen3-14b"
FITTED = "2,000 / 100"  # the one workload that a line of ``mechanisms`` is fitted on
LATENCIES = tuple(
    f"{what}_{how}_ms" for what in ("ttft", "tpot") for how in ("mean", "median", "p99")
)
_COUNTS = ("requests", "input", "output")
_NUMBERS = ("s", *LATENCIES, "output_per_s", "total_per_s")
FIELDS = ("workload", "lengths", *_COUNTS, *_NUMBERS, "commit")
LENGTHS = ("equal", "unknown")
_BLOCK = 16  # tokens of a page and of a block of the prefix cache, by default
_POLICY = Policy(schedule="v1", max_batch=256, tokens=2048, prefix_block=_BLOCK)
_SPREAD = 0.7  # standard deviation of the logarithm of a drawn length
_MOST = 1 << 30


@dataclasses.dataclass(frozen=True)
class Row:
    """A workload as the source states it.

    lengths : ``equal``, or ``unknown``
    counts : requests, and tokens of all prompts and of all outputs
    figures : seconds of the run; milliseconds to the first token and per token after it; tokens
        per second, of outputs and of all
    """

    workload: str
    lengths: str
    counts: Mapping[str, int]
    figures: Mapping[str, float]
    commit: str

    @property
    def is_equal(self) -> bool:
        return self.lengths == "equal"

    def requests(self) -> list[Request]:
        """The requests, all at time 0. No two share a block of their prompts."""
        count, input_, output = (self.counts[name] for name in _COUNTS)
        if self.is_equal:
            sizes = list(zip(even(input_, count), even(output, count), strict=True))
        else:
            load = Load(
                arrivals="burst", requests=count, prompt=round(input_ / count),
                output=round(output / count), spread=_SPREAD,
            )  # fmt: skip
            sizes = [(each.prompt, each.output) for each in requests_of(load)]
        made, block = [], 0
        for number, (prompt, words) in enumerate(sizes, 1):
            blocks = prompt // _BLOCK
            hashes = tuple(range(block, block + blocks))
            made.append(Request(number, 0.0, prompt, words, hashes))
            block += blocks
        return made


def even(total: int, count: int) -> list[int]:
    """``count`` whole numbers that differ by 1 at most and sum to ``total``, mixed evenly."""
    return [total * (n + 1) // count - total * n // count for n in range(count)]


def _row(where: str, found: Mapping[str, str | None]) -> Row:
    try:
        counts = {name: int(str(found[name])) for name in _COUNTS}
        figures = {name: float(str(found[name])) for name in _NUMBERS}
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None
    lengths = str(found["lengths"])
    if lengths not in LENGTHS:
        raise ConfigError(f"{where}: lengths must be one of {', '.join(LENGTHS)}, not {lengths!r}")
    for name in ("input", "output"):
        if not 0 < counts["requests"] <= counts[name] <= _MOST:
            raise ConfigError(f"{where}: {name} must be a token or more of each request")
    for name, value in figures.items():
        if not 0 < value < math.inf:
            raise ConfigError(f"{where}: {name} must be above 0, not {value:g}")
    return Row(str(found["workload"]), lengths, counts, figures, str(found["commit"]))


def rows_of(path: Path = FILE) -> list[Row]:
    """The rows of a file. ConfigError: it is none, or a number is odd."""
    return published_rows(path, FIELDS, _row)


class _Watched(StepTimes):
    """StepTimes that add up the seconds of passes with prompts, and of decoding alone."""

    prompts = decoding = 0.0

    def exact(self, parts: Sequence[Shape], words: int) -> Amount:
        found = super().exact(parts, words)
        self.prompts += found[0]
        return found

    def advance(
        self, batch: int, mean: float, growth: float, most: int, seconds: float = math.inf
    ) -> tuple[int, Amount]:
        steps, found = super().advance(batch, mean, growth, most, seconds)
        self.decoding += found[0]
        return steps, found


@dataclasses.dataclass(frozen=True)
class Prediction:
    """A run of a workload.

    figures : as of Row, without rates
    prompts, decoding : seconds of passes with prompts, and of decoding alone
    """

    outcome: Outcome
    figures: Mapping[str, float]
    prompts: float
    decoding: float

    @property
    def passes(self) -> int:
        return sum(self.outcome.passes.values())


def predict(
    row: Row, chip: Engine, model: Model, *, is_cached: bool = True, host: float = 0.0
) -> Prediction:
    """vLLM's default settings. ConfigError: the chip cannot run the model.

    is_cached : a request that gave its pages back finds the blocks of its prompt that are left
    host : seconds of each pass in which the chip waits for its host
    """
    pages = Pages(chip, model, Page(size=_BLOCK))
    policy = _POLICY if is_cached else dataclasses.replace(_POLICY, prefix_block=0)
    made: list[_Watched] = []

    def times(longest: int) -> StepTimes:
        made.append(_Watched(chip, model, longest, host=host))
        return made[-1]

    outcome = serve(row.requests(), pages, times, policy)
    found = {"s": outcome.seconds}
    for what, values in (
        ("ttft", [each.to_first for each in outcome.served]),
        ("tpot", [each.per_token for each in outcome.served]),
    ):
        figures = spread(values)
        if figures is None:
            raise ConfigError(f"{row.workload}: no request has run, or none has a second token")
        names = {"mean": "mean", "median": "p50", "p99": "p99"}
        found |= {f"{what}_{how}_ms": 1e3 * figures[name] for how, name in names.items()}
    return Prediction(outcome, found, made[0].prompts, made[0].decoding)


def operations(row: Row, model: Model) -> float:
    """Multiplications and sums that the model needs, each once. Layers are alike."""
    total = 0.0
    for each in row.requests():
        tokens = each.prompt + each.output - 1
        pairs = tokens * (tokens + 1) // 2
        attention = model.layers * model.heads * (model.head_size + model.value) * pairs
        words = each.output * model.hidden * model.vocabulary
        total += 2.0 * (tokens * model.layer_weights + attention + words)
    return total


def start(figures: Mapping[str, float]) -> float:
    """Seconds before the first token of all, if first tokens then come evenly.

    Of even times, 0.49 of the requests lie between the median and the 99th percentile.
    """
    whole = (figures["ttft_p99_ms"] - figures["ttft_median_ms"]) / 0.49
    return (figures["ttft_p99_ms"] - 0.99 * whole) / 1e3


def host_of(row: Row, chip: Engine, model: Model) -> float:
    """Seconds of the host in each pass that give a row its measured time.

    All requests come at once, so the passes are the same whatever they last.
    """
    bare = predict(row, chip, model)
    return (row.figures["s"] - bare.figures["s"]) / bare.passes


def _percent(predicted: float, measured: float) -> str:
    return f"{100 * (predicted / measured - 1):+.1f} %"


def _shown(name: str, value: float) -> str:
    """A latency or a time with three digits or more."""
    if name.startswith("tpot"):
        return f"{value:.0f} ms"
    seconds = value / 1e3 if name != "s" else value
    return f"{seconds:.1f} s"


@functools.cache
def _parties() -> tuple[list[Row], Engine, Model, list[Prediction]]:
    rows, chip, model = rows_of(), engine_of(CHIP), find_model(MODEL)
    return rows, chip, model, [predict(row, chip, model) for row in rows]


def compared() -> str:
    """Tabulates each workload: measured, predicted, and the error of each figure."""
    rows, _, _, found = _parties()
    names, made = ("s", *LATENCIES), []
    for row, prediction in zip(rows, found, strict=True):
        shown = names if row.is_equal else ("s",)
        rest = [""] * (len(names) - len(shown))
        measured, predicted = row.figures, prediction.figures
        made += [
            [row.workload, "measured", *(_shown(n, measured[n]) for n in shown), *rest],
            ["", "predicted", *(_shown(n, predicted[n]) for n in shown), *rest],
            ["", "error", *(_percent(predicted[n], measured[n]) for n in shown), *rest],
        ]
    head = ["workload", "", "time", "first token, mean", "median", "p99", "token, mean"]
    return table([*head, "median", "p99"], made)


def bounds() -> str:
    """Tabulates each workload: its passes, what binds them, and the share of the peak."""
    rows, chip, model, found = _parties()
    peak, made = chip.base("peak_16"), []
    for row, prediction in zip(rows, found, strict=True):
        asked, outcome = operations(row, model), prediction.outcome
        both = (row, prediction)
        own = [f"{100 * asked / each.figures['s'] / peak:.1f} %" for each in both]
        own += [f"{start(each.figures):.1f} s" for each in both]
        made.append(
            [
                row.workload, f"{outcome.passes.get('mixed', 0):,}", f"{prediction.prompts:.1f} s",
                f"{outcome.passes.get('decode', 0):,}", f"{prediction.decoding:.1f} s",
                sum(each.preempted for each in outcome.served),
                *(own if row.is_equal else [""] * len(own)),
            ]
        )  # fmt: skip
    head = ["workload", "passes with prompts", "time", "of decoding alone", "time"]
    head += ["preemptions", "share of the peak, measured", "predicted"]
    return table([*head, "before the first token, measured", "predicted"], made)


def mechanisms() -> str:
    """Tabulates the error of the whole time, with one thing changed at a time."""
    rows, chip, model, found = _parties()
    fitted = next((row for row in rows if row.workload == FITTED), None)
    if fitted is None:
        raise ConfigError(f"{FILE.name} must have a row of workload {FITTED!r}")
    host = host_of(fitted, chip, model)
    bare = engine_of(CHIP, {"settings.attention_rows": 1})
    changed: dict[str, Callable[[Row], Prediction]] = {
        "no tiles of 64 queries": lambda row: predict(row, bare, model),
        "no prefix cache": lambda row: predict(row, chip, model, is_cached=False),
        f"{1e3 * host:.1f} ms of the host in each pass, fitted on {FITTED}": lambda row: predict(
            row, chip, model, host=host
        ),
    }
    lines = [("as above", found)]
    lines += [(name, list(map(run, rows))) for name, run in changed.items()]
    shown = []
    for name, predictions in lines:
        errors = [
            _percent(each.figures["s"], row.figures["s"])
            for row, each in zip(rows, predictions, strict=True)
        ]
        shown.append([name, *errors])
    return table(["error of the time", *(row.workload for row in rows)], shown)


TABLES: dict[str, Callable[[], str]] = {
    "serving_vllm": compared,
    "serving_vllm_bounds": bounds,
    "serving_vllm_mechanisms": mechanisms,
}


def main(arguments: list[str] | None = None) -> int:
    """The command line; 0, or 2 after one line on stderr."""
    return print_tables("sim.validate_vllm", __doc__ or "", TABLES, PAGE, arguments)


if __name__ == "__main__":
    command.run("sim.validate_vllm", main)
