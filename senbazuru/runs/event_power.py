"""``python -m senbazuru.runs.event_power --set NAME=FILE[,FILE...]``: energy of each event.

An event is what a unit does for one operation: a product of a lane, a word of the quantizer, a
command. The bench of a block drives its mapped gates. Two runs give

    pJ of an event = (energy of the busy run - its cycles * energy of an idle cycle) / events

An idle cycle is one of ``tb.idle``: the clock's energy, and what toggles without work. Leakage is
apart. Each figure is kept under ``--keep``, so a later call goes on where this one has ended.
``--write COMMIT`` puts the figures into ``sim/energy/events.json``, which the simulator reads.
"""

import dataclasses
import datetime
import functools
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from golden import command
from golden.config import ConfigError
from golden.files import claimed_folder, kept_json, replacing
from golden.markers import table
from golden.words import layout_words, pack
from hdl.arguments import add_page, check_page, folder, whole, write_page
from senbazuru.runs import lane_power
from senbazuru.runs.power import BenchError, MappedGates, bench_of
from synth.area import Libraries, SynthesisError
from synth.liberty import LibraryError
from synth.power import Power
from synth.tables.common import add_sets, library_sets
from synth.timing import delays_of
from synth.yosys import YosysError
from tb.faults.mutate import Recording
from tb.simulate.run import ROOT, emitted

PAGE = ROOT / "docs" / "power.md"
FILE = ROOT / "sim" / "energy" / "events.json"
CLOCK_NS = 10.0  # no energy of an event depends on it
ROWS = 48  # of a run of the vector lanes
THRESHOLDS = (0xC400, 0xAE66, 0x2E66, 0x4400)  # of Oaken's groups: -4, -0.1, 0.1, 4

HELP = """\
Energies of events need a Liberty file with power tables; the project ships none.
  make events LIBERTY=NAME=FILE[,FILE...]   measures what is missing, and prints the table
`make timing` says where open libraries are."""

Made = tuple[Any, str, dict[str, Any], dict[str, Any]]  # block, test module, vectors, params


@dataclasses.dataclass(frozen=True)
class Event:
    """Operations that are counted, and the block that does them.

    unit : the operation
    make : seed -> the block and its bench
    test : cocotb test of the bench; empty: all
    stream : stream whose transfers are counted, or a port of one bit
    each : operations of a transfer
    why : that the block's configuration, smaller than a chip's, has the same event
    less : another event, and how many of it come with each operation: their energy is taken off
    """

    unit: str
    make: Callable[[int], Recording]
    test: str
    stream: str
    each: int
    why: str
    less: tuple[str, float] | None = None


def _recording(made: Made, seed: int) -> Recording:
    block, module, vectors, params = made
    arguments = {"config": block.config, "vectors": vectors, "params": params, "seed": seed}
    return Recording("event", block, module, arguments)


def _lane(lane: str, seed: int) -> Recording:
    return _recording((lane_power.LANES | lane_power.LOOK_UPS)[lane](seed), seed)


def _look_up(columns: int, seed: int) -> Recording:
    return _recording(lane_power.look_up("rounded", False, seed, columns), seed)


