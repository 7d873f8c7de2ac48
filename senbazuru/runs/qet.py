"""``python -m senbazuru.runs.qet``: matrices quantized by QET, in the Verilated blocks.

| matrix | what |
|---|---|
| up_proj | of a layer of SmolLM2-135M, 1536 x 576: 9 tiles |
| K, V | of all KV heads of the layer, of some tokens of a text |
| gaussian | 1024 x 512 |
| row_63, row_65, rows_64 | 1 x 63, 1 x 65 and 7 x 64: a column less and more than a tile |

Codebooks come from k-means on the matrix itself, at ratio 4 of FP16. ``qet_encoder`` gives codes
and maps, ``qet_decoder`` the matrix, and ``qet_dequant_gemv`` its product with a vector. Every bit
must equal golden's. Prints the cycles next to their bound, and the error of the matrix.
"""

import argparse
import dataclasses
import json
import os
import sys
import time
from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console

from golden import command
from golden.command import elapsed
from golden.config import ConfigError
from golden.llm import text
from golden.markers import table
from golden.qet.config import Budget, QetShape, Stage
from golden.qet.timing import gemv_fill, image_bound
from hdl.arguments import add_page, check_page, whole, write_page
from hdl.qet.decoder import QetDecoder, QetDecoderConfig
from hdl.qet.dequant_gemv import QetDequantGemv
from hdl.qet.encoder import QetEncoder, QetEncoderConfig
from hdl.qet.gemv_config import QetDequantGemvConfig
from hdl.qet.room import BLOCKS
from senbazuru.runs.cycles import Figure, add_option, described, owned, save
from tb.simulate.run import ROOT, build_model, run_model

if TYPE_CHECKING:
    import torch

    from golden.qet.matrix import QetMatrix
    from golden.qet.tiling import Tile

PAGE = ROOT / "docs" / "qet-rates.md"
SECTION = "matrices"
MATRICES = ("up_proj", "K", "V", "gaussian", "row_63", "row_65", "rows_64")
_CONFIG = "smollm2"
_RATIO = 4
_ODD = (3, 2)  # entries where no budget has a solution
SPANS = {
    "qet_encoder": "from the first row to the last codes",
    "qet_decoder": "from the first row to the last words",
    "qet_dequant_gemv": "from the job taken to its last result",
}
_HEAD = ("matrix", "tiles", "entries", "bits", "MSE / variance", "block", "equal to golden",
         "bound", "cycles", "ratio")  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(
        prog="python -m senbazuru.runs.qet", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--only", nargs="+", choices=MATRICES, default=list(MATRICES),
                        metavar="MATRIX", help=f"by default {', '.join(MATRICES)}")  # fmt: skip
    parser.add_argument("--tokens", type=whole(64, 1536), default=512, help="of K and V")
    parser.add_argument("--layer", type=whole(0), help="by default a middle one")
    parser.add_argument("--latency", type=whole(), default=40, help="cycles of the memory")
    add_page(parser, PAGE)
    add_option(parser)
    options = parser.parse_args(arguments)
    check_page(parser, options.page, [SECTION])
    with owned(parser, options.json):
        return report(options)


@dataclasses.dataclass(frozen=True)
class Source:
    """A matrix and how it is quantized."""

    name: str
    matrix: "torch.Tensor"
    made: "QetMatrix"

    @property
    def error(self) -> float:
        """Mean squared error by the variance of the matrix."""
        from golden.qet.metrics import errors  # torch, only now

        exact = self.matrix.double()
        return errors(exact, self.made.real()).mse / float(exact.var(correction=0))


def _matrices(options: argparse.Namespace) -> "Iterator[tuple[str, torch.Tensor]]":
    """Names and FP16 matrices. CheckpointError, ConfigError."""
    import torch  # only now

    from golden.llm import checkpoint
    from golden.llm.capture import capture_kv
    from golden.llm.vqllm.pack import layer_of

    wanted = set(options.only)
    if wanted & {"up_proj", "K", "V"}:
        loaded = checkpoint.load()
        layers = loaded.model.model.layers
        number = layer_of(options.layer, len(layers))
        if "up_proj" in wanted:
            yield "up_proj", layers[number].mlp.up_proj.weight.detach().half()
        if wanted & {"K", "V"}:
            ids = checkpoint.tokens(
                loaded, f"{text.CALIBRATION}\n{text.EVALUATION}", options.tokens
            )
            for name, side in zip("KV", capture_kv(loaded.model, ids)[number], strict=True):
                if name in wanted:
                    yield name, side.detach().half()
    generator = torch.Generator().manual_seed(0)
    for name, size in (
        ("gaussian", (1024, 512)), ("row_63", (1, 63)), ("row_65", (1, 65)), ("rows_64", (7, 64)),
    ):  # fmt: skip
        matrix = torch.randn(*size, generator=generator).half()
        if name in wanted:
            yield name, matrix


