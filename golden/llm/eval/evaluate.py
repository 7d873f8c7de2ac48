"""One evaluation: methods installed on a model, its windows run, the model as it was."""

import dataclasses
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from golden.config import ConfigError
from golden.llm.checkpoint import Checkpoint
from golden.llm.eval.method import Bits, Method, Site, State
from golden.llm.eval.perplexity import Loss, NotFinite, loss
from golden.llm.eval.progress import track
from golden.llm.eval.tasks import Run

_CLEAR_PEAK = "5"  # proc(5), clear_refs


@dataclasses.dataclass(frozen=True)
class Result:
    """One method combination.

    bits: per element of weights, activations (inputs of linear layers), kv. calibration_seconds:
    0.0 if it came from a file; seconds: of the run alone; memory_bytes: peak of the device, or of
    the process on a CPU, from calibration to end of run. window_losses: mean loss of each window,
    nats. standard_error: of the perplexity, by the spread of the window losses; None of one window.
    failed: "" or the layer where the method gave no finite number; the perplexity is then infinite,
    or that of the windows where it was a task. bit_true: how far the fast path is from the exact
    one, by layer. tasks: rows of ``golden.llm.eval.tasks``; what they add to bits, seconds, memory
    and bit_true is not counted.
    """

    method: str
    perplexity: float
    tokens: int
    bits: dict[str, float]
    calibration_seconds: float
    install_seconds: float
    seconds: float
    memory_bytes: int
    window_losses: list[float]
    standard_error: float | None = None
    failed: str = ""
    bit_true: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    tasks: list[dict[str, Any]] = dataclasses.field(default_factory=list)


def reset_peak_memory(device: torch.device) -> None:
    """Peaks are counted from here on, where the system allows it."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    try:
        Path("/proc/self/clear_refs").write_text(_CLEAR_PEAK)
    except OSError:
        pass  # then it is the peak since the process began


def peak_memory(device: torch.device) -> int:
    """Bytes: allocated on the device by torch, or resident in memory of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def batch_size(checkpoint: Checkpoint, seq: int, requested: int | None) -> int:
    """Windows at a time: as asked; else 1 on a CPU, on a GPU what a quarter of its memory holds."""
    device = next(checkpoint.model.parameters()).device
    if requested is not None:
        return requested
    if device.type != "cuda":
        return 1
    config = checkpoint.model.config
    free, _ = torch.cuda.mem_get_info(device)
    # A dozen tensors of the widest layer are alive at a time in a layer with its hooks.
    window = 12 * 4 * seq * max(config.intermediate_size, config.hidden_size)
    return max(1, min(32, int(free / 4 / window)))


@dataclasses.dataclass(frozen=True)
class Settings:
    """The choices by which an evaluation runs.

    batch: windows at a time. exact: linear layers and attention modules that run the exact
    arithmetic of the hardware. tasks: run after the windows.
    """

    batch: int = 1
    exact: Iterable[str] = ()
    tasks: Run | None = None


_DEFAULT = Settings()


def evaluate(
    checkpoint: Checkpoint,
    name: str,
    methods: list[Method],
    sequences: list[Tensor],
    states: list[State],
    settings: Settings = _DEFAULT,
) -> Result:
    """Installs the methods, runs the windows, restores the model. Calibration counts 0 seconds.

    A method that overflows has a result, too: ``failed`` says where.

    ConfigError: none of the methods has exact arithmetic for a layer of ``settings.exact``.
    """
    device = next(checkpoint.model.parameters()).device
    bits = Bits()
    start = time.monotonic()
    with Site(checkpoint.model, bits, settings.exact) as site:
        moved = [{key: value.to(device) for key, value in state.items()} for state in states]
        after = [_exact(site, layer, name, methods, moved) for layer in sorted(site.exact)]
        for method, state in zip(methods, moved, strict=True):
            method.install(site, state)
            bits.next_method()
        for put in after:
            put()
        installed = time.monotonic()

        def batches() -> Iterator[Tensor]:
            for each in track(torch.stack(sequences).split(settings.batch), name):
                yield each
                # Attention is known to be exact only once it has run: told after the first batch.
                for layer in sorted(site.exact - site.distances.keys() - site.linears.keys()):
                    raise ConfigError(f"{name} has no bit-true arithmetic for {layer}")

        failed = ""
        try:
            found = loss(checkpoint.model, batches())
        except ZeroDivisionError:  # a fault in the code of a method
            raise
        except (NotFinite, ArithmeticError) as error:  # the latter of the hardware's arithmetic
            found, failed = Loss([math.inf], 0), str(error)
        end = time.monotonic()
        result = Result(
            method=name,
            perplexity=found.perplexity,
            tokens=found.tokens,
            bits=bits.describe(),
            calibration_seconds=0.0,
            install_seconds=installed - start,
            seconds=end - installed,
            memory_bytes=peak_memory(device),
            window_losses=[] if failed else found.windows,
            standard_error=found.standard_error,
            failed=failed,
            bit_true={layer: each.describe() for layer, each in site.distances.items()},
        )
        if settings.tasks is None or failed:
            return result
        try:
            return dataclasses.replace(result, tasks=settings.tasks())
        except NotFinite as error:
            return dataclasses.replace(result, failed=f"tasks: {error}")


def _exact(
    site: Site, layer: str, name: str, methods: list[Method], states: list[State]
) -> Callable[[], None]:
    """Watches a linear layer's input before the methods; what puts the exact output in place."""
    linear = site.linears.get(layer)
    if linear is None:  # an attention module: the method does it
        return lambda: None
    known = [
        found
        for method, state in zip(methods, states, strict=True)
        if (found := method.bit_true(site, state, layer)) is not None
    ]
    if not known:
        raise ConfigError(f"{name} has no bit-true arithmetic for {layer}")
    seen: list[Tensor] = []

    def before(x: Tensor) -> Tensor:
        seen[:] = [x]
        return x

    def after(fast: Tensor) -> Tensor:
        x = seen[0]
        y = known[-1](x.flatten(0, -2)).to(fast.dtype).reshape(fast.shape)
        site.compare(layer, fast, y)
        return y

    site.input(linear, before)
    return lambda: site.output(linear, after)