def _words(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Normal numbers as FP16 words."""
    return lane_power.fp16(rng.normal(size=shape))


def _operation(name: str, seed: int) -> Recording:
    """A run of the vector lanes with one operation."""
    import torch  # slow to import

    from golden.kllm.format import Operation
    from golden.kllm.phases import lanes
    from golden.words import unpack_ints
    from hdl.kllm.function.vector_lanes import KllmVectorLanes, KllmVectorLanesConfig

    operation, rng = Operation[name], np.random.default_rng([seed, 287])
    bounds = operation in (Operation.MINIMUM, Operation.MAXIMUM)
    config = KllmVectorLanesConfig(width=4, bounds=bounds)
    a, b = (torch.tensor(_words(rng, ROWS, 16)) for _ in range(2))
    scalar, scale = int(_words(rng, 1)[0]), int(np.float32(0.7).view(np.uint32))
    if operation == Operation.ROTATE:
        pairs = [lanes(operation, a[k : k + 2], b[k : k + 2]) for k in range(0, ROWS, 2)]
        y = torch.cat(pairs)
    else:
        y = lanes(operation, a, b, scalar, scale)

    def ints(words: Any, width: int = 16) -> list[int]:
        return unpack_ints(pack((words.reshape(-1, width).numpy(), 16)))

    offers = {"a": ints(a)} if operation != Operation.SCALE else {"weight": ints(a, config.width)}
    if bounds or operation in (Operation.SUM, Operation.PRODUCT, Operation.ROTATE):
        offers["b"] = ints(b)
    case = {
        "operation": int(operation), "scalar": scalar, "scale": scale, "offers": offers,
        "sink": "o", "words": ints(y, config.width),
    }  # fmt: skip
    block = KllmVectorLanes(config)
    return _recording((block, "tb.kllm.tb_vector_lanes", {}, {"cases": [case]}), seed)


def _function(name: str, seed: int) -> Recording:
    """Words of one function through the pipeline; of RSQRT and SQRT the magnitudes."""
    import torch  # slow to import

    from golden.kllm.config import FunctionShape
    from golden.kllm.functional import function
    from golden.kllm.isa import Function
    from hdl.kllm.function.pipeline import (
        FUNCTION_BITS,
        KllmFunctionPipeline,
        KllmFunctionPipelineConfig,
    )

    chosen, rng = Function[name], np.random.default_rng([seed, 288])
    x = _words(rng, 400)
    if chosen in (Function.SQRT, Function.RSQRT):
        x &= 0x7FFF
    vectors = {}
    for phase in (name, "mixed"):
        vectors[f"{phase}.i"] = pack((np.full(len(x), int(chosen)), FUNCTION_BITS), (x, 16))
        vectors[f"{phase}.o"] = pack((function(chosen, torch.tensor(x)).numpy(), 16))
    extra = FunctionShape(**({name.lower(): True} if chosen >= Function.TANH else {}))
    block = KllmFunctionPipeline(KllmFunctionPipelineConfig(extra=extra))
    return _recording((block, "tb.kllm.tb_function_pipeline", vectors, {"functions": [name]}), seed)


def _outlier(seed: int) -> Recording:
    """Outliers of a chip's sums, each in two columns."""
    import torch  # slow to import

    from golden.kllm.blocks import sparse_sums
    from hdl.kllm.outliers.outlier import KllmOutlier, KllmOutlierConfig

    rng = np.random.default_rng([seed, 289])
    config, words, packets = KllmOutlierConfig(columns=2), 64, 8
    means = lane_power.codebook(seed)[1]
    entries = lane_power.fp16(means / np.abs(means).max())
    x = lane_power.fp16(rng.normal(size=(packets, words)) * 8)
    index = rng.integers(0, 16, (packets, words, config.columns))
    present = np.ones(words, dtype=bool)
    sums = []
    for packet in range(packets):
        given = (x[packet], present, index[packet], entries)
        sums += sparse_sums(*map(torch.as_tensor, given))
    last = np.arange(packets * words) % words == words - 1
    vectors = {
        "one.codebook": pack((entries[None], 16)),
        "one.i": layout_words(
            config.i_layout, present=np.ones(len(last), dtype=bool), x=x.reshape(-1),
            index=index.reshape(-1, config.columns), last=last,
        ),
        "one.o": layout_words(
            config.o_layout, sum=sums, last=np.arange(len(sums)) % config.columns == 1
        ),
    }  # fmt: skip
    params = {"phases": {"one": [words] * packets}}
    return _recording((KllmOutlier(config), "tb.kllm.tb_outlier", vectors, params), seed)


def _orizuru(pops: int, seed: int) -> Recording:
    """Tokens of 256 normal words, ``pops`` of them popped from each end."""
    from golden.kllm.vectors.orizuru import sound_vectors
    from hdl.kllm.outliers.orizuru import KllmOrizuru, KllmOrizuruConfig

    config = KllmOrizuruConfig(n_max=256, architecture="shared")
    words = _words(np.random.default_rng([seed, 290]), 12, 256)
    vectors, counts = sound_vectors(config, words, pops)
    params = {"tokens": counts, "flow": 6, "cuts": [1]}
    return _recording((KllmOrizuru(config), "tb.kllm.tb_orizuru", vectors, params), seed)


def _quantized(seed: int) -> Recording:
    from golden.oaken.vectors.kv_vectors import one_vector  # imports torch, slowly
    from golden.oaken.vectors.quant_engine import Job, engine_vectors
    from hdl.oaken.quant_engine import OakenQuantEngine, OakenQuantEngineConfig

    config = OakenQuantEngineConfig(lanes=8, elements_max=128)
    rng = np.random.default_rng([seed, 291])
    jobs = [Job(2, THRESHOLDS, one_vector(rng, "usual", THRESHOLDS, 128)) for _ in range(24)]
    vectors = {f"one.{name}": words for name, words in engine_vectors(config, jobs).items()}
    block = OakenQuantEngine(config)
    return _recording((block, "tb.oaken.tb_engine_rates", vectors, {"phases": ["one"]}), seed)


def _restored(seed: int) -> Recording:
    from golden.oaken.vectors.dequant_job import Job  # imports torch, slowly
    from golden.oaken.vectors.dequant_tokens import encoded_tokens
    from hdl.oaken.dequant_engine import OakenDequantEngine, OakenDequantEngineConfig

    rng = np.random.default_rng([seed, 292])
    config = OakenDequantEngineConfig(
        lanes=8, block=16, data_bits=64, blocks_max=5, stages=1, scale_stages=1
    )
    job = Job(config, rng)
    for _ in range(6):
        encoded, thresholds = encoded_tokens(rng, 8, 2 * config.block, config.block)
        job.add(encoded, thresholds[0], first=0)
    params = {"phases": ["one"]}  # "full" is a phase of tokens that follow each other without a gap
    block = OakenDequantEngine(config)
    return _recording((block, "tb.oaken.tb_dequant_engine", job.vectors("one"), params), seed)


def _attended(seed: int) -> Recording:
    from golden.attention.vectors.stream import run_vectors  # imports torch, slowly
    from hdl.attention.stream import AttentionStream, AttentionStreamConfig

    config = AttentionStreamConfig(
        heads=1, head_dim=16, queries=1, lanes=16, macs=16, width=4, max_rows=64
    )
    words, params = run_vectors(config, np.random.default_rng([seed, 293]), 6, usual=True)
    block = AttentionStream(config)
    return _recording((block, "tb.attention.tb_stream", {}, {"words": words, **params}), seed)


def _case(name: str, case: str, seed: int) -> Recording:
    return bench_of(name, case, seed)


_OPERATIONS = ("SUM", "PRODUCT", "ROTATE")
_FUNCTIONS = ("SILU", "GELU", "EXP", "RSQRT", "TANH", "GELU_ERF", "QUICK_GELU")
_SAME = "the chip's, "
EVENTS: dict[str, Event] = {
    "lane product": Event(
        "product of a selecting lane",
        functools.partial(_lane, "select, no integer mode"), "full_rate", "i",
        lane_power.ELEMENTS * lane_power.COLUMNS,
        "2 columns of 32: each column has its own selections and sum",
    ),
    "row look-up": Event(
        "beat of 16 elements, 32 columns",
        functools.partial(_look_up, 32), "full_rate", "i", 1, f"{_SAME}without integer mode",
    ),
    "outlier product": Event(
        "outlier times a weight", _outlier, "full_rate", "i", 2,
        "2 columns of 32: each has its own multiplier and sum",
    ),
    "output": Event(
        "output scaled and rounded", functools.partial(_case, "kllm_scaler", "three_stages"),
        "full_rate", "i", 1, _SAME + "with sums of 72 bits",
    ),
    "weight bit": Event(
        "bit of a beat of weights", functools.partial(_case, "kllm_weight_buffer", "one_word"),
        "one_job_at_full_rate", "w", 16,
        "beats of 16 bits: each bit has its own registers; the RAM is apart",
    ),
    "index": Event(
        "element to its index", functools.partial(_case, "index_nearest", "table1"),
        "full_rate", "x", 16, _SAME + "as it is",
    ),
    "tree word": Event(
        "word into Orizuru's trees", functools.partial(_orizuru, 1), "full_rate", "x", 16,
        "tokens of 256 words of 4,096, two of them popped: a level less; the RAMs are apart",
    ),
    "tree pop": Event(
        "outlier popped from Orizuru's trees", functools.partial(_orizuru, 40), "full_rate",
        "pop_max", 2, "as tree word; without the energy of the words that went in",
        ("tree word", 256 / 80),
    ),
    **{
        f"lanes {name}": Event(
            f"word of {name}", functools.partial(_operation, name), "full_rate", "o", 4,
            "4 of 8 words per cycle: each has its own multiplier and adder",
        )
        for name in _OPERATIONS
    },
    "lanes BOUND": Event(
        "word of MINIMUM or MAXIMUM", functools.partial(_operation, "MINIMUM"), "full_rate", "o", 4,
        "as the others, with ``bounds``",
    ),
    **{
        f"function {name}": Event(
            f"word of {name}", functools.partial(_function, name), "full_rate", "o", 1,
            _SAME + "one of ``functions``",
        )
        for name in _FUNCTIONS
    },
    "command": Event(
        "command of 16 words", functools.partial(_case, "kllm_dispatcher", "smallest"),
        "full_rate", "report", 1, "a queue of 3 of 4 commands",
    ),
    "record element": Event(
        "element of K or V to its record", _quantized, "rates", "i", 8,
        "8 lanes of 16: each has its own quantizer; the RAMs are apart",
    ),
    "element of a record": Event(
        "element of K or V from its record", _restored, "full_rate", "o", 8,
        "8 lanes of 64, blocks of 16: each has its own dequantizer",
    ),
    "attention product": Event(
        "product of q and K, or of a weight and V", _attended, "full_rate", "rows", 16,
        "16 lanes of 64 and one query; exponentials, queries and outputs are in it",
    ),
    "exponential": Event(
        "element of a softmax", functools.partial(_case, "attention_softmax", "width_4"),
        "full_rate", "score", 4, "4 of 16 words per cycle; maximum, exponential and sum",
    ),
    "FP16 product": Event(
        "product of an FP16 lane", functools.partial(_lane, "FP16 x FP16"), "full_rate", "i",
        lane_power.ELEMENTS * lane_power.COLUMNS, "2 columns: each has its own sum",
    ),
}  # fmt: skip


_kept: dict[Any, MappedGates] = {}  # the latest: operations of one block share its gates


def _mapped(name: str, block: Any, libraries: Libraries) -> MappedGates:
    key = name, repr(block.config), libraries.library.name
    if key not in _kept:
        _kept.clear()
        _kept[key] = MappedGates(name, block, libraries)
    return _kept[key]


def _moved(power: Power, stream: str) -> int:
    return next((each.transfers for each in power.streams if each.name == stream), 0)


def measure_event(name: str, libraries: Libraries, seed: int = 1) -> dict[str, Any]:
    """The figure of an event as plain values. AssertionError: the gates fail a bench."""
    event = EVENTS[name]
    recording = event.make(seed)
    block = re.sub(r"(?<=.)(?=[A-Z])", "_", type(recording.block).__name__).lower()
    mapped = _mapped(block, recording.block, libraries)
    busy = mapped.power(recording, CLOCK_NS, event.test, (event.stream,))
    ports = emitted(recording.block, block).description["ports"]
    plain = [p["name"] for p in ports if (p["role"], p["direction"]) == ("signal", "input")]
    arguments = recording.arguments | {"vectors": {}, "params": {"plain": plain}, "testcase": None}
    still = dataclasses.replace(recording, module="tb.idle", arguments=arguments)
    idle = mapped.power(still, CLOCK_NS)
    count = _moved(busy, event.stream) * event.each
    if not count:
        raise BenchError(f"{name}: {event.test} has moved no word of {event.stream}")
    spent = (busy.dynamic_pj - idle.dynamic_pj) * busy.cycles
    return {
        "event": name,
        "unit": event.unit,
        "block": block,
        "configuration": recording.block.config.describe(),
        "why": event.why,
        "test": event.test,
        "library": "",
        "volts": busy.volts,
        "pj": round(spent / count, 6),
        "count": count,
        "cycles": busy.cycles,
        "idle_pj": round(idle.dynamic_pj, 6),
        "clock_pj": round(busy.group_pj("clock"), 6),
        "leakage_mw": round(busy.leakage_mw, 9),
        "flip_flops": mapped.netlist.flip_flops,
        "kge": round(mapped.kge, 4),
    }


def settled(figures: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """``figures`` without the energy of the events that come with theirs; none lacks that one."""
    known = {(each["event"], each["library"]): each["pj"] for each in figures}
    made = []
    for each in figures:
        less = EVENTS[each["event"]].less
        if less is None:
            made.append(each)
        elif (less[0], each["library"]) in known:
            pj = each["pj"] - less[1] * known[less[0], each["library"]]
            made.append(each | {"pj": round(pj, 6)})
    return made


def event_table(figures: list[dict[str, Any]]) -> str:
    """A row for each event and library."""
    rows = [
        (
            each["event"],
            each["unit"],
            each["block"],
            each["library"],
            f"{each['pj']:.4g}",
            f"{each['idle_pj'] / each['flip_flops'] * 1000:.4g}",
            f"{each['leakage_mw'] / each['kge'] * 1e6:.4g}",
            f"{each['kge']:.1f}",
        )
        for each in figures
    ]
    head = (
        "event", "of", "block", "library", "pJ", "fJ per flip-flop and idle cycle",
        "leakage, nW per kGE", "kGE",
    )  # fmt: skip
    return table(head, rows)


def _file(keep: Path, name: str, library: str) -> Path:
    return keep / (re.sub(r"\W+", "-", f"{name} {library}") + ".json")


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m senbazuru.runs.event_power", description=__doc__)
    add_sets(parser)
    parser.add_argument("--seed", type=whole(0, 2**31 - 1), default=1)
    parser.add_argument(
        "--event", action="append", choices=EVENTS, help="measure this event; default: all of them"
    )
    parser.add_argument(
        "--keep", type=folder, default=Path("build/event_power"), metavar="DIR",
        help="one file for each figure; what is there is not measured again",
    )  # fmt: skip
    parser.add_argument("--again", action="store_true", help="measure what is there too")
    parser.add_argument(
        "--kept-only", action="store_true", help="measure nothing: the table of the kept figures"
    )
    parser.add_argument(
        "--write", metavar="COMMIT", help="put the figures, of this commit, into sim/energy"
    )
    add_page(parser, PAGE)
    options = parser.parse_args(arguments)
    check_page(parser, options.page, ("event_power",))
    if not options.sets:
        if options.page or options.write:
            parser.error("--page and --write need --set: the figures are of libraries")
        print(HELP)
        return 0
    figures = []
    try:
        sets = library_sets(options.sets)
        for libraries in [] if options.kept_only else sets.values():
            delays_of(libraries)
        with claimed_folder(options.keep):
            for name in EVENTS:
                is_chosen = options.event is None or name in options.event
                for library, libraries in sets.items():
                    file = _file(options.keep, name, library)
                    is_due = options.again or not file.exists()
                    if is_chosen and is_due and not options.kept_only:
                        found = measure_event(name, libraries, options.seed)
                        with replacing(file) as part:
                            part.write_text(json.dumps(found | {"library": library}, indent=1))
                        print(f"  {library}: {name}: {found['pj']:.4g} pJ", flush=True)
                    kept = kept_json(file)
                    if kept is not None:
                        figures.append(kept)
    except (
        BenchError, ConfigError, LibraryError, SynthesisError, YosysError, OSError,
    ) as error:  # fmt: skip
        print(f"senbazuru.runs.event_power: {error}", file=sys.stderr)
        return 2
    except AssertionError as error:
        print(f"senbazuru.runs.event_power: {str(error).splitlines()[0]}", file=sys.stderr)
        return 1
    figures = settled(figures)
    made = event_table(figures)
    print(made)
    write_page(options.page, {"event_power": made})
    if options.write:
        with replacing(FILE) as part:
            part.write_text(_text(options.write, figures))
    return 0


def _text(commit: str, figures: list[dict[str, Any]]) -> str:
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    return json.dumps({"commit": commit, "date": date, "events": figures}, indent=1) + "\n"


if __name__ == "__main__":
    command.run("senbazuru.runs.event_power", main)