def _quantized(matrix: "torch.Tensor") -> "QetMatrix":
    """Quantizes at ratio 4, or with few entries where no codebook fits."""
    from golden.qet.matrix import quantize  # torch, only now

    shape = QetShape(
        rows=matrix.shape[0],
        columns=matrix.shape[1],
        element_bits=16,
        stages=(Stage(levels=3), Stage(levels=0)),
    )
    try:
        shape = Budget(ratio=Fraction(_RATIO)).solve(shape)
    except ConfigError:
        stages = [
            dataclasses.replace(stage, entries=entries)
            for stage, entries in zip(shape.stages, _ODD, strict=True)
        ]
        shape = dataclasses.replace(shape, stages=tuple(stages))
    return quantize(matrix, shape)


def tile_words(config, tiles: "list[Tile]", exponent: int, words: np.ndarray) -> dict[str, list]:
    """The fields of both blocks by stream, tile by tile; words: (rows, padded) of the matrix."""
    found: dict[str, list] = {name: [] for name in ("info", "load", "verdict", "rows", "x", "o")}
    for tile in tiles:
        info = {"exponent": exponent}
        for n, stage in enumerate(tile.stages):
            info |= {f"entries_{n}": stage.entries.shape[1], f"low_{n}": stage.low}
            info[f"step_{n}"] = stage.step
        entries = [e for stage in tile.stages for e in stage.entries.transpose(0, 1).numpy()]
        found["info"].append(info)
        found["load"] += [
            {"entry": entry, "last": n == len(entries) - 1} for n, entry in enumerate(entries)
        ]
        found["verdict"].append({"fault": 0})
        for row in range(len(tile.words)):
            fields = {f"code_{n}": stage.codes[row] for n, stage in enumerate(tile.stages)}
            fields |= {f"map_{n}": stage.maps[row].int() for n, stage in enumerate(tile.stages)}
            flags = {"switch": row == 0, "last": row == len(tile.words) - 1, "fault": 0, "wrong": 0}
            found["rows"].append({**fields, **flags})
            columns = words[row, tile.first : tile.first + config.shape.columns]
            found["x"].append({"word": columns, **flags})
            found["o"].append({"word": tile.words[row], **flags})
    return found


def bound_of(config: QetDequantGemvConfig, made: "QetMatrix", latency: int) -> int:
    """Cycles of all tiles as the image has them, and of the fill."""
    words = made.shape.tiles * config.image.row_words(made.shape.rows)
    return image_bound(made.shape, config.image) + gemv_fill(latency, config.ahead, words)


