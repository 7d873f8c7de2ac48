"""Serve requests on a chip and print what their users see.

    python -m sim.serve --hw oaken-lpddr --hw a100-vllm --model llama-2-7b --trace conv.csv
    python -m sim.serve --hw kllm --model llama-2-7b --arrivals poisson --rate 4 --requests 2000 \\
        --prompt 1024 --out 256

``sim.serving.schedule`` says what the schedules do, ``sim.serving.times`` what is exact.
"""

import contextlib
import gc
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from golden.command import Parser, elapsed, run
from golden.config import ConfigError

if TYPE_CHECKING:
    import argparse

    from sim.engine import Engine
    from sim.model import Model
    from sim.serving.outcome import Outcome
    from sim.serving.pages import Pages
    from sim.serving.parallel import Link
    from sim.serving.policy import Policy
    from sim.serving.report import Result
    from sim.serving.times import StepTimes
    from sim.serving.trace import Request

_PERIOD = 2.0  # seconds between two lines of progress


def _parser() -> Parser:
    from sim.serving.arrivals import ARRIVALS
    from sim.serving.policy import SCHEDULES

    parser = Parser(prog="python -m sim.serve", description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--hw", action="append", required=True, metavar="H", help="a chip; repeat it to compare")
    add("--model", required=True, metavar="M", help="a built-in model or a config.json")
    add("--trace", type=Path, metavar="FILE", help="requests as TIMESTAMP, ContextTokens, "
        "GeneratedTokens, or Mooncake's .jsonl")  # fmt: skip
    add("--skip", action="store_true", help="leave out rows without a prompt or an output")
    add("--arrivals", choices=ARRIVALS, help="requests of no trace; burst: all at once")
    add("--rate", type=float, metavar="R", help="requests per second, for --arrivals")
    add("--requests", type=int, metavar="N", help="how many, or the first N of the trace")
    add("--prompt", type=int, metavar="P", help="tokens of a prompt, for --arrivals")
    add("--out", type=int, metavar="O", help="tokens of an output, for --arrivals")
    add("--spread", type=float, metavar="D", help="deviation of a length's logarithm (default: 0)")
    add("--seed", type=int, metavar="S", help="for --arrivals (default: 0)")
    add("--speed", type=float, default=1.0, metavar="X", help="X times the requests per second")
    add("--schedule", choices=SCHEDULES, default="continuous", help="default: %(default)s")
    defaults = ", ".join(f"{name} {tokens}" for name, tokens in SCHEDULES.items())
    meaning = "prompt tokens of a pass (continuous, static), its tokens (chunked, v1), cores"
    meaning += f" (token-level); default: {defaults}, or the chip's cores"
    add("--tokens", type=int, metavar="N", help=meaning)
    add("--max-batch", type=int, default=256, metavar="N", help="default: %(default)s")
    add("--page", default="16", metavar="SIZE", help="tokens (16), or bytes of each stream of "
        "K and V (4KiB); default: %(default)s")  # fmt: skip
    _add_deployment(parser)
    add("--refuse-long", action="store_true", help="refuse requests above the model's positions")
    add("--limit-ttft", type=float, metavar="S", help="seconds to the first word, for goodput")
    add("--limit-token", type=float, metavar="S", help="seconds per word, for goodput")
    add("--json", action="store_true", help="print JSON instead of the table")
    add("--csv", type=Path, metavar="FILE", help="write a row per request")
    add("--plot", type=Path, metavar="FILE.svg", help="draw latencies, batch and pages")
    return parser


def _add_deployment(parser: Parser) -> None:
    from sim.serving.fleet import ROUTERS

    add = parser.add_argument
    add("--host-seconds", type=float, default=0.0, metavar="S",
        help="of each pass, in which the chip waits for its host; default: 0")  # fmt: skip
    add("--prefix-cache", action="store_true", help="keep blocks of prompts; a trace of hash_ids")
    add("--prefix-block", type=int, default=512, metavar="N",
        help="tokens that a hash stands for; default: %(default)s")  # fmt: skip
    add("--replicas", type=int, default=1, metavar="N", help="equal chips; default: 1")
    add("--router", choices=ROUTERS, default="round-robin", help="default: %(default)s")
    add("--tensor", type=int, default=1, metavar="N", help="chips that share a layer; default: 1")
    add("--pipeline", type=int, default=1, metavar="N", help="stages of layers; default: 1")
    add("--link", type=float, metavar="GB/S", help="of a chip, each way, for --tensor, --pipeline")
    add("--link-latency", type=float, default=0.0, metavar="S", help="of a message; default: 0")
    add("--drafts", type=int, default=0, metavar="K", help="words that a step drafts; default: 0")
    add("--acceptance", type=float, default=0.0, metavar="P",
        help="probability that a draft after accepted ones is accepted; default: 0")  # fmt: skip
    add("--draft-seed", type=int, default=0, metavar="S", help="of these draws; default: 0")
    add("--prefill-hw", metavar="H", help="chips that prefill; those of --hw then decode")
    add("--prefill-chips", type=int, default=1, metavar="N", help="how many; default: 1")
    add("--kv-link", type=float, metavar="GB/S", help="of each such chip, for K and V")
    add("--kv-latency", type=float, default=0.0, metavar="S", help="of that link; default: 0")


def _positive(name: str, value: float | None) -> None:
    if value is not None and not 0 < value < float("inf"):
        raise ConfigError(f"{name} must be above 0, not {value:g}")


def _requests(asked: "argparse.Namespace") -> "list[Request]":
    from sim.serving.arrivals import Load, requests_of
    from sim.serving.trace import read_trace, scaled

    made = ("rate", "prompt", "out", "spread", "seed")
    given = [name for name in made if getattr(asked, name) is not None]
    if (asked.trace is None) == (asked.arrivals is None):
        raise ConfigError("give one of --trace and --arrivals")
    if asked.requests is not None and asked.requests < 1:
        raise ConfigError(f"--requests must be 1 or more, not {asked.requests}")
    if asked.trace is not None:
        if given:
            raise ConfigError(f"--{given[0]} needs --arrivals")
        asked.skipped = [] if asked.skip else None
        found = read_trace(asked.trace, asked.requests, asked.skipped)
        if asked.prefix_cache and not any(each.hashes for each in found):
            raise ConfigError(f"--prefix-cache needs hash_ids, which {asked.trace} lacks")
        return scaled(found, asked.speed)
    for name in ("skip", "prefix_cache"):
        if getattr(asked, name):
            raise ConfigError(f"--{name.replace('_', '-')} needs --trace")
    needed = ["requests", "prompt", "out"] + ([] if asked.arrivals == "burst" else ["rate"])
    if missing := [f"--{name}" for name in needed if getattr(asked, name) is None]:
        raise ConfigError(f"--arrivals {asked.arrivals} needs {', '.join(missing)}")
    fields = {"output" if name == "out" else name: getattr(asked, name) for name in given}
    load = Load(arrivals=asked.arrivals, requests=asked.requests, **fields)
    return scaled(requests_of(load), asked.speed)


def _watch(name: str, total: int) -> Callable[[int, float], None]:
    """Progress on a terminal, every _PERIOD seconds."""
    if not sys.stderr.isatty():
        return lambda ended, now: None
    say = elapsed(lambda line: print(line, file=sys.stderr))
    last = time.monotonic()

    def watch(ended: int, now: float) -> None:
        nonlocal last
        if time.monotonic() - last >= _PERIOD:
            last = time.monotonic()
            say(f"{name}: {ended:,} of {total:,} requests, {now:,.1f} s of the chip")

    return watch


def _link(asked: "argparse.Namespace", name: str, needed: str) -> "Link":
    from sim.serving.parallel import Link

    bandwidth = getattr(asked, name)
    if bandwidth is None:
        raise ConfigError(f"{needed} needs --{name.replace('_', '-')}")
    latency = getattr(asked, f"{name.partition('_')[0]}_latency")
    try:
        return Link(bandwidth=bandwidth * 1e9, latency=latency)
    except ConfigError as error:
        option = f"--{name.replace('_', '-')} {bandwidth:g} GB/s, latency {latency:g} s"
        raise ConfigError(f"{option}: {error}") from None


def _engine(asked: "argparse.Namespace", hardware: str) -> "Engine":
    from sim.engine import engine_of
    from sim.serving.parallel import Parallel, Split

    split = Split(tensor=asked.tensor, pipeline=asked.pipeline)
    if split.chips == 1:
        return engine_of(hardware)
    return Parallel(engine_of(hardware), split, _link(asked, "link", "--tensor or --pipeline"))


def _policy(asked: "argparse.Namespace", model: "Model", engine: "Engine") -> "Policy":
    from sim.serving.policy import Policy, tokens_of

    tokens = asked.tokens
    if tokens is None:
        tokens = tokens_of(asked.schedule, engine.settings)
    if asked.prefix_block < 1:
        raise ConfigError(f"--prefix-block must be 1 or more, not {asked.prefix_block}")
    return Policy(
        schedule=asked.schedule,
        max_batch=asked.max_batch,
        tokens=tokens,
        positions=model.positions if asked.refuse_long else 0,
        prefix_block=asked.prefix_block if asked.prefix_cache else 0,
        drafts=asked.drafts,
        acceptance=asked.acceptance,
        seed=asked.draft_seed,
    )


def _served(
    asked: "argparse.Namespace", hardware: str, model: "Model", requests: "list[Request]"
) -> "Result":
    from sim.engine import NOT_SCALED
    from sim.serving.fleet import Fleet
    from sim.serving.metrics import Limits, summary
    from sim.serving.pages import Pages, page_of
    from sim.serving.report import Result
    from sim.serving.schedule import serve, serve_apart
    from sim.serving.times import StepTimes

    engine = _engine(asked, hardware)
    longest = max(each.prompt + each.output for each in requests)
    if 0 < model.chunk < longest:
        raise ConfigError(
            f"{model.name}: attention_chunk_size must be at least the {longest} tokens of the "
            f"longest request, not {model.chunk}: a pass is taken at the mean of its contexts, "
            "and chunks start anew"
        )
    policy = _policy(asked, model, engine)
    fleet = Fleet(replicas=asked.replicas, router=asked.router)
    made: list[StepTimes] = []

    def site(chip: "Engine") -> "tuple[Pages, Callable[[int], StepTimes]]":
        pages = Pages(chip, model, page_of(asked.page))
        chip.check(model, min(policy.max_batch, len(requests)), 1)

        def times(longest: int) -> StepTimes:
            new, host = policy.drafts + 1, asked.host_seconds
            made.append(StepTimes(chip, model, longest, new=new, host=host))
            return made[-1]

        return pages, times

    def check(tokens: int) -> None:
        model.check_length(tokens)
        engine.check(model, 1, tokens)

    pages, times = site(engine)
    window = 0 if model.sliding else model.window
    watch = _watch(engine.hardware.name, len(requests))
    before = None
    if asked.prefill_hw is None:
        outcome = serve(
            requests, pages, times, policy, fleet=fleet, window=window, check=check, watch=watch
        )
    else:
        first = _engine(asked, asked.prefill_hw)
        link = _link(asked, "kv_link", "--prefill-hw")
        before_fleet = Fleet(replicas=asked.prefill_chips, router=asked.router)
        before, outcome = serve_apart(
            requests, (*site(first), before_fleet), (pages, times, fleet), policy, link,
            lambda tokens: first.chips * first.kv_bytes(model, tokens),
            window=window, check=check, watch=watch,
        )  # fmt: skip
    limits = Limits(asked.limit_ttft, asked.limit_token)
    figures: dict[str, Any] = {"model": model.name, "policy": policy.describe()}
    has_energy = all(each.has_energy for each in made)
    figures |= summary(outcome, pages, limits, has_energy, fleet.replicas, before)
    figures["extrapolated"] = list(dict.fromkeys(why for each in made for why in each.extrapolated))
    figures["engine_calls"] = sum(each.calls for each in made)
    figures["deployment"] = _deployment(asked, policy, engine, outcome, before)
    mean = round(sum(each.prompt + each.output for each in requests) / len(requests))
    k_bits, v_bits = engine.kv_bits(model, mean)
    figures["kv"] |= {"k_bits": k_bits, "v_bits": v_bits, "bits_after_tokens": mean}
    held = engine.sram_bytes(model)
    figures["on_chip_bytes"] = sum(held.values()) if held else None
    figures["area_mm2"] = dict(engine.shown_area)
    if "energy" in engine.not_scaled and figures["joules_per_token"]:
        figures["joules_per_token"] = NOT_SCALED
    figures["not_scaled"] = [f"{figure}: {why}" for figure, why in engine.not_scaled.items()]
    return Result(engine.hardware.name, outcome, figures)


def _deployment(
    asked: "argparse.Namespace",
    policy: "Policy",
    engine: "Engine",
    outcome: "Outcome",
    before: "Outcome | None",
) -> dict[str, Any]:
    """Returns the conditions of all figures that are no chip's."""
    chips = [0] * asked.replicas
    for each in outcome.served:
        chips[each.chip] += not each.refused
    made: dict[str, Any] = {
        "host_seconds": asked.host_seconds,
        "replicas": asked.replicas,
        "router": asked.router,
        "requests_of_replicas": chips,
        "tensor": asked.tensor,
        "pipeline": asked.pipeline,
        "link_gb_per_second": asked.link if engine.chips > 1 else None,
        "link_latency": asked.link_latency if engine.chips > 1 else None,
        "expected_words_per_step": policy.words_per_step,
        "prefill": None,
    }
    if before is not None:
        made["prefill"] = {
            "hardware": asked.prefill_hw,
            "chips": asked.prefill_chips,
            "kv_gb_per_second": asked.kv_link,
            "kv_latency": asked.kv_latency,
            "busy_share": before.busy / asked.prefill_chips / outcome.seconds,
            "peak_pages_share": before.peak_pages / before.pages,
        }
    return made


def _notes(
    asked: "argparse.Namespace",
    model: "Model",
    requests: "list[Request]",
    results: "list[Result]",
) -> list[str]:
    notes = [
        f"{each.hardware}: extrapolated: {why}"
        for each in results
        for why in each.figures["extrapolated"]
    ]
    if model.sliding and model.window:
        notes.append(
            f"{model.name}: some layers have a window of {model.window:,} tokens; a pass is taken "
            "at the mean of its contexts, so it reads no less there than the sequences do"
        )
    if asked.trace is not None and asked.skip:
        notes.append(f"{len(asked.skipped):,} rows without a prompt or an output were left out")
    long = sum(model.is_longer(each.prompt + each.output) for each in requests)
    if long and not asked.refuse_long:
        text = f"{long:,} requests are longer than the {model.positions:,} positions of"
        notes.append(f"{text} {model.name}; --refuse-long refuses them")
    return notes


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Runs without the collector of cycles: a run makes none, and has millions of objects."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def main() -> int:
    asked = _parser().parse_args()
    from golden.files import claimed
    from sim.engine import shown_error
    from sim.model import find_model
    from sim.serving.report import print_table, write_csv, write_plot

    outputs = contextlib.ExitStack()
    try:
        for name in ("speed", "limit_ttft", "limit_token"):
            _positive(f"--{name.replace('_', '-')}", getattr(asked, name))
        if not 0 <= asked.host_seconds < float("inf"):
            raise ConfigError(f"--host-seconds must be 0 or more, not {asked.host_seconds:g}")
        if asked.prefill_hw is None and asked.kv_link is not None:
            raise ConfigError("--kv-link needs --prefill-hw")
        outputs.enter_context(claimed(asked.csv, asked.plot))
        model = find_model(asked.model)
        with _uncollected():
            requests = _requests(asked)
            results = [_served(asked, each, model, requests) for each in asked.hw]
        if asked.csv is not None:
            write_csv(asked.csv, results)
        if asked.plot is not None:
            write_plot(asked.plot, results)
    except (ConfigError, ArithmeticError) as error:
        print(f"sim.serve: {shown_error(error)}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"sim.serve: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    finally:
        outputs.close()
    notes = _notes(asked, model, requests, results)
    if asked.json:
        described = [each.describe() for each in results]
        print(json.dumps({"notes": notes, "results": described}, indent=1))
        return 0
    source = asked.trace.name if asked.trace is not None else f"{asked.arrivals} arrivals"
    print_table(f"{model.name}, {source}, {asked.schedule}", results)
    for note in notes:
        print(note)
    return 0


if __name__ == "__main__":
    run("sim.serve", main)
