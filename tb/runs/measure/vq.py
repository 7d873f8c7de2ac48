"""``tb.runs.vq``: packed matrices on vq_gemv, and their cycles."""

import argparse
import dataclasses
import json
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from golden.manifest import PackError
from golden.vqllm.format import PACKS, VqPackConfig
from golden.vqllm.pack import BLOCK, Pack, load
from golden.vqllm.timing import GemvPath, gemv_core, gemv_fill
from hdl.vqllm.gemv import VqGemv
from hdl.vqllm.gemv_config import VqGemvConfig
from hdl.vqllm.room import BLOCKS
from tb.run import ROOT, build_model, run_model
from tb.runs.cycles import Figure, described, save
from tb.words import layout_word

__all__ = ["engine_of", "fill_of", "path_of", "report"]


def engine_of(name: str) -> VqGemvConfig:
    """The engine of a named pack."""
    config, pack = BLOCKS[BLOCK].configs[name], PACKS[name]
    assert isinstance(config, VqGemvConfig)
    config = dataclasses.replace(config, scaled=pack.scaled)
    assert dataclasses.replace(config.image, rows=pack.image.rows) == pack.image
    assert (config.core.cache.banks, config.lanes) == (pack.banks, pack.lanes)
    return config


def path_of(config: VqGemvConfig, latency: int) -> GemvPath:
    core = config.core
    of_core = gemv_core(core.sums.macs, core.cache.vq.summed).latency
    return GemvPath(of_core, config.scaled, latency, config.far)


def fill_of(config: VqGemvConfig, shared: int, latency: int) -> int:
    """Cycles of a job without look-ups, its first load included."""
    return gemv_fill(shared * config.core.cache.vq.stages, path_of(config, latency))


def _jobs(config: VqGemvConfig, pack: Pack) -> list[dict]:
    """What tb_engine_replay runs, each with a memory of its own: images begin at address 0."""
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


def _pack(name: str, options: argparse.Namespace) -> Pack:
    """PackError, OSError: a folder that does not hold it."""
    folder = options.pack or ROOT / "build" / f"vq-{name}"
    if not (folder / "manifest.json").exists():
        command = [sys.executable, "-m", "golden.pack", "--block", BLOCK, "--config", name]
        if subprocess.run([*command, "-o", str(folder)], cwd=ROOT, check=False).returncode:
            raise PackError(f"{folder}: golden.pack has failed")
    config = PACKS[name]
    assert isinstance(config, VqPackConfig)
    return load(Path(folder), config)


def report(options: argparse.Namespace) -> int:
    """Measure and print for the ``options`` of the command; its exit status."""
    console = Console(width=110)
    table = Table(title="FFN matrices, one vector, a core", title_justify="left")
    for column in ("configuration", "matrix", "limit", "bound + fill", "cycles", "ratio", "error"):
        table.add_column(column, justify="left" if column in ("matrix", "limit") else "right")
    figures, simulated = [], {"cycles": 0, "seconds": 0.0}
    for name in options.config or ("aqlm3", "gptvq2"):
        config, plan = engine_of(name), PACKS[name].plan
        try:
            pack = _pack(name, options)
        except (PackError, OSError) as error:
            print(f"tb.runs.vq: {error}", file=sys.stderr)
            return 2
        console.print(f"building the model of {BLOCK}, {name}")
        model = build_model(VqGemv(config), long_run=True)
        fill = fill_of(config, plan.shared, options.latency)
        for matrix, job in zip(pack.words, _jobs(config, pack), strict=True):
            params = {"jobs": [job], "latency": options.latency}
            work = run_model(model, "tb.vqllm.tb_engine_replay", config=config, params=params)
            made = json.loads((work / "replay.json").read_text())
            for key in simulated:
                simulated[key] += made["simulated"][key]
            of_matrix = pack.manifest.layout[matrix]
            bounds, cycles = of_matrix["bounds"], made["jobs"][0]["cycles"]
            limit = max(bounds, key=bounds.__getitem__)
            bound = bounds[limit] + fill
            table.add_row(
                name, matrix, limit, str(bound), str(cycles), f"{cycles / bound:.3f}",
                f"{of_matrix['error']:.4f}",
            )  # fmt: skip
            figures.append(Figure(
                command="tb.runs.vq", block=BLOCK, configuration=described(config),
                parameters={"matrix": matrix, "memory_latency": options.latency},
                span="from the job taken to its last result", cycles=cycles, bound=bound,
            ))  # fmt: skip
    console.print(table)
    rate = simulated["cycles"] / simulated["seconds"]
    console.print(
        f"all results and statuses equal to golden; {simulated['cycles']} cycles simulated, "
        f"{rate:.0f} per second of processor time"
    )
    save(options.json, figures)
    return 0