class _Runs:
    """The three blocks, built once, and their runs."""

    def __init__(self, options: argparse.Namespace, say):
        self.latency, self.say = options.latency, say
        made = {}
        for name, block in (
            ("qet_encoder", QetEncoder), ("qet_decoder", QetDecoder),
            ("qet_dequant_gemv", QetDequantGemv),
        ):  # fmt: skip
            say(f"building the model of {name}")
            config = BLOCKS[name].configs[_CONFIG]
            made[name] = config, build_model(block(config), long_run=True)
        self.made = made

    def _run(self, block: str, bench: str, vectors, params) -> list[dict]:
        config, model = self.made[block]
        work = run_model(model, f"tb.qet.{bench}", config=config, vectors=vectors, params=params)
        found = json.loads((work / "replay.json").read_text())
        simulated = found["simulated"]
        rate = simulated["cycles"] / simulated["seconds"]
        self.say(f"{block}: {simulated['cycles']} cycles, {rate:.0f} per second of processor time")
        return found.get("matrices") or found["jobs"]

    def figures(self, sources: list[Source]) -> Iterator[tuple[Source, str, Figure]]:
        """Each matrix through each block; AssertionError: a bit differs."""
        from golden.qet.matrix import padded_words  # torch, only now
        from golden.qet.tiling import tiles_of
        from golden.qet.vectors.gemv import gemv_job
        from golden.qet.vectors.tiles import words_of
        from golden.vqllm.vectors.engine import random_x

        config, _ = self.made["qet_encoder"]
        assert isinstance(config, QetEncoderConfig)
        decoder, _ = self.made["qet_decoder"]
        assert isinstance(decoder, QetDecoderConfig)
        engine, _ = self.made["qet_dequant_gemv"]
        assert isinstance(engine, QetDequantGemvConfig)
        fields: dict[str, list] = {}
        ends = []
        for source in sources:
            words = padded_words(source.matrix, source.made.shape).numpy()
            parts = tile_words(config, tiles_of(source.made), source.made.exponent, words)
            for name, some in parts.items():
                fields.setdefault(name, []).extend(some)
            ends.append(len(fields["rows"]))
        loads = {
            "info": words_of(config.info_layout, fields["info"]),
            "load": words_of(config.load_layout, fields["load"]),
            "verdict": words_of(config.verdict_layout, fields["verdict"]),
        }
        coded = words_of(config.coded_layout, fields["rows"])
        streams = {"x": words_of(config.x_layout, fields["x"]), "o": coded}
        params = {"packets": ends}
        found = {
            "qet_encoder": self._run("qet_encoder", "tb_encode_replay", loads | streams, params)
        }
        loads["info"] = words_of(decoder.info_layout, fields["info"])
        streams = {
            "row": words_of(decoder.row_layout, fields["rows"]),
            "o": words_of(decoder.decoded_layout, fields["o"]),
        }
        found["qet_decoder"] = self._run("qet_decoder", "tb_decode_replay", loads | streams, params)
        rng, jobs, base = np.random.default_rng(0), [], 0
        for source in sources:
            x = random_x(rng, 1, source.matrix.shape[1])
            job = gemv_job(engine, source.made, x, base)
            jobs.append(job.params())
            base = job.end()
        params = {"jobs": jobs, "latency": self.latency}
        found["qet_dequant_gemv"] = self._run("qet_dequant_gemv", "tb_gemv_replay", {}, params)
        for block, runs in found.items():
            for source, run in zip(sources, runs, strict=True):
                yield source, block, self._figure(source, block, run["cycles"])

    def _figure(self, source: Source, block: str, cycles: int) -> Figure:
        config, shape = self.made[block][0], source.made.shape
        rows = shape.rows * shape.tiles
        bound = rows
        if block == "qet_encoder":
            bound = rows * max(stage.entries for stage in shape.stages)
        elif block == "qet_dequant_gemv":
            bound = bound_of(config, source.made, self.latency)
        return Figure(
            command="senbazuru.runs.qet",
            block=block,
            configuration=described(config),
            parameters={
                "matrix": source.name, "rows": shape.rows, "columns": shape.columns,
                "memory_latency": self.latency,
            },
            span=SPANS[block],
            cycles=cycles,
            bound=bound,
        )  # fmt: skip


def report(options: argparse.Namespace) -> int:
    """Measure and print for the ``options`` of the command; its exit status.

    0: all equal golden; 1: a bit differs; 2: a matrix cannot be had.
    """
    import torch  # only now

    from golden.llm import checkpoint
    from golden.llm.eval.command import quiet
    from golden.qet.matrix import encode

    quiet()
    console = Console()
    say = elapsed(lambda line: console.print(line, highlight=False, soft_wrap=True))
    start, began = time.monotonic(), sum(os.times()[:4])
    sources = []
    try:
        for name, matrix in _matrices(options):
            say(f"quantizing {name}: {matrix.shape[0]} x {matrix.shape[1]}")
            made = _quantized(matrix)
            again = encode(matrix, made)
            assert all(
                torch.equal(one.codes, other.codes)
                for one, other in zip(again.stages, made.stages, strict=True)
            )
            sources.append(Source(name, matrix, made))
        figures = list(_Runs(options, say).figures(sources))
    except AssertionError as error:
        print(f"senbazuru.runs.qet: {error}", file=sys.stderr)
        return 1
    except (checkpoint.CheckpointError, ConfigError, OSError) as error:
        print(f"senbazuru.runs.qet: {error}", file=sys.stderr)
        return 2
    cells = []
    for source, block, figure in figures:
        shape, bound = source.made.shape, figure.bound or 1
        entries = ", ".join(str(stage.entries) for stage in shape.stages)
        bits = shape.stored_bits / (shape.rows * shape.columns)
        cells.append((
            f"{source.name}, {shape.rows} x {shape.columns}", shape.tiles, entries, f"{bits:.2f}",
            f"{source.error:.4f}", block, f"{shape.rows} rows", bound, figure.cycles,
            f"{figure.cycles / bound:.3f}",
        ))  # fmt: skip
    made = table(_HEAD, cells)
    console.print(made, highlight=False, soft_wrap=True)
    say(f"{len(figures)} runs, every bit equal to golden; {time.monotonic() - start:.0f} s, of the "
        f"processor {sum(os.times()[:4]) - began:.0f} s")  # fmt: skip
    write_page(options.page, {SECTION: made})
    save(options.json, [figure for _, _, figure in figures])
    return 0


if __name__ == "__main__":
    command.run("senbazuru.runs.qet", main)
