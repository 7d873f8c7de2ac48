"""exp of the mean next-token loss over non-overlapping windows, each on its own."""

import dataclasses
import functools
import math
import statistics
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from golden.llm.checkpoint import CheckpointError, check_tokens
from golden.llm.patch import Patch
from golden.llm.structure import logits

_CHUNK = 512  # tokens whose logits are alive at a time: 100 MB at a vocabulary of 49,152


class NotFinite(CheckpointError):
    """The model gives a NaN or an infinity; one line names the layer."""


@dataclasses.dataclass(frozen=True)
class Loss:
    """windows: mean loss of each in nats; tokens: predictions made, T - 1 for a window of T."""

    windows: list[float]
    tokens: int

    @property
    def perplexity(self) -> float:
        # A loss beyond 709 nats has no float64 perplexity; it is infinitely wrong.
        mean = sum(self.windows) / len(self.windows)
        return math.exp(mean) if mean < 700 else math.inf

    @property
    def standard_error(self) -> float | None:
        """Standard error of the perplexity by the spread of the windows; None: of one window.

        The error of the mean loss, times the slope of exp at the mean.
        """
        count = len(self.windows)
        if count < 2 or not math.isfinite(self.perplexity):
            return None
        return self.perplexity * statistics.stdev(self.windows) / math.sqrt(count)


def check_finite(model: nn.Module) -> None:
    """CheckpointError names the first parameter that holds a NaN or an infinity."""
    for name, value in model.named_parameters():
        if not bool(torch.isfinite(value).all()):
            raise CheckpointError(f"{name} holds a value that is not finite")


def first_not_finite(model: nn.Module, ids: Tensor) -> str | None:
    """Name of the first module whose output is not finite on ids (B, T), or None."""
    found: list[str] = []

    def look(name: str, y: object) -> None:
        if isinstance(y, Tensor) and not found and not bool(torch.isfinite(y).all()):
            found.append(name)

    with Patch(model) as patch, torch.no_grad():
        for name, module in model.named_modules():
            if not any(module.children()):
                patch.watch(module, after=functools.partial(look, name))
        model(ids, use_cache=False)
    return found[0] if found else None


def loss(model: nn.Module, batches: Iterable[Tensor]) -> Loss:
    """Measures batches of windows (B, T) of token ids; NotFinite names the layer of a NaN.

    The head runs on a few hundred tokens at a time: logits of whole windows are never held.
    """
    means: list[float] = []
    count = 0
    device = next(model.parameters()).device
    body: nn.Module = model.base_model  # type: ignore[assignment]
    for batch in batches:
        check_tokens(model, batch)
        ids = batch.to(device)
        with torch.no_grad():
            hidden = body(ids, use_cache=False).last_hidden_state[:, :-1].flatten(0, 1)
            targets = ids[:, 1:].flatten()
            found = []
            for x, target in zip(hidden.split(_CHUNK), targets.split(_CHUNK), strict=True):
                made = logits(model, x).float()
                found.append(nn.functional.cross_entropy(made, target, reduction="none"))
            losses = torch.cat(found).double().reshape(len(ids), -1)
        if not bool(torch.isfinite(losses).all()):
            where = first_not_finite(model, ids)
            raise NotFinite(f"NaN or infinity in {where or 'the sum of the losses'}")
        means += losses.mean(1).tolist()
        count += len(targets)
    return Loss(windows=means, tokens=count)
