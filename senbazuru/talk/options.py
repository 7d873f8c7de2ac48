"""Options that name the model and the machine; the folder of its image."""

import argparse
import dataclasses
import functools
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import filelock

from golden.config import ConfigError
from golden.manifest import FORMAT
from hdl.arguments import whole
from hdl.kllm.accelerator import KllmAcceleratorConfig
from hdl.kllm.room import BLOCKS
from tb.simulate.run import ROOT

FOLDER = ROOT / "build" / "talk"
METHOD = "kllm-w4a4:integer_bits=16+oaken"
SMOLLM2 = "smollm2"
# Of the standard machine: ports as fast as its four lanes.
PORTS = ("ports.ports=8", "ports.bits=1024")
# Of a machine that says no more.
FUNCTIONS = 4  # elements per cycle of FUNCTION: more are no faster, decision 0325
BANKS = 2  # of the vector memory: QUANTIZE reads beside BINARY, decision 0335


@dataclasses.dataclass(frozen=True)
class Options:
    """model, layers, calibration, context: of the image; config: the accelerator.

    threads: of the simulation
    """

    model: str
    layers: int | None
    calibration: Path | None
    context: int
    name: str
    sets: tuple[str, ...]
    config: KllmAcceleratorConfig
    pack: Path | None
    latency: int
    threads: int

    @staticmethod
    def add(
        parser: argparse.ArgumentParser, machines: list[str], folder: Callable[[str], Path]
    ) -> None:
        parser.add_argument("--model", default=SMOLLM2, help="as for golden.llm.pack")
        parser.add_argument("--layers", type=whole(), metavar="N", help="the first N layers")
        parser.add_argument(
            "--calibration", type=Path, metavar="FILE",
            help=f"of golden.llm.calibrate; made for {METHOD} when missing",
        )  # fmt: skip
        parser.add_argument(
            "--context", type=whole(2), default=512, help="most tokens of a sequence"
        )
        parser.add_argument("--config", default="smollm2_cache", choices=machines)
        parser.add_argument(
            "--set", action="append", metavar="FIELD=VALUE",
            help="a field of the machine; by default " + " ".join(PORTS),
        )  # fmt: skip
        parser.add_argument("--pack", type=folder, help="folder of golden.llm.pack --all")
        parser.add_argument("--latency", type=whole(), default=40, help="cycles of every memory")
        parser.add_argument(
            "--threads", type=whole(1, 16), default=min(2, os.cpu_count() or 1),
            help="of the simulation; by default 2 where there are two processors",
        )  # fmt: skip

    @classmethod
    def of(cls, options: argparse.Namespace) -> "Options":
        """ConfigError: a machine that there is not."""
        sets = tuple(PORTS if options.set is None else options.set)
        config = KllmAcceleratorConfig.parse(
            BLOCKS["kllm_accelerator"].configs[options.config], [f"machine.{each}" for each in sets]
        )
        assert isinstance(config, KllmAcceleratorConfig)
        build = dataclasses.replace(config.build, coding="sums", packet_words=16)
        config = dataclasses.replace(
            config, functions=max(config.functions, FUNCTIONS), ahead=True,
            banks=max(config.banks, BANKS), build=build,
        )  # fmt: skip
        return cls(
            options.model, options.layers, options.calibration, options.context, options.config,
            sets, config, options.pack, options.latency, options.threads,
        )  # fmt: skip

    def folder(self) -> Path:
        """The image's folder, made when it is missing. ConfigError: it cannot be made.

        What can be refused without a calibration is refused before one starts.
        """
        if self.pack is not None:
            if not (self.pack / "manifest.json").exists():
                raise ConfigError(
                    f"{self.pack} has no manifest.json: golden.llm.pack --all makes one"
                )
            return self.pack
        self._check_layers()
        calibration = self.calibration_file()
        found = calibration.stat()
        made = [str(calibration), found.st_size, found.st_mtime_ns]
        machine = [FORMAT, self.config.machine.describe()]
        folder = self._named(self._weights, self.layers, self.context, machine, made, suffix="")
        with _lock(folder):
            if not (folder / "manifest.json").exists():
                words = ["--all", "--model", self._model, "--config", self.name]
                words += ["--context", str(self.context), "--calibration", str(calibration)]
                words += ["--layers", str(self.layers)] if self.layers else []
                words += [word for each in self.sets for word in ("--set", each)]
                _run("golden.llm.pack", *words, "-o", str(folder))
        return folder

    def calibration_file(self) -> Path:
        """The file given, or one of the default method, on our own text; made when it is missing.

        ConfigError: there is none, or the model does not fit the machine.
        """
        if self.calibration is not None:
            if not self.calibration.is_file():
                raise ConfigError(f"no calibration at {self.calibration}")
            return self.calibration.resolve()
        from golden.llm.methods import parse_all

        fields = [[type(each).__name__, each.calibration_fields()] for each in parse_all(METHOD)]
        file = self._named(self._weights, fields, suffix="-calibration.safetensors")
        with _lock(file):
            if not file.exists():
                self._check_fits()
                print(
                    f"calibrating {self.model} for {METHOD}: about ten minutes for SmolLM2-135M on "
                    "two quiet cores, the first time", file=sys.stderr, flush=True,
                )  # fmt: skip
                model = [] if self.model == SMOLLM2 else ["--model", self._model]
                _run("golden.llm.calibrate", *model, "--method", METHOD, "-o", str(file))
        return file

    @functools.cached_property
    def _checkpoint(self) -> Path:
        """ConfigError: there is no such file or folder."""
        from golden.llm.checkpoint import CheckpointError, smollm2_path

        try:
            path = smollm2_path() if self.model == SMOLLM2 else Path(self.model).resolve()
        except CheckpointError as error:
            raise ConfigError(f"{error}") from None
        if not path.exists():
            raise ConfigError(f"no checkpoint at {self.model}")
        return path

    @property
    def _model(self) -> str:
        """The name that another process gives the model, whose working directory is another."""
        return SMOLLM2 if self.model == SMOLLM2 else str(self._checkpoint)

    @property
    def _weights(self) -> list[Any]:
        """The place of the checkpoint; name, size and time of each of its files."""
        path = self._checkpoint
        files = [path] if path.is_file() else sorted(path.iterdir())
        stats = [(each.name, each.stat()) for each in files if each.is_file()]
        return [str(path), [[name, found.st_size, found.st_mtime_ns] for name, found in stats]]

    def _named(self, *said: object, suffix: str) -> Path:
        """A place in FOLDER for what ``said`` says; the model's name is for the reader alone."""
        digest = hashlib.sha256(json.dumps(said).encode()).hexdigest()[:10]
        name = SMOLLM2 if self.model == SMOLLM2 else self._checkpoint.name
        return FOLDER / f"{name}-{digest}{suffix}"

    def _check_layers(self) -> None:
        """ConfigError: more layers than the checkpoint's header says. No weight is read."""
        from golden.llm.checkpoint import layer_count

        count = layer_count(self._checkpoint)
        if self.layers is not None and count is not None and self.layers > count:
            raise ConfigError(f"--layers must be 1..{count}, not {self.layers}")

    def _check_fits(self) -> None:
        """ConfigError: the model cannot be packed for the machine."""
        from golden.llm.checkpoint import CheckpointError, load
        from golden.llm.eval.command import ARCHITECTURES, quiet
        from golden.llm.kllm.pack import checked_layout
        from golden.llm.methods import parse_all
        from golden.llm.methods.kllm import Kllm

        method = parse_all(METHOD)[0]
        assert isinstance(method, Kllm)
        options = method.layer_options()
        quiet()
        try:
            loaded = load(self._checkpoint, ARCHITECTURES)
        except CheckpointError as error:
            raise ConfigError(f"{error}") from None
        checked_layout(loaded, options, self.config.machine, self.layers, self.context)


def _lock(made: Path) -> filelock.FileLock:
    """One process makes it, the others wait."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    return filelock.FileLock(made.with_name(f"{made.name}.lock"))


def _run(module: str, *words: str) -> None:
    """A command of ours, its progress on stderr shown. ConfigError: it failed, in its own line."""
    refused = ""
    command = [sys.executable, "-m", module, *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, cwd=ROOT, text=True, **pipes) as process:
        assert process.stdout is not None
        for line in process.stdout:
            name, colon, reason = line.partition(": ")
            if colon and name in (module, module.partition(".")[2]):
                refused = reason.strip()
            else:
                print(line, end="", file=sys.stderr, flush=True)
    if process.returncode:
        raise ConfigError(refused or f"{module} ended with {process.returncode}")
