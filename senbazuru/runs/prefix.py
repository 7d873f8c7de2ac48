"""``python -m senbazuru.runs.prefix``: users with one prompt on the Verilated chip.

The host's library takes three cases: one user alone, all users with the prompt as their prefix, and
all with the whole prompt each. Each user has tokens of its own after the prompt, and then chooses
some. Every chosen token must be the same in all cases.

Words of a prompt are random. Cycles are those of the chip, OPEN, FORK and FREE too. Pages are those
that the chip's writes reach. These are the most in use at a time: the chip takes a page that has
come back before it takes a new one. Of several engines they are the first one's.

The machine has ``cache.forks``, the layers of the model, and one sequence more than users, but for
what ``--set`` says. Each case is kept in a file of ``build/prefix`` when it is done, and not run
again. The table has all kept runs that differ in the machine alone. ``--page`` rewrites that of
docs/host-library.md.
"""

import argparse
import dataclasses
import hashlib
import json
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from golden import command
from golden.config import ConfigError
from golden.files import replacing
from golden.kllm.config import MACHINES
from hdl.arguments import add_page, check_page, folder, whole, write_page
from hdl.kllm.accelerator import KllmAcceleratorConfig
from senbazuru.talk.options import PORTS, Options
from tb.simulate.run import ROOT

if TYPE_CHECKING:
    from golden.llm.kllm.pack import ModelPack

PAGE = ROOT / "docs" / "host-library.md"
SECTION = "prefix"
FOLDER = ROOT / "build" / "prefix"
VERSION = 1
ONE, SHARED, APART = "one user", "with a prefix", "each the whole prompt"
CASES = (ONE, SHARED, APART)


@dataclasses.dataclass(frozen=True)
class Plan:
    """The prompt, the tokens that each user has after it, and how many each chooses."""

    prompt: tuple[int, ...]
    own: tuple[tuple[int, ...], ...]
    most: int

    @classmethod
    def random(cls, options: argparse.Namespace, vocabulary: int) -> "Plan":
        rng = random.Random(options.seed)

        def words(count: int) -> tuple[int, ...]:
            return tuple(rng.randrange(vocabulary) for _ in range(count))

        own = tuple(words(options.own) for _ in range(options.users))
        return cls(words(options.tokens), own, options.most)


@dataclasses.dataclass(frozen=True)
class Measured:
    """A case on the chip.

    tokens : that went through the layers
    cached : cycles until the last user has the prompt in its pages
    together : most users that have tokens in pages at a time
    pages : most at a time
    words : those that each user chose
    """

    steps: int
    tokens: int
    cycles: int
    cached: int
    together: int
    pages: int
    words: list[list[int]]


