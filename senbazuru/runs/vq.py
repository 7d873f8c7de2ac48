"""``python -m senbazuru.runs.vq``: a layer vector-quantized, in the Verilated engines of VQ-LLM.

| method | what runs |
|---|---|
| aqlm3, gptvq2, quip4, aqlm2x8 | vq_gemv fetches golden.llm.pack's matrix and multiplies it once |
| cq4, cq2 | vq_kv_encoder encodes K and V of all tokens; vq_attention attends them once |

Packs and codebooks come from k-means, quip4 from a lattice. The input and the queries are those of
the last token. Compares every result, code and status with golden. Prints the cycles next to their
bound, and the error against the FP32 layer. ``llama`` has heads of 128 elements and random weights.
"""

import argparse
import dataclasses
import functools
import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Console

from golden import command
from golden.command import elapsed
from golden.config import ConfigError
from golden.manifest import PackError
from golden.markers import table
from golden.vqllm.format import MATRICES, PACKS
from golden.words import layout_word
from hdl.arguments import add_page, check_page, folder, whole, write_page
from hdl.vqllm.gemv.config import VqGemvConfig
from hdl.vqllm.gemv.gemv import VqGemv
from hdl.vqllm.room import BLOCKS
from senbazuru.runs.cycles import Figure, add_option, described, owned, save
from tb.simulate.run import ROOT, build_model, run_model
from tb.vqllm.support.fill import fill_of

if TYPE_CHECKING:
    from golden.llm.vqllm.pack import Layer, Pack
    from senbazuru.runs.vq_kv import Result, Say

PAGE = ROOT / "docs" / "vqllm-rates.md"
SECTION = "layers"
BLOCK = "vq_gemv"
CACHES = ("cq4", "cq2")  # methods of K and V
# By model, the matrix that runs by default: SmolLM2's has 576 columns, 2.25 tiles of 256.
MODELS = {"smollm2": "up_proj", "llama": "k_proj"}
_DEFAULT = ("aqlm3", "gptvq2", "quip4", *CACHES)
SPAN = "from the job taken to its last result"
_HEAD = ("model", "method", "what", "equal to golden", "bound", "cycles", "ratio", "error")


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(
        prog="python -m senbazuru.runs.vq", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--only", nargs="+", choices=[*PACKS, *CACHES], default=list(_DEFAULT),
                        metavar="METHOD", help=f"by default {', '.join(_DEFAULT)}")  # fmt: skip
    parser.add_argument("--model", nargs="+", choices=list(MODELS), default=list(MODELS),
                        help="by default both")  # fmt: skip
    parser.add_argument("--matrix", nargs="+", choices=MATRICES,
                        help="by default up_proj of smollm2, k_proj of llama")  # fmt: skip
    parser.add_argument("--pack", type=folder, help="folder of golden.llm.pack; made when missing")
    parser.add_argument("--tokens", type=whole(1, 4096), default=128, help="of the text")
    parser.add_argument("--training", type=whole(512), default=2048,
                        help="tokens of the codebooks of K and V")  # fmt: skip
    parser.add_argument("--layer", type=whole(0), help="by default a middle one")
    parser.add_argument("--latency", type=whole(), default=40, help="cycles of the memory")
    add_page(parser, PAGE)
    add_option(parser)
    options = parser.parse_args(arguments)
    if options.pack and (len(options.only) != 1 or options.only[0] in CACHES):
        parser.error("--pack needs --only with one method of weights")
    check_page(parser, options.page, [SECTION])
    with owned(parser, options.json):
        return report(options)


def engine_of(name: str) -> VqGemvConfig:
    """The engine of a named pack."""
    config, pack = BLOCKS[BLOCK].configs[name], PACKS[name]
    assert isinstance(config, VqGemvConfig)
    config = dataclasses.replace(config, scaled=pack.scaled)
    assert dataclasses.replace(config.image, rows=pack.image.rows) == pack.image
    assert (config.core.cache.banks, config.lanes) == (pack.banks, pack.lanes)
    return config


def _jobs(config: VqGemvConfig, pack: "Pack") -> list[dict]:
    """The jobs of tb_engine_replay, each with a memory of its own: images begin at address 0."""
    jobs, macs = [], config.core.sums.macs
    status, y = config.status_layout, config.finish.y_layout
    for name, words in pack.words.items():
        job = dict(pack.manifest.layout[name]["job"])
        x = words["x"] + [0] * (-len(words["x"]) % macs)
        beats = [x[at : at + macs] for at in range(0, len(x), macs)]
        size = config.image.word_bytes
        jobs.append({
            "base": 0, "refused": [],
            "memory": b"".join(word.to_bytes(size, "little") for word in words["image"]).hex(),
            "x": [
                layout_word(config.core.sums.x_layout, word=beat, last=int(n == len(beats) - 1),
                            end=int(n == len(beats) - 1))
                for n, beat in enumerate(beats)
            ],
            "job": [layout_word(config.job_layout, **{
                field: job[field] for field, _ in config.job_layout
            })],
            "y": [layout_word(y, word=[word], last=int(n == len(words["y"]) - 1))
                  for n, word in enumerate(words["y"])],
            "masks": [-1] * len(words["y"]),
            "status": [0],
            "status_mask": [layout_word(status, fault=(1 << status["fault"].width) - 1, resp=3)],
        })  # fmt: skip
    return jobs


