"""``python -m tb.talk.score``: perplexity of the generated model, computed by the RTL itself.

Takes the tokens of a text through the Verilated accelerator one after another, whatever the model
would choose, and reads all logits. Prints the perplexity next to that of golden.eval's fast path on
the same tokens. That path has the head in FP32, or the head of the image. A run that was stopped
goes on.
"""

import argparse
import hashlib
import json
import math
import sys
from pathlib import Path

from golden import command
from golden.config import ConfigError
from golden.kllm.config import MACHINES
from hdl.arguments import add_page, check_page, folder, whole, write_page
from tb.run import ROOT
from tb.talk.options import FOLDER, Options

__all__ = ["main"]

PAGE = ROOT / "docs" / "talk.md"
SECTION = "talk_perplexity"


def _losses(given: argparse.Namespace, options: Options) -> tuple[list[int], list[float]]:
    """The text's tokens, and what each but the first cost."""
    import torch
    from tokenizers import Tokenizer

    from golden import text as own_text
    from golden.checkpoint import read_text
    from golden.fp16.format import FP16
    from golden.fp16.ops import float_from_bits
    from tb.talk.build import build_host
    from tb.talk.command import image
    from tb.talk.run import Settings, Talk, made_for
    from tb.talk.sampling import Sampling
    from tb.talk.session import Session

    pack = image(options)
    if pack.tokenizer is None:
        raise ConfigError(f"{pack.folder} has no tokenizer")
    words = read_text(given.text) or own_text.EVALUATION
    ids = Tokenizer.from_file(str(pack.tokenizer)).encode(words[: 10 * given.tokens + 100]).ids
    if not 2 <= given.tokens <= min(len(ids), options.context):
        raise ConfigError(
            f"--tokens must be 2..{min(len(ids), options.context)}, not {given.tokens}"
        )
    ids = ids[: given.tokens]
    native = build_host(options.config)
    settings = Settings(
        pack, options.config, native, Sampling(), options.latency, given.chunk, golden=False,
        all_logits=True,
    )  # fmt: skip
    made = made_for(settings, ids)
    digest = hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()[:12]
    session = Session.open(FOLDER / f"score-{digest}", made, ids)
    file = FOLDER / f"score-{digest}.json"
    kept = json.loads(file.read_text()) if file.exists() and session.cached else []
    losses: list[float] = kept[: session.cached]
    if len(losses) < session.cached:
        raise ConfigError(f"{file} is of a killed run: remove {session.folder}")
    with Talk(settings, session, len(ids), FOLDER / "golden") as run:
        while session.cached < len(ids):
            each = run.next_pass()
            real = float_from_bits(torch.from_numpy(each.logits), FP16)
            after = ids[each.job.context + 1 : each.job.context + 1 + each.job.tokens]
            logs = real.log_softmax(1)
            losses += [-float(logs[n, token]) for n, token in enumerate(after)]
            if len(after) < each.job.tokens:
                losses.append(0.0)  # nothing follows the last token
            file.write_text(json.dumps(losses))
            mean = sum(losses) / max(min(len(losses), len(ids) - 1), 1)
            print(
                f"{session.cached} tokens: perplexity {math.exp(mean):.3f}; "
                f"{each.seconds / each.job.tokens:.1f} s and "
                f"{each.figures.cycles / each.job.tokens:.0f} cycles per token",
                file=sys.stderr,
            )
    return ids, losses[: len(ids) - 1]


def _fast(options: Options, ids: list[int]) -> tuple[float, float]:
    """Perplexity of golden.eval's fast path: head in FP32, and of the image's head."""
    import torch

    from golden import checkpoint
    from golden.eval.method import Site
    from golden.fp16.ops import bits_from_float
    from golden.kllm.attention import quantize
    from golden.kllm.model.layout import HEAD_SHARE
    from golden.kllm.model.pack import head_of_text
    from golden.pack import calibrated_method

    loaded = checkpoint.load(None if options.model == "smollm2" else Path(options.model))
    method, state, _ = calibrated_method(loaded, options.calibration_file())
    tokens = torch.tensor(ids)
    machine, model = options.config.machine, loaded.model
    with Site(model) as site, torch.no_grad():
        method.install(site, state)
        head = head_of_text(loaded, (machine.bits_a, machine.bits_b), len(site.layers))
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
    parser = command.Parser(prog="python -m tb.talk.score", description=__doc__)
    parser.add_argument("--text", type=Path, metavar="FILE", help="plain, or .jsonl; ours if none")
    parser.add_argument("--tokens", type=whole(2), default=64)
    parser.add_argument("--chunk", type=whole(1, 8), default=8, help="tokens in a pass")
    add_page(parser, PAGE)
    Options.add(parser, sorted(MACHINES), folder)
    given = parser.parse_args(arguments)
    check_page(parser, given.page, [SECTION])
    from golden.checkpoint import CheckpointError  # torch, only now
    from tb.talk.driver import DriverError

    try:
        options = Options.of(given)
        ids, losses = _losses(given, options)
        exact, own = _fast(options, ids)
    except (ConfigError, CheckpointError, OSError) as error:
        print(f"tb.talk.score: {error}", file=sys.stderr)
        return 2
    except DriverError as error:
        print(f"tb.talk.score: {error}", file=sys.stderr)
        return 1
    found = math.exp(sum(losses) / len(losses))
    name = given.text.name if given.text else "golden.text.EVALUATION"
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
    command.run("tb.talk.score", main)
