"""Options that name the model and the machine; the folder of its image."""

import argparse
import dataclasses
import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from golden.config import ConfigError
from hdl.arguments import whole
from hdl.kllm.accelerator import KllmAcceleratorConfig
from hdl.kllm.room import BLOCKS
from tb.run import ROOT

__all__ = ["FOLDER", "Options"]

FOLDER = ROOT / "build" / "talk"
METHOD = "kllm-w4a4"
SMOLLM2 = "smollm2"
# Of the standard machine: ports as fast as its four lanes.
PORTS = ("ports.ports=8", "ports.bits=1024")


@dataclasses.dataclass(frozen=True)
class Options:
    """model, layers, calibration, context: of the image; config: the accelerator."""

    model: str
    layers: int | None
    calibration: Path | None
    context: int
    name: str
    sets: tuple[str, ...]
    config: KllmAcceleratorConfig
    pack: Path | None
    latency: int

    @staticmethod
    def add(
        parser: argparse.ArgumentParser, machines: list[str], folder: Callable[[str], Path]
    ) -> None:
        parser.add_argument("--model", default=SMOLLM2, help="as for golden.pack")
        parser.add_argument("--layers", type=whole(), metavar="N", help="the first N layers")
        parser.add_argument(
            "--calibration", type=Path, metavar="FILE",
            help=f"of golden.calibrate; made for {METHOD} when missing",
        )  # fmt: skip
        parser.add_argument(
            "--context", type=whole(2), default=512, help="most tokens of a sequence"
        )
        parser.add_argument("--config", default="smollm2", choices=machines)
        parser.add_argument(
            "--set", action="append", metavar="FIELD=VALUE",
            help="a field of the machine; by default " + " ".join(PORTS),
        )  # fmt: skip
        parser.add_argument("--pack", type=folder, help="folder of golden.pack --all")
        parser.add_argument("--latency", type=whole(), default=40, help="cycles of every memory")

    @classmethod
    def of(cls, options: argparse.Namespace) -> "Options":
        """ConfigError: a machine that there is not."""
        sets = tuple(PORTS if options.set is None else options.set)
        config = KllmAcceleratorConfig.parse(
            BLOCKS["kllm_accelerator"].configs[options.config], [f"machine.{each}" for each in sets]
        )
        assert isinstance(config, KllmAcceleratorConfig)
        return cls(
            options.model, options.layers, options.calibration, options.context, options.config,
            sets, config, options.pack, options.latency,
        )  # fmt: skip

    def folder(self) -> Path:
        """The image's folder, made when it is missing. ConfigError: it cannot be made."""
        if self.pack is not None:
            if not (self.pack / "manifest.json").exists():
                raise ConfigError(f"{self.pack} has no manifest.json: golden.pack --all makes one")
            return self.pack
        calibration = self.calibration_file()
        found = calibration.stat()
        made = [str(calibration), found.st_size, found.st_mtime_ns]
        said = [self.model, self.layers, self.context, self.name, self.sets, made]
        digest = hashlib.sha256(json.dumps(said).encode()).hexdigest()[:10]
        folder = FOLDER / f"{Path(self.model).stem}-{digest}"
        if not (folder / "manifest.json").exists():
            words = ["--all", "--model", self.model, "--config", self.name]
            words += ["--context", str(self.context), "--calibration", str(calibration)]
            words += ["--layers", str(self.layers)] if self.layers else []
            words += [word for each in self.sets for word in ("--set", each)]
            _run("golden.pack", *words, "-o", str(folder))
        return folder

    def calibration_file(self) -> Path:
        """The file given, or one of the default method, on our own text."""
        if self.calibration is not None:
            if not self.calibration.is_file():
                raise ConfigError(f"no calibration at {self.calibration}")
            return self.calibration.resolve()
        file = FOLDER / f"{Path(self.model).stem}-{METHOD}.safetensors"
        if not file.exists():
            FOLDER.mkdir(parents=True, exist_ok=True)
            model = [] if self.model == SMOLLM2 else ["--model", self.model]
            words = [*model, "--method", METHOD]
            _run("golden.calibrate", *words, "-o", str(file))
        return file


def _run(module: str, *words: str) -> None:
    """A command of ours, its words on stderr shown. ConfigError: it failed, and has said why."""
    done = subprocess.run(
        [sys.executable, "-m", module, *words], cwd=ROOT, stdout=sys.stderr, check=False
    )
    if done.returncode:
        raise ConfigError(f"{module} ended with {done.returncode}")
