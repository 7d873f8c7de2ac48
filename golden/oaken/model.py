"""K and V of a transformers model of the LLaMA kind: read them, or put others in their place.

A tap is called with (layer, kv, x): kv 0 for K and 1 for V, x (T, heads * head_dim) float32, all
KV heads of T tokens. K is taken after RoPE, or before it on request. What it returns stands in
for x in the attention of that layer, for the newest token too; None leaves x as it is.
"""

import contextlib
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from golden import text as own_text
from golden.checkpoint import Checkpoint, CheckpointError

__all__ = ["Tap", "attention_layers", "capture_kv", "perplexity", "read_text", "tapped", "windows"]

Tap = Callable[[int, int, Tensor], Tensor | None]
K, V = 0, 1


def attention_layers(model: nn.Module) -> list[nn.Module]:
    """The attention modules in order of layer; CheckpointError: not a model of this kind."""
    found = [
        module
        for name, module in model.named_modules()
        if name.rsplit(".", 1)[-1] == "self_attn"
        and all(isinstance(getattr(module, each, None), nn.Linear) for each in ("k_proj", "v_proj"))
    ]
    if not found:
        raise CheckpointError("the model has no layers with self_attn.k_proj and self_attn.v_proj")
    return found


class _Cache:
    """What attention takes for its cache: a tap on K after RoPE, and on V."""

    def __init__(self, tap: Callable[[int, Tensor], Tensor]) -> None:
        self._tap = tap

    def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        return self._flat(K, keys), self._flat(V, values)

    def _flat(self, kv: int, x: Tensor) -> Tensor:
        batch, heads, tokens, head_dim = x.shape
        if batch != 1:
            raise ValueError("one sequence at a time")
        flat = x[0].transpose(0, 1).reshape(tokens, heads * head_dim)
        return self._tap(kv, flat).reshape(tokens, heads, head_dim).transpose(0, 1)[None]


@contextlib.contextmanager
def tapped(model: nn.Module, tap: Tap, pre_rope: bool = False) -> Iterator[None]:
    """Every forward pass of one sequence without a cache calls the tap, layer by layer."""

    def of_layer(layer: int) -> Callable[[int, Tensor], Tensor]:
        def call(kv: int, x: Tensor) -> Tensor:
            y = tap(layer, kv, x)
            return x if y is None else y.to(x.dtype)

        return call

    def as_cache(call: Callable[[int, Tensor], Tensor]) -> Any:
        def hook(_module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
            if "past_key_values" not in kwargs:
                raise CheckpointError("attention takes no past_key_values: use pre_rope")
            return args, {**kwargs, "past_key_values": _Cache(call)}

        return hook

    def as_output(call: Callable[[int, Tensor], Tensor], kv: int) -> Any:
        def hook(_module: nn.Module, _args: Any, output: Tensor) -> Tensor:
            return call(kv, output[0])[None]

        return hook

    handles = []
    try:
        for layer, module in enumerate(attention_layers(model)):
            call = of_layer(layer)
            if pre_rope:
                for kv, linear in ((K, module.k_proj), (V, module.v_proj)):
                    handles.append(linear.register_forward_hook(as_output(call, kv)))  # type: ignore[union-attr,operator]
            else:
                handles.append(module.register_forward_pre_hook(as_cache(call), with_kwargs=True))
        yield
    finally:
        for handle in handles:
            handle.remove()


def capture_kv(
    model: nn.Module, ids: Tensor, pre_rope: bool = False
) -> list[tuple[Tensor, Tensor]]:
    """(K, V) of every layer on token ids (T,): (T, heads * head_dim) float32 each."""
    seen: dict[tuple[int, int], Tensor] = {}

    def tap(layer: int, kv: int, x: Tensor) -> None:
        seen[layer, kv] = x.detach().clone()

    body = getattr(model, "base_model", model)  # no logits
    with torch.no_grad(), tapped(model, tap, pre_rope):
        body(ids[None], use_cache=False)
    layers = len(attention_layers(model))
    return [(seen[layer, K], seen[layer, V]) for layer in range(layers)]


def perplexity(
    model: nn.Module, sequences: list[Tensor], tap: Tap | None = None, pre_rope: bool = False
) -> float:
    """exp of the mean next-token loss over sequences of token ids, each on its own."""
    loss, count = 0.0, 0
    for ids in sequences:
        with torch.no_grad(), tapped(model, tap or (lambda *_: None), pre_rope):
            logits = model(ids[None], use_cache=False).logits[0].float()
        loss += float(nn.functional.cross_entropy(logits[:-1], ids[1:], reduction="sum"))
        count += len(ids) - 1
    return math.exp(loss / count)


def read_text(path: Path | None) -> str | None:
    """A text file, or the "text" of every line of a .jsonl file; None for None.

    CheckpointError in one line: no such file, or one that is not such text.
    """
    if path is None:
        return None
    import json

    try:
        content = Path(path).read_text(encoding="utf-8")
        if Path(path).suffix == ".jsonl":
            content = "\n\n".join(json.loads(line)["text"] for line in content.splitlines())
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from None
    except (UnicodeDecodeError, ValueError, KeyError, TypeError):
        raise CheckpointError(f"{path} is not text (or .jsonl with a text per line)") from None
    return content


def windows(
    checkpoint: Checkpoint, text: str | None, count: int, tokens: int, skip: int = 0
) -> list[Tensor]:
    """``count`` sequences of ``tokens`` ids of a text, one behind the other, after ``skip`` ids.

    The text is by default golden.text.CALIBRATION. CheckpointError: it is too short.
    """
    if count < 1 or tokens < 2:
        raise CheckpointError(f"one window of two tokens at least, not {count} of {tokens}")
    text = own_text.CALIBRATION if text is None else text
    needed = skip + count * tokens
    # Tokenizing is linear in the text: ten characters a token are more than enough of it.
    ids = torch.tensor(checkpoint.tokenizer(text[: 10 * needed])["input_ids"], dtype=torch.int64)
    if len(ids) < needed and len(text) > 10 * needed:
        ids = torch.tensor(checkpoint.tokenizer(text)["input_ids"], dtype=torch.int64)
    if len(ids) < needed:
        raise CheckpointError(f"the text has {len(ids)} tokens, {needed} are needed")
    return list(ids[skip:needed].reshape(count, tokens))
