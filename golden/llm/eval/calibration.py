"""The statistics that methods learn from offline: of the unchanged model on text."""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from golden.files import replacing
from golden.llm.capture import Captured, body, capture_inputs, capture_kv, capture_kv_gradients
from golden.llm.checkpoint import check_tokens, next_token_loss
from golden.llm.eval.progress import track
from golden.llm.patch import Patch

Item = TypeVar("Item")
State = dict[str, Tensor]


def fingerprint(model: nn.Module) -> str:
    """SHA-256 over names, shapes, types and bytes of all parameters, in order; 64 hex digits."""
    digest = hashlib.sha256()
    for name, value in model.named_parameters():
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}\n".encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def save_tensors(file: Path, tensors: State, metadata: dict[str, str] | None = None) -> None:
    """Write tensors as safetensors. OSError: the file cannot be written."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file(tensors, file, metadata=metadata)
    except SafetensorError as error:  # of the system by its number alone
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(file)) from None


class Steps:
    """Results of long steps by key, stored in a folder to resume work; None: in memory.

    The folder is trusted to belong to this work: ``check`` empties it otherwise.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._memory: dict[str, State] = {}

    def check(self, header: dict[str, Any]) -> None:
        """Remove the results of other work, which has another header."""
        if self.folder is None:
            return
        written = json.dumps(header, sort_keys=True).encode()
        file = self.folder / "header.json"
        if file.is_file() and file.read_bytes() == written:
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        with replacing(file) as part:
            part.write_bytes(written)

    def once(self, key: str, make: Callable[[], State]) -> State:
        """make() the first time, its tensors from then on, in the next process too.

        A file that cannot be read, such as one cut by a crash, is made again.
        """
        if self.folder is None:
            if key not in self._memory:
                self._memory[key] = make()
            return self._memory[key]
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        file = self.folder / (re.sub(r"[^\w.=-]", "_", key) + ".safetensors")
        if file.exists():
            try:
                return load_file(file)
            except SafetensorError:
                file.unlink()
        with replacing(file) as part:
            save_tensors(part, {k: v.detach().cpu().contiguous() for k, v in make().items()})
        return load_file(file)

    def forget(self, prefix: str) -> None:
        """Frees steps in memory whose key begins so; on disk they stay until the end."""
        for key in [key for key in self._memory if key.startswith(prefix)]:
            del self._memory[key]

    def finish(self) -> None:
        self._memory.clear()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


