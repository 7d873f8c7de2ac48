"""``senbazuru.talk.score``: perplexity of the generated model, computed by the RTL itself.

Takes the tokens of a text through the Verilated accelerator one after another, whatever the model
would choose, and reads all logits. Prints the perplexity next to that of golden.llm.eval's fast
path on the same tokens. That path has the head in FP32, or the head of the image. A run that was
stopped goes on.
"""

import argparse
import hashlib
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from golden import command
from golden.config import ConfigError
from golden.files import kept_json, replacing
from golden.kllm.config import MACHINES
from hdl.arguments import add_page, check_page, folder, whole, write_page
from senbazuru.talk.options import FOLDER, SMOLLM2, Options
from tb.simulate.run import ROOT

if TYPE_CHECKING:
    from golden.llm.kllm.pack import ModelPack
    from senbazuru.talk.run import Settings
    from senbazuru.talk.session import Session

PAGE = ROOT / "docs" / "talk.md"
SECTION = "talk_perplexity"


def _checked(given: argparse.Namespace) -> str:
    """The text. ConfigError, CheckpointError: it, or the options, are none that can be compared."""
    from golden.llm import text as own_text
    from golden.llm.checkpoint import read_text

    if given.layers is not None:
        raise ConfigError("--layers does not apply: golden.llm.eval has all layers of the model")
    if given.pack is not None and given.calibration is None:
        raise ConfigError("--pack needs --calibration, the file that the image was made with")
    words = read_text(given.text)
    return own_text.EVALUATION if words is None else words


def _check_calibration(options: Options, pack: "ModelPack", words: str, used: int) -> None:
    """ConfigError: the image is of another calibration, or that has learned from these tokens."""
    from golden.llm.checkpoint import layer_count
    from golden.llm.eval.state import load_header

    file = options.calibration_file()
    header = load_header(file)
    made = pack.manifest.made.get("calibration")
    names = sorted(made) if isinstance(made, dict) else ["calibration"]
    for name in names:
        found = made[name] if isinstance(made, dict) else made
        if found != header.get(name):
            raise ConfigError(
                f"{pack.folder} was made with {name} {found!r:.60}, {file} has "
                f"{header.get(name)!r:.60}"
            )
    if header["text_sha256"] == hashlib.sha256(words.encode()).hexdigest() and (
        header["skip"] < used
    ):
        raise ConfigError(
            f"{file} was calibrated on text that is scored: make it with golden.llm.calibrate "
            f"--skip {used}"
        )
    count = layer_count(None if options.model == SMOLLM2 else Path(options.model))
    if count not in (None, pack.layout.shape.layers):
        raise ConfigError(f"{pack.folder} must have {count} layers, not {pack.layout.shape.layers}")


def _kept(file: Path, session: "Session") -> list[float]:
    """The costs of the cached tokens. ConfigError: the file has fewer."""
    kept = kept_json(file) if session.cached else []
    losses = kept[: session.cached] if isinstance(kept, list) else []
    if len(losses) < session.cached or not all(type(each) is float for each in losses):
        raise ConfigError(f"{file} is damaged or of a killed run: remove {session.folder}")
    return losses


def _losses(given: argparse.Namespace, options: Options) -> tuple[list[int], list[float]]:
    """The text's tokens, and what each but the first cost."""
    from senbazuru.talk.build import build_host
    from senbazuru.talk.command import image, tokenizer_of
    from senbazuru.talk.run import Settings, made_for
    from senbazuru.talk.sampling import Sampling
    from senbazuru.talk.session import Session, alone

    words = _checked(given)
    pack = image(options)
    ids = tokenizer_of(pack).encode(words[: 10 * given.tokens + 100]).ids[: given.tokens]
    context = pack.layout.shape.context
    if given.tokens > context:
        raise ConfigError(f"--tokens must be at most {context}, the image's context")
    if len(ids) < given.tokens:
        raise ConfigError(f"the text has {len(ids)} tokens, --tokens {given.tokens} are needed")
    _check_calibration(options, pack, words, given.tokens)
    native = build_host(options.config, options.threads)
    settings = Settings(
        pack, options.config, native, Sampling(), options.latency, given.chunk, golden=False,
        all_logits=True,
    )  # fmt: skip
    made = made_for(settings, ids)
    digest = hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()[:12]
    folder = FOLDER / f"score-{digest}"
    with alone(folder):
        session = Session.open(folder, made, ids, pack.layout.shape.vocabulary)
        return ids, _scored(settings, session, ids)


