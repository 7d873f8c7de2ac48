"""``senbazuru.talk``: prompt to tokens, text as it comes, and the report at the end."""

import argparse
import dataclasses
import hashlib
import json
import shutil
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer

from golden.config import ConfigError
from golden.files import replacing
from golden.kllm.isa import COMMAND_WORDS, Unit
from golden.kllm.layer.layout import Job
from golden.kllm.model.program import pass_program, step_program
from golden.llm.kllm.pack import ModelPack, load
from golden.manifest import PackError
from golden.markers import rewrite
from senbazuru.talk.build import build_host
from senbazuru.talk.driver import DriverError
from senbazuru.talk.golden import GoldenFailed, kept_file
from senbazuru.talk.options import FOLDER, Options
from senbazuru.talk.picture import timeline_svg
from senbazuru.talk.report import (
    BENCH,
    Limits,
    check_cycles,
    limits,
    predicted,
    predicted_by_host,
)
from senbazuru.talk.run import Mismatch, Pass, Settings, Talk, made_for
from senbazuru.talk.sampling import Sampling
from senbazuru.talk.session import Session, alone
from tb.simulate.run import ROOT

PAGE = ROOT / "docs" / "talk.md"
PICTURE = "timeline.svg"
GOLDEN = "golden"  # folder of golden's tokens


def image(options: Options) -> ModelPack:
    """The packed model; ConfigError: the folder is of another machine, or damaged."""
    folder = options.folder()
    try:
        return load(folder, options.config.machine)
    except PackError as error:
        raise ConfigError(f"{error}") from None


def _check_prompt(prompt: str) -> None:
    """ConfigError: no word, or bytes of the shell that are no text."""
    if not prompt.strip():
        raise ConfigError("--prompt must have a word, it is empty")
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"--prompt must be UTF-8 text, character {error.start} is not") from None


def _prompt(pack: ModelPack, options: argparse.Namespace) -> tuple[Tokenizer, list[int]]:
    """The tokenizer and the prompt's tokens.

    ConfigError: no tokenizer, no tokens, more than the context holds, or one that the model lacks.
    """
    tokenizer = tokenizer_of(pack)
    words = options.prompt
    if options.chat:
        chat = pack.manifest.model.get("chat")
        if not chat:
            raise ConfigError("--chat needs a tokenizer with a chat template")
        words = chat[0] + words + chat[1]
    prompt = tokenizer.encode(words, add_special_tokens=not options.chat).ids
    shape = pack.layout.shape
    if not prompt:
        raise ConfigError("--prompt must have a token, the tokenizer gives none")
    if max(prompt) >= shape.vocabulary:
        raise ConfigError(
            f"--prompt has the token {max(prompt)}: tokens of the model are "
            f"0..{shape.vocabulary - 1}"
        )
    if len(prompt) + options.tokens > shape.context:
        raise ConfigError(
            f"--prompt has {len(prompt)} tokens: with --tokens {options.tokens} they must be at "
            f"most {shape.context}, the image's context"
        )
    return tokenizer, prompt


def _shown(path: Path) -> Path:
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


def tokenizer_of(pack: ModelPack) -> Tokenizer:
    """ConfigError: the image has none."""
    if pack.tokenizer is None:
        raise ConfigError(f"{pack.folder} has no tokenizer")
    return Tokenizer.from_file(str(pack.tokenizer))