def _packs(model: str, name: str, options: argparse.Namespace, say: "Say") -> "Iterator[Pack]":
    """The folder of ``--pack``, or one for each matrix. PackError, OSError, ConfigError."""
    from golden.llm.vqllm.pack import load  # torch, only now
    from golden.llm.vqllm.pack import save as save_pack

    config = PACKS[name]
    if options.pack:
        yield load(options.pack, config)
        return
    number = "middle" if options.layer is None else options.layer
    for matrix in options.matrix or (MODELS[model],):
        parts = (model, name, matrix, number, options.tokens)
        folder = ROOT / "build" / "vq" / "-".join(map(str, parts))
        if not (folder / "manifest.json").exists():
            layer = _captured(model, options.layer, options.tokens)
            own = {matrix: layer.weights[matrix]}
            save_pack(folder, config, dataclasses.replace(layer, weights=own), say)
        yield load(folder, config)


@functools.lru_cache(maxsize=1)
def _captured(model: str, number: int | None, tokens: int) -> "Layer":
    from golden.llm.vqllm.pack import captured  # torch, only now

    return captured(model, number, tokens, MATRICES)


def weights(model: str, name: str, options: argparse.Namespace, say: "Say") -> "Iterator[Result]":
    """Each matrix of the packs on vq_gemv. AssertionError: a result or a status differs."""
    from senbazuru.runs.vq_kv import Result

    config, plan = engine_of(name), PACKS[name].plan
    fill = fill_of(config, plan.shared, options.latency)
    for pack in _packs(model, name, options, say):
        say(f"building the model of {BLOCK}, {name}")
        verilated = build_model(VqGemv(config), long_run=True)
        for matrix, job in zip(pack.words, _jobs(config, pack), strict=True):
            params = {"jobs": [job], "latency": options.latency}
            work = run_model(verilated, "tb.vqllm.tb_engine_replay", config=config, params=params)
            made = json.loads((work / "replay.json").read_text())
            simulated = made["simulated"]
            rate = simulated["cycles"] / simulated["seconds"]
            say(f"{simulated['cycles']} cycles simulated, {rate:.0f} per second of processor time")
            of_matrix = pack.manifest.layout[matrix]
            rows, columns = len(pack.words[matrix]["y"]), len(pack.words[matrix]["x"])
            yield Result(
                model=pack.manifest.model["name"], method=name,
                what=f"{matrix}, {rows} x {columns}", equal=f"{rows} results",
                error=of_matrix["error"],
                figure=Figure(
                    command="senbazuru.runs.vq", block=BLOCK, configuration=described(config),
                    parameters={"matrix": matrix, "memory_latency": options.latency},
                    span=SPAN,
                    cycles=made["jobs"][0]["cycles"],
                    bound=max(of_matrix["bounds"].values()) + fill,
                ),
            )  # fmt: skip


def _processor() -> float:
    """Seconds of this process and of those that it has waited for."""
    return sum(os.times()[:4])


def report(options: argparse.Namespace) -> int:
    """Measure and print for the ``options`` of the command; its exit status.

    0: all equal golden; 1: a run does not, and the others are printed; 2: a pack cannot be used.
    """
    from golden.llm.eval.command import quiet  # torch, only now
    from senbazuru.runs.vq_kv import cache

    quiet()
    console = Console()
    say = elapsed(lambda line: console.print(line, highlight=False, soft_wrap=True))
    start, began = time.monotonic(), _processor()
    found: list[Result] = []
    wrong = 0
    for model, method in itertools.product(options.model, options.only):
        say(f"{model}, {method}")
        spent, measure = _processor(), cache if method in CACHES else weights
        try:
            for result in measure(model, method, options, say):
                found.append(result)
                say(f"{result.what}: {result.equal} equal to golden, {result.figure.cycles} cycles")
        except AssertionError as error:
            print(f"senbazuru.runs.vq: {model}, {method}: {error}", file=sys.stderr)
            wrong += 1
        except (PackError, ConfigError, OSError) as error:
            print(f"senbazuru.runs.vq: {error}", file=sys.stderr)
            return 2
        say(f"{model}, {method}: {_processor() - spent:.0f} s of processor time")
    text = table(_HEAD, (result.cells() for result in found))
    console.print(text, highlight=False, soft_wrap=True)
    same = f"{wrong} differ from golden" if wrong else "all results and statuses equal to golden"
    say(f"{len(found)} runs, {same}; {time.monotonic() - start:.0f} s, of the processor "
        f"{_processor() - began:.0f} s")  # fmt: skip
    if wrong:
        return 1
    write_page(options.page, {SECTION: text})
    save(options.json, [result.figure for result in found])
    return 0


if __name__ == "__main__":
    command.run("senbazuru.runs.vq", main)