def measure(
    case: str, plan: Plan, pack: "ModelPack", library: Path, config: KllmAcceleratorConfig,
    latency: int, say: Callable[[str], None] = lambda _line: None,
) -> Measured:  # fmt: skip
    """One case from a reset on. ConfigError: a step failed, or the chip cannot share."""
    from golden.kllm.model.host_image import host_image
    from senbazuru.host.engine import End, Engine, Reason, Token, VerilatedChip
    from senbazuru.host.watched import TappedChip

    image = host_image(pack.step_programs, pack.thresholds.tolist())
    users = plan.own[:1] if case == ONE else plan.own
    cache = config.machine.cache
    if case == SHARED and len(users) >= cache.sequences:
        raise ConfigError(
            f"cache.sequences must be {len(users) + 1} or more for {len(users)} users and their "
            f"prefix, not {cache.sequences}"
        )
    with VerilatedChip(library, pack.folder, latency) as inner:
        chip = TappedChip(inner, config.machine.batch)
        inner.watch()
        with Engine(chip, image) as engine:
            start, cached, together = chip.cycle, 0, 0
            if case == SHARED and not engine.facts["forks"]:
                raise ConfigError("cache.forks must be true, with cache.layers those of the model")
            prefix = engine.prefix(plan.prompt) if case == SHARED else 0
            before = () if prefix else plan.prompt
            numbers = [engine.submit([*before, *own], plan.most, prefix=prefix) for own in users]
            words: dict[int, list[int]] = {number: [] for number in numbers}
            pages: set[int] = set()
            while engine.is_busy:
                report = engine.step()
                chip.check()
                if report["failed"]:
                    raise ConfigError(f"{case}: step {engine.stats()['steps']} failed on the chip")
                written = (each.address for each in inner.accesses() if each.is_write)
                pages.update(address // cache.page_bytes for address in written)
                slots = [each for each in engine.slots() if each["request"] in words]
                together = max(together, sum(each["cached_tokens"] > 0 for each in slots))
                if not cached:
                    if not prefix:
                        has = (engine.usage(number)["cached_tokens"] for number in numbers)
                        if min(has) >= len(plan.prompt):
                            cached = chip.cycle - start
                    elif engine.stats()["forks"] == len(users):
                        # FORKs come before the step of their children.
                        cached = chip.cycle - report["cycles"] - start
                for event in engine.poll():
                    if isinstance(event, Token):
                        words[event.request].append(event.token)
                    elif isinstance(event, End) and event.reason != Reason.LENGTH:
                        raise ConfigError(f"{case}: a user ended: {event.fault}")
                stats = engine.stats()
                say(f"{case}: step {stats['steps']}, {report['cycles']} cycles")
            return Measured(
                stats["steps"], stats["tokens"], chip.cycle - start, cached, together,
                len(pages), [words[number] for number in numbers],
            )  # fmt: skip


def check(found: dict[str, Measured]) -> None:
    """ConfigError: some user chose other tokens in another case."""
    for case, each in found.items():
        for other, its in found.items():
            for user, (words, wanted) in enumerate(zip(each.words, its.words, strict=False)):
                if words != wanted:
                    raise ConfigError(
                        f"user {user} chose {words} in the case {case!r}, {wanted} in {other!r}"
                    )


def table(runs: Sequence[dict[str, Any]]) -> str:
    """A row for each case of each run: as ``_kept`` gives it."""
    head = ("pages of", "users", "steps", "tokens through", "cycles", "until all have the prompt",
            "next to one user", "users at a time", "pages", "next to one user")  # fmt: skip
    rows = [f"| {' | '.join(head)} |", "|---:|---|" + "---:|" * (len(head) - 2)]
    for run in sorted(runs, key=lambda each: each["page_bytes"]):
        one = run["cases"].get(ONE)
        for case in CASES:
            each = run["cases"].get(case)
            if each is None:
                continue
            ratios = [
                f"{getattr(each, field) / getattr(one, field):.2f}" if one else ""
                for field in ("cached", "pages")
            ]
            count = len(each.words)
            cells = (
                f"{run['page_bytes']:,} bytes", case if case == ONE else f"{count}, {case}",
                f"{each.steps:,}", f"{each.tokens:,}", f"{each.cycles:,}", f"{each.cached:,}",
                ratios[0], f"{each.together}", f"{each.pages:,}", ratios[1],
            )  # fmt: skip
            rows.append(f"| {' | '.join(cells)} |")
    return "\n".join([*rows, ""])


def said(what: dict[str, Any]) -> str:
    """The runs in words."""
    layers = "one layer" if what["layers"] == 1 else f"the first {what['layers']} layers"
    return (
        f"The prompt has {what['tokens']} tokens. Each user has {what['own']} of its own, and "
        f"chooses {what['most']}. The model is {what['model']}, {layers}. The chip is "
        f"`{what['config']}` with `cache.forks`, and its memories answer after {what['latency']} "
        "cycles. Every chosen token is the same in all cases.\n\n"
    )


def _kept(what: dict[str, Any]) -> list[dict[str, Any]]:
    """The runs in FOLDER that say the same, but for the machine."""
    found = []
    for file in sorted(FOLDER.glob("*.json")):
        run = _load(file)
        if run["what"] == what:
            found.append(run)
    return found


def _load(file: Path) -> dict[str, Any]:
    """ConfigError: the file is no such run."""
    try:
        run = json.loads(file.read_text())
        if run["version"] != VERSION:
            raise ValueError("of another version")
        run["cases"] = {name: Measured(**each) for name, each in run["cases"].items()}
        return {name: run[name] for name in ("what", "machine", "page_bytes", "cases")}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{file}: no run of senbazuru.runs.prefix: {error}") from None


def _save(run: dict[str, Any], file: Path) -> None:
    cases = {name: dataclasses.asdict(each) for name, each in run["cases"].items()}
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as part:
        part.write_text(json.dumps({"version": VERSION, **run, "cases": cases}))


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m senbazuru.runs.prefix", description=__doc__)
    parser.add_argument("--tokens", type=whole(), default=400, help="of the prompt")
    parser.add_argument("--users", type=whole(), default=8)
    parser.add_argument("--own", type=whole(), default=1, help="tokens of each after the prompt")
    parser.add_argument("--most", type=whole(), default=2, help="tokens that each chooses")
    parser.add_argument("--seed", type=whole(0), default=1, help="of the words")
    parser.add_argument("--no-apart", action="store_true", help=f"not the case: {APART}")
    add_page(parser, PAGE)
    Options.add(parser, sorted(MACHINES), folder)
    parser.set_defaults(layers=2)
    given = parser.parse_args(arguments)
    check_page(parser, given.page, [SECTION])
    longest = given.tokens + given.own + given.most
    if longest > given.context:
        parser.error(f"--tokens, --own and --most must be at most {given.context}, not {longest}")
    sets = PORTS if given.set is None else given.set
    named = {each.partition("=")[0] for each in sets}
    cache = {"forks": "true", "layers": given.layers, "sequences": given.users + 1}
    added = [f"cache.{name}={it}" for name, it in cache.items() if f"cache.{name}" not in named]
    given.set = [*added, *sets]
    try:
        return _run(given)
    except (ConfigError, OSError) as error:
        print(f"senbazuru.runs.prefix: {error}", file=sys.stderr)
        return 2


def _run(given: argparse.Namespace) -> int:
    from senbazuru.host.build import build_chip
    from senbazuru.host.engine import HostError
    from senbazuru.talk.command import image

    options = Options.of(given)
    pack = image(options)
    shape, machine = pack.layout.shape, options.config.machine
    if (longest := given.tokens + given.own + given.most) > shape.context:
        raise ConfigError(f"the image has {shape.context} tokens of context, not {longest}")
    what = {
        "model": pack.manifest.model.get("name", options.model), "layers": options.layers,
        "config": options.name, "latency": options.latency, "seed": given.seed,
        "tokens": given.tokens, "users": given.users, "own": given.own, "most": given.most,
    }  # fmt: skip
    named = json.dumps([what, options.config.describe()], sort_keys=True)
    file = FOLDER / f"{options.name}-{hashlib.sha256(named.encode()).hexdigest()[:10]}.json"
    run = {"what": what, "machine": machine.describe(), "cases": {},
           "page_bytes": machine.cache.page_bytes}  # fmt: skip
    if file.exists():
        run = _load(file)
    plan = Plan.random(given, shape.vocabulary)
    for case in CASES:
        if case in run["cases"] or (case == APART and given.no_apart):
            continue
        library = build_chip(options.config, options.threads)
        try:
            run["cases"][case] = measure(
                case, plan, pack, library, options.config, options.latency,
                lambda line: print(line, file=sys.stderr, flush=True),
            )  # fmt: skip
        except HostError as error:
            print(f"senbazuru.runs.prefix: {error}", file=sys.stderr)
            return 1
        check(run["cases"])
        _save(run, file)
    text = said(what) + table(_kept(what))
    print(text, end="")
    if given.page:
        write_page(given.page, {SECTION: text})
    return 0


if __name__ == "__main__":
    command.run("senbazuru.runs.prefix", main)