def talk(options: argparse.Namespace) -> int:
    """The command; its exit status. ConfigError: bad input, one line."""
    _check_prompt(options.prompt)
    chosen = Options.of(options)
    sampling = Sampling.of(
        options.temperature, options.top_k, options.seed, chosen.config.machine
    )
    pack = image(chosen)
    tokenizer, prompt = _prompt(pack, options)
    say = Console(stderr=True, width=100)
    say.print("building the accelerator with its host: minutes, the first time")
    native = build_host(chosen.config, chosen.threads)
    settings = Settings(
        pack, chosen.config, native, sampling, chosen.latency, options.chunk, options.check,
        not options.no_golden, by_host=options.by_host,
    )  # fmt: skip
    made = made_for(settings, prompt)
    digest = hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()[:12]
    folder = FOLDER / f"session-{digest}"
    with alone(folder):
        if options.fresh:
            shutil.rmtree(folder, ignore_errors=True)
            kept_file(FOLDER / GOLDEN, made).unlink(missing_ok=True)
        session = Session.open(folder, made, prompt, pack.layout.shape.vocabulary)
        done = len(session.tokens)
        if done > len(prompt):
            say.print(f"going on after {done - len(prompt)} tokens of {_shown(folder)}")
        elif session.cached:
            say.print(f"going on after {session.cached} tokens of the prompt")
        ends = set(pack.manifest.model.get("end", ()))
        try:
            last = _speak(settings, session, tokenizer, len(prompt) + options.tokens, ends)
        except (DriverError, GoldenFailed, Mismatch) as error:
            print(f"\nsenbazuru.talk: {error}", file=sys.stderr)
            return 1
        _report(options, settings, session, tokenizer, last)
    return 0


def _length(session: Session, total: int, ends: set[int]) -> int:
    """``total``, or less: tokens up to the first one after the prompt that ends the text."""
    prompt = len(session.made_for["prompt"])
    for place, token in enumerate(session.tokens[prompt:total], prompt):
        if token in ends:
            return place + 1
    return total


def _speak(
    settings: Settings, session: Session, tokenizer: Tokenizer, total: int, ends: set[int]
) -> Pass | None:
    """Prints the text up to ``total`` tokens or its end; the last pass, None if none was needed."""
    shown = ""
    last = None
    total = _length(session, total, ends)

    def show() -> None:
        nonlocal shown
        text = tokenizer.decode(session.tokens[:total], skip_special_tokens=False)
        if not text.endswith("\N{REPLACEMENT CHARACTER}") and text.startswith(shown):
            print(text[len(shown) :], end="", flush=True)
            shown = text

    show()
    if total <= len(session.tokens):
        print()
        return None  # nothing is left to do, so no pass is repeated either
    began = time.monotonic()
    with Talk(settings, session, total, FOLDER / GOLDEN) as run:
        for last in run.passes():
            show()
            rate = last.figures.cycles / last.seconds
            print(
                f"\n[{time.monotonic() - began:6.0f} s] {last.job.tokens} after "
                f"{last.job.context}: {last.seconds:.1f} s, {last.figures.cycles} cycles, "
                f"{rate:.0f} per second"
                + (f"; {last.compared} words equal" if settings.check else ""),
                file=sys.stderr,
            )
            if _length(session, total, ends) == len(session.tokens):
                break
    print()
    return last


def _report(
    options: argparse.Namespace,
    settings: Settings,
    session: Session,
    tokenizer: Tokenizer,
    last: Pass | None,
) -> None:
    """Tables of all passes of the session, and the picture of the last one."""
    console, prompt = Console(width=100), len(session.made_for["prompt"])
    paces = _paces(settings, session)
    console.print(_passes(session, paces, options.clock))
    console.print(_PACES)
    steps = [each for each in session.passes if each["tokens"] == 1 and each["logits"]]
    if steps and "written" in steps[-1]:
        console.print(f"The host writes {steps[-1]['written']} words for a token.")
    shown = steps or [each for each in session.passes if each["logits"]]
    if all(any(each["units"].values()) for each in shown):  # not those that an older chip took
        console.print(_shares(shown))
    says = [each.predicted for each in paces]
    took = [each["cycles"] for each in session.passes]
    error = sum(says) / sum(took) - 1
    largest = max((a / b - 1 for a, b in zip(says, took, strict=True)), key=abs)
    line = (
        f"The system simulator predicts {sum(says):,} cycles for these {len(says)} passes, which "
        f"took {sum(took):,}: {error:+.1%}. The largest error of a pass is {largest:+.1%}."
    )
    if "written" not in session.passes[-1]:
        line += (
            f" With the host of the cocotb bench the last pass takes {paces[-1].bench:.2f} times "
            f"as many: {BENCH.command} cycles per command, {BENCH.poll} per word."
        )
    console.print(line)
    if last is not None and last.figures.placed:
        title = f"{last.job.tokens} token after {last.job.context}: {last.figures.cycles} cycles"
        picture = timeline_svg(last.figures.placed, last.figures.cycles, title)
        with replacing(session.folder / PICTURE) as part:
            part.write_text(picture)
        console.print(f"timeline of the last pass: {_shown(session.folder / PICTURE)}")
    if options.page and options.check:
        words = sum(each["compared"] for each in session.passes)
        rewrite(PAGE, {"talk_check": _checked(settings, session, words)})
        console.print(f"{PAGE.relative_to(ROOT)}: talk_check")
    elif options.page:
        made = {
            "talk_text": _quoted(session, tokenizer, prompt),
            "talk_tokens": _markdown(session, paces, options, prompt),
            "talk_predicted": f"{line}\n",
        }
        with_commands = [each for each in steps if each["commands"]]
        made |= {"talk_units": _unit_rows(with_commands[-1])} if with_commands else {}
        rewrite(PAGE, made)
        console.print(f"{PAGE.relative_to(ROOT)}: {', '.join(made)}")