class CalibrationData:
    """Windows of calibration text and what the unchanged model shows on them.

    model: the checkpoint's model
    windows: (T,) token ids each, on the model's device
    seed: of every random choice
    steps: ``steps.once(key, make)`` for own long work

    The statistics below run the model window by window and show progress. They resume where they
    were stopped. All tensors come on the CPU.
    """

    def __init__(
        self,
        model: nn.Module,
        windows: list[Tensor],
        seed: int = 0,
        steps: Steps | None = None,
    ) -> None:
        device = next(model.parameters()).device
        check_tokens(model, torch.cat(windows))
        self.model = model
        self.windows = [each.to(device) for each in windows]
        self.seed = seed
        self.steps = steps or Steps()
        with Patch(model) as patch:
            self.linears = dict(patch.linears)

    def track(self, items: Iterable[Item], label: str, total: int | None = None) -> Iterator[Item]:
        return track(items, label, total)

    def generator(self, salt: int = 0) -> torch.Generator:
        """Random numbers on the CPU that depend on the seed and the salt only."""
        return torch.Generator().manual_seed(self.seed_of(salt))

    def seed_of(self, salt: int) -> int:
        """A seed of its own for each ``salt``, such as the number of a layer."""
        return self.seed * 1_000_003 + salt

    def run(self, ids: Tensor) -> None:
        """One window through the decoder layers, no logits, no gradients."""
        with torch.no_grad():
            body(self.model)(ids[None], use_cache=False)

    def inputs(
        self,
        names: Iterable[str] | None = None,
        tokens: int = 512,
        gradients: bool = False,
    ) -> dict[str, Captured]:
        """Inputs of linear layers (all of them if None) on ``tokens`` tokens drawn by the seed.

        Captured.x (tokens, K), and with ``gradients`` Captured.gradient: the derivative of the
        window's summed next-token loss (Fisher weight: its square). All layers see the same tokens.
        Fewer tokens come back when there are not as many; of an expert those of the tokens it has.
        """
        chosen = list(self.linears) if names is None else list(names)
        share = -(-tokens // len(self.windows))
        found: dict[str, list[list[Tensor]]] = {name: [[], []] for name in chosen}
        label = _label(chosen)
        for i, ids in self.track(
            list(enumerate(self.windows)), "gradients" if gradients else "inputs"
        ):
            pick = torch.randperm(len(ids), generator=self.generator(i))[:share].sort().values

            def make(ids: Tensor = ids, pick: Tensor = pick) -> State:
                state: State = {}
                for name, each in capture_inputs(self.model, ids, chosen, gradients).items():
                    own = pick if len(each.x) == len(ids) else pick[pick < len(each.x)]
                    state[f"x.{name}"] = each.x.cpu()[own]
                    if each.gradient is not None:
                        state[f"g.{name}"] = each.gradient.cpu()[own]
                return state

            state = self.steps.once(f"inputs-{label}-{tokens}-{gradients}-{i}", make)
            for name in chosen:
                found[name][0].append(state[f"x.{name}"])
                if gradients:
                    found[name][1].append(state[f"g.{name}"])
        self.steps.forget(f"inputs-{label}")
        return {
            name: Captured(
                x=torch.cat(x),
                weight=self.linears[name].weight.detach().cpu(),
                gradient=torch.cat(g) if gradients else None,
            )
            for name, (x, g) in found.items()
        }

    def accumulate(
        self,
        key: str,
        function: Callable[[Tensor], Tensor],
        reduce: Callable[[Tensor, Tensor], Tensor] = torch.add,
        names: Iterable[str] | None = None,
    ) -> dict[str, Tensor]:
        """function of every linear layer's input x (T, K), reduced over the windows.

        Layers that read the same tensor share one call. A layer that never ran, of an expert that
        no token has, saw one row of zeros. For example the largest magnitude of every channel:
        ``accumulate("maximum", lambda x: x.abs().amax(0), torch.maximum)``; the Hessian of
        GPTQ: ``accumulate("hessian", lambda x: x.T @ x)``. ``key`` names the function for resuming.
        """
        chosen = list(self.linears) if names is None else list(names)

        def make() -> State:
            total: State = {}
            for ids in self.track(self.windows, key):
                seen: dict[str, Tensor] = {}
                with Patch(self.model) as patch:
                    for name in chosen:
                        patch.input(patch.linears[name], _record(seen, name))
                    self.run(ids)
                done: dict[int, Tensor] = {}
                for name, x in seen.items():
                    if id(x) not in done:
                        done[id(x)] = function(x[0])
                    value = done[id(x)].cpu()
                    total[name] = reduce(total[name], value) if name in total else value.clone()
            for name in chosen:
                if name not in total:
                    total[name] = function(torch.zeros(1, self.linears[name].in_features))
            return total

        return self.steps.once(f"accumulate-{key}-{_label(chosen)}", make)

    def weight_fisher(
        self, names: Iterable[str] | None = None, changed: str = ""
    ) -> dict[str, Tensor]:
        """Squared gradients of every window's summed next-token loss with respect to the weights.

        {name: (N, K) float32}, summed over the windows: SqueezeLLM's Fisher information. One
        backward pass a window; takes the memory of the weights twice. ``changed`` names, for
        resuming, what a patch has put in the place of the weights.
        """
        chosen = list(self.linears) if names is None else list(names)
        weights = [self.linears[name].weight for name in chosen]
        wanted = [weight.requires_grad for weight in weights]

        def make() -> State:
            total = [torch.zeros_like(weight, device="cpu") for weight in weights]
            for ids in self.track(self.windows, "gradients of the weights"):
                with torch.enable_grad():
                    logits = self.model(ids[None], use_cache=False).logits[0]
                    loss = next_token_loss(logits, ids)
                    found = torch.autograd.grad(loss, weights, allow_unused=True)
                    for own, gradient in zip(total, found, strict=True):
                        if gradient is not None:  # None: of an expert that no token has
                            own += gradient.cpu() ** 2
            return dict(zip(chosen, total, strict=True))

        try:
            for weight in weights:
                weight.requires_grad_(True)
            label = _label(chosen)
            return self.steps.once(f"weight-fisher-{changed}{label}", make)
        finally:
            for weight, before in zip(weights, wanted, strict=True):
                weight.requires_grad_(before)

    def kv(self, ids: Tensor, pre_rope: bool = False) -> list[tuple[Tensor, Tensor]]:
        """(K, V) of every layer on one window: (T, kv_heads * head_dim) float32 each."""
        return capture_kv(self.model, ids, pre_rope)

    def kv_gradients(
        self, ids: Tensor, pre_rope: bool = False
    ) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """(K, V, gradient of K, gradient of V) of every layer on one window, (T, D) each.

        Gradients are of the summed next-token loss.
        """
        return capture_kv_gradients(self.model, ids, pre_rope)


def _label(names: list[str]) -> str:
    """Short name of a choice of layers, for the key of a step."""
    return hashlib.sha256(" ".join(names).encode()).hexdigest()[:12]


def _record(seen: dict[str, Tensor], name: str) -> Callable[[Tensor], Tensor]:
    def function(x: Tensor) -> Tensor:
        seen[name] = x
        return x

    return function