def _scored(settings: "Settings", session: "Session", ids: list[int]) -> list[float]:
    """The cost of each token but the first."""
    import torch

    from golden.fp16.format import FP16
    from golden.fp16.ops import float_from_bits
    from senbazuru.talk.command import GOLDEN
    from senbazuru.talk.run import Talk

    file = session.folder.with_suffix(".json")
    losses = _kept(file, session)
    with Talk(settings, session, len(ids), FOLDER / GOLDEN) as run:
        while session.cached < len(ids):
            each = run.next_pass()
            real = float_from_bits(torch.from_numpy(each.logits), FP16)
            after = ids[each.job.context + 1 : each.job.context + 1 + each.job.tokens]
            logs = real.log_softmax(1)
            losses += [-float(logs[n, token]) for n, token in enumerate(after)]
            if len(after) < each.job.tokens:
                losses.append(0.0)  # nothing follows the last token
            with replacing(file) as part:
                part.write_text(json.dumps(losses))
            mean = sum(losses) / max(min(len(losses), len(ids) - 1), 1)
            print(
                f"{session.cached} tokens: perplexity {math.exp(mean):.3f}; "
                f"{each.seconds / each.job.tokens:.1f} s and "
                f"{each.figures.cycles / each.job.tokens:.0f} cycles per token",
                file=sys.stderr,
            )
    return losses[: len(ids) - 1]


def _fast(options: Options, ids: list[int]) -> tuple[float, float]:
    """Perplexity of golden.llm.eval's fast path: head in FP32, and of the image's head."""
    import torch

    from golden.fp16.ops import bits_from_float
    from golden.kllm.attention import quantize
    from golden.kllm.model.layout import HEAD_SHARE
    from golden.llm import checkpoint
    from golden.llm.eval.method import Site
    from golden.llm.kllm.pack import head_of_text
    from golden.llm.pack import calibrated

    loaded = checkpoint.load(None if options.model == SMOLLM2 else Path(options.model))
    methods = calibrated(loaded, options.calibration_file())
    tokens = torch.tensor(ids)
    machine, model = options.config.machine, loaded.model
    with Site(model) as site, torch.no_grad():
        methods.install(site)
        head = head_of_text(loaded, machine, len(site.layers))
        seen: list[torch.Tensor] = []
        site.watch(model.model.norm, lambda given, _named: seen.append(given[0][0]))
        real = model(tokens[None], use_cache=False).logits[0]
        words = bits_from_float(seen[-1].double())
        x = quantize(words, head.codebook, HEAD_SHARE).value(head.codebook).double()
        x = x * torch.rsqrt(x.square().mean(1, keepdim=True) + model.model.norm.variance_epsilon)
        own = x @ (head.weight.dequantize() + head.residual.dequantize())
    count = len(ids) - 1
    found = [float(checkpoint.next_token_loss(each.double(), tokens)) for each in (real, own)]
    return math.exp(found[0] / count), math.exp(found[1] / count)


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m senbazuru.talk.score", description=__doc__)
    parser.add_argument("--text", type=Path, metavar="FILE", help="plain, or .jsonl; ours if none")
    parser.add_argument("--tokens", type=whole(2), default=64)
    parser.add_argument("--chunk", type=whole(1, 8), default=8, help="tokens in a pass")
    add_page(parser, PAGE)
    Options.add(parser, sorted(MACHINES), folder)
    given = parser.parse_args(arguments)
    check_page(parser, given.page, [SECTION])
    from golden.llm.checkpoint import CheckpointError  # torch, only now
    from senbazuru.talk.driver import DriverError

    try:
        options = Options.of(given)
        ids, losses = _losses(given, options)
        exact, own = _fast(options, ids)
    except (ConfigError, CheckpointError, OSError) as error:
        print(f"senbazuru.talk.score: {error}", file=sys.stderr)
        return 2
    except DriverError as error:
        print(f"senbazuru.talk.score: {error}", file=sys.stderr)
        return 1
    found = math.exp(sum(losses) / len(losses))
    name = given.text.name if given.text else "golden.llm.text.EVALUATION"
    rows = [
        "| text | tokens | RTL | fast path, head of the image | fast path, head in FP32 |",
        "| --- | ---: | ---: | ---: | ---: |",
        f"| {name} | {len(ids)} | {found:.3f} | {own:.3f} | {exact:.3f} |",
        "",
    ]
    print("\n".join(rows), end="")
    write_page(given.page, {SECTION: "\n".join(rows)})
    return 0


if __name__ == "__main__":
    command.run("senbazuru.talk.score", main)