def _checked(settings: Settings, session: Session, words: int) -> str:
    new = len(session.tokens) - len(session.made_for["prompt"])
    return (
        f"`--check` over {new} new tokens and the {session.cached + 1 - new} before them, "
        f"{settings.pack.layout.shape.layers} layers and head: {words:,} words compared, "
        "0 differences.\n"
    )


@dataclasses.dataclass(frozen=True)
class Pace:
    """A pass of the session next to its physical limits, and with a slower host.

    predicted : cycles that the simulator says for main.cpp, which costs no time of its own
    slower : cycles with a controller's host, over those with main.cpp, both predicted
    bench : the same with the host of the cocotb bench
    """

    limits: Limits
    predicted: int
    slower: float
    bench: float


_PACES = (
    "of ports, of lanes: cycles of the pass over the words of a port, and the share of the lanes' "
    "products that it uses. The first pace is with a host that writes a command word per cycle. "
    "The second one is with a controller by the constants of kllm-a4.json: its additional cycles "
    "are predicted."
)


def _paces(settings: Settings, session: Session) -> list[Pace]:
    """The pace of each pass."""
    made = []
    for each in session.passes:
        job = Job(each["tokens"], each["context"])
        program = pass_program(settings.pack.layout, job, each["logits"], chooses=True)
        found = limits(program, settings.config.machine)
        if "written" in each:  # no host is in a step
            step = step_program(settings.pack.layout, job.tokens, each["logits"])
            program = dataclasses.replace(program, words=step.words, logits=0)
            free = predicted(program, settings.config, settings.latency)
            if each["checked"]:
                free += check_cycles(len(program.words) // COMMAND_WORDS, settings.latency)
            slower = bench = free
        else:
            free, slower, bench = predicted_by_host(program, settings.config, settings.latency)
        made.append(Pace(found, free, slower / free, bench / free))
    return made


def _quoted(session: Session, tokenizer: Tokenizer, prompt: int) -> str:
    """Prompt and text, each as a block."""
    texts = (session.tokens[:prompt], session.tokens[prompt:])
    names = (f"Prompt, {prompt} tokens:", f"Text, {len(texts[1])} tokens:")
    parts = []
    for name, ids in zip(names, texts, strict=True):
        words = tokenizer.decode(ids, skip_special_tokens=False)
        parts.append(f"{name}\n\n```\n{words.strip()}\n```\n")
    return "\n".join(parts)


def _passes(session: Session, paces: list[Pace], clock: int) -> Table:
    table = Table(title="passes", title_justify="left")
    names = ("tokens", "after", "seconds", "cycles", "bound", "of it", "of ports", "of lanes",
             f"per second at {clock} MHz", "with a controller")  # fmt: skip
    for name in names:
        table.add_column(name, justify="right")
    for each, pace in zip(session.passes, paces, strict=True):
        rate = clock * 1e6 * each["tokens"] / each["cycles"]
        table.add_row(
            str(each["tokens"]), str(each["context"]), f"{each['seconds']:.1f}",
            str(each["cycles"]), str(each["ahead"]), f"{each['cycles'] / each['ahead']:.2f}",
            f"{each['cycles'] / pace.limits.ports:.2f}",
            f"{pace.limits.lanes / each['cycles']:.0%}", f"{rate:,.0f}",
            f"{rate / pace.slower:,.0f}",
        )  # fmt: skip
    return table


def _shares(steps: list[dict]) -> Table:
    table = Table(title="units at work, per token", title_justify="left")
    for name in ("unit", "cycles", "share"):
        table.add_column(name, justify="left" if name == "unit" else "right")
    cycles, tokens = (sum(each[field] for each in steps) for field in ("cycles", "tokens"))
    for unit in Unit:
        own = sum(each["units"][unit.name] for each in steps)
        table.add_row(unit.name, f"{own / tokens:,.0f}", f"{own / cycles:.1%}")
    return table


def _markdown(session: Session, paces: list[Pace], options: argparse.Namespace, prompt: int) -> str:
    """The page's table: prefill and single tokens."""
    names = ("pass", "tokens", "seconds per token", "cycles per token", "words of a port",
             "cycles over them", "lanes used", "sum of the bounds", "cycles over it",
             "words that the host writes per token",
             f"tokens per second at {options.clock} MHz, host for nothing",
             "with a controller, predicted")  # fmt: skip
    rows = [f"| {' | '.join(names)} |", f"| --- |{' ---: |' * (len(names) - 1)}"]
    kinds: dict[str, list[tuple[dict, Pace]]] = {}
    for each, pace in zip(session.passes, paces, strict=True):
        is_prompt = each["context"] + each["tokens"] <= prompt and each["tokens"] > 1
        name = f"prompt, {each['tokens']} at a time" if is_prompt else "one token"
        kinds.setdefault(name, []).append((each, pace))
    for name, some in kinds.items():
        tokens, cycles, bound, seconds = (
            sum(each[field] for each, _ in some)
            for field in ("tokens", "cycles", "ahead", "seconds")
        )
        words = sum(pace.limits.ports for _, pace in some)
        lanes = sum(pace.limits.lanes for _, pace in some)
        slower = sum(each["cycles"] * pace.slower for each, pace in some)
        written = [each["written"] for each, _ in some if "written" in each]
        by_host = f"{sum(written) / tokens:.1f}" if len(written) == len(some) else "each command"
        row = (
            name, f"{tokens}", f"{seconds / tokens:.1f}", f"{cycles / tokens:,.0f}",
            f"{words / tokens:,.0f}", f"{cycles / words:.2f}", f"{lanes / cycles:.0%}",
            f"{bound / tokens:,.0f}", f"{cycles / bound:.2f}", by_host,
            f"{options.clock * 1e6 * tokens / cycles:,.0f}",
            f"{options.clock * 1e6 * tokens / slower:,.0f}",
        )  # fmt: skip
        rows.append(f"| {' | '.join(row)} |")
    return "\n".join([*rows, ""])


def _unit_rows(token: dict) -> str:
    """The table rows of the last token's units and commands."""
    names = ("unit or command", "of the last token", "cycles", "bound", "share of all cycles",
             "lanes used", "words of a port used")  # fmt: skip
    rows = [f"| {' | '.join(names)} |", f"| --- |{' ---: |' * (len(names) - 1)}"]
    for unit in Unit:
        own = token["units"][unit.name]
        rows.append(f"| {unit.name} | | {own:,} | | {own / token['cycles']:.1%} | | |")
    for name, (count, took, bound, *used) in sorted(token["commands"].items()):
        share = took / token["cycles"]
        lanes, ports = (f"{each / took:.0%}" if each else "" for each in used)
        rows.append(
            f"| `{name}` | {count} | {took:,} | {bound:,} | {share:.1%} | {lanes} | {ports} |"
        )
    return "\n".join([*rows, ""])
