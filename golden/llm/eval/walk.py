"""A model's decoder layers one by one on calibration text.

    post = h + attention(h),  next h = post + network(post)

Norms before and after both are part of them (golden.llm.structure). So a layer may learn from what
the quantized layers before it give. Patches decide what a run of a layer computes: hooks of a patch
that is open during the run are part of it.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from golden.llm.capture import body
from golden.llm.patch import Patch
from golden.llm.structure import block_of

Tap = Callable[[Tensor], Tensor]
Put = Callable[[Patch, Tap], None]


class _Enough(Exception):
    """Ends a layer early: what follows in it need not run."""


class LayerWalk:
    """Hidden states (1, T, hidden) of each window in front of one layer after the other.

    hidden : begins with the embedding; who walks moves it on with ``run``
    """

    def __init__(self, model: nn.Module, windows: Sequence[Tensor]) -> None:
        self.model = model
        with Patch(model) as patch:
            self.layers = patch.layers
        # Of each window, what each layer gets beside the hidden states: angles and masks differ.
        self._keywords: list[list[dict[str, Any]]] = []
        self.hidden: list[Tensor] = []
        with contextlib.ExitStack() as stack, torch.no_grad():
            for layer in self.layers:
                stack.enter_context(mock.patch.object(layer, "forward", self._note))
            for ids in windows:
                self._keywords.append([])
                body(model)(ids[None], use_cache=False)
        self._blocks = [block_of(layer) for layer in self.layers]

    def _note(self, hidden_states: Tensor, *_: Any, **keywords: Any) -> Tensor:
        """A layer's forward that keeps its arguments and changes nothing."""
        if not self._keywords[-1]:
            self.hidden.append(hidden_states)
        self._keywords[-1].append(keywords)
        return hidden_states

    def run(self, i: int, hidden: Sequence[Tensor]) -> list[Tensor]:
        """Returns what layer ``i`` gives."""
        with torch.no_grad():
            return [self._whole(i, *each) for each in self._with_keywords(i, hidden)]

    def _with_keywords(
        self, i: int, hidden: Sequence[Tensor]
    ) -> list[tuple[Tensor, dict[str, Any]]]:
        keywords = [given[i] for given in self._keywords]
        return list(zip(hidden, keywords, strict=True))

    def seen(self, i: int, hidden: Sequence[Tensor], put: Put) -> list[Tensor]:
        """Returns what reaches a tap of layer ``i``, window by window; the layer stops there.

        A window is left out where nothing reaches it: an expert may have no token.

        put(patch, tap) : puts the tap on its place.
        """
        return self._seen(
            lambda each: self._whole(i, *each), self._with_keywords(i, hidden), put
        )

    def after_attention(self, i: int, hidden: Sequence[Tensor]) -> list[Tensor]:
        """Returns ``post``: the hidden states between a layer's two halves."""
        norm = self._blocks[i].before.get("network", self._blocks[i].network)
        module = self.layers[i].get_submodule(norm)
        return self.seen(i, hidden, lambda patch, tap: patch.input(module, tap))

    def seen_after_attention(self, i: int, post: Sequence[Tensor], put: Put) -> list[Tensor]:
        """The same as ``seen``, of the layer's second half."""
        layer: Any = self.layers[i]
        block = self._blocks[i]
        modules = [block.before.get("network"), block.network]
        chain = [layer.get_submodule(name) for name in modules if name is not None]

        def run(x: Any) -> None:
            for module in chain:
                x = module(x)

        return self._seen(run, post, put)

    def _whole(self, i: int, hidden: Tensor, keywords: dict[str, Any]) -> Tensor:
        made = self.layers[i](hidden, **keywords)
        return made[0] if isinstance(made, tuple) else made

    def _seen(self, run: Callable[[Any], Any], values: Sequence[Any], put: Put) -> list[Tensor]:
        found: list[Tensor] = []

        def tap(x: Tensor) -> Tensor:
            found.append(x.detach())
            raise _Enough

        with Patch(self.model) as patch, torch.no_grad():
            put(patch, tap)
            for value in values:
                try:
                    run(value)
                except _Enough:
                    pass
        return found
