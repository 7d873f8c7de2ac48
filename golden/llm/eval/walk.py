"""A model's decoder layers one by one on calibration text.

    post = h + attention(norm(h)),  next h = post + mlp(norm(post))

So a layer may learn from what the quantized layers before it give. Patches decide
what a run of a layer computes: hooks of a patch that is open during the run are part of it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from golden.llm.capture import body
from golden.llm.patch import Patch

Tap = Callable[[Tensor], Tensor]
Put = Callable[[Patch, Tap], None]


class _Enough(Exception):
    """Ends a layer early: what follows in it need not run."""


class LayerWalk:
    """Hidden states (1, T, hidden) of each window in front of one layer after the other.

    hidden : begins with the embedding; who walks moves it on with ``run``
    """

    def __init__(self, model: nn.Module, windows: Sequence[Tensor]) -> None:
        starts: list[tuple[Tensor, dict[str, Any]]] = []

        def start(args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
            given = dict(keywords)
            hidden = args[0] if args else given.pop("hidden_states")
            starts.append((hidden, given))
            raise _Enough

        self.model = model
        with Patch(model) as patch, torch.no_grad():
            self.layers = patch.layers
            patch.watch(patch.layers[0], before=start)
            for ids in windows:
                try:
                    body(model)(ids[None], use_cache=False)
                except _Enough:
                    pass
        self._keywords = [given for _, given in starts]
        self.hidden = [hidden for hidden, _ in starts]

    def run(self, i: int, hidden: Sequence[Tensor]) -> list[Tensor]:
        """Returns what layer ``i`` gives."""
        with torch.no_grad():
            return [self._whole(i, *each) for each in zip(hidden, self._keywords, strict=True)]

    def seen(self, i: int, hidden: Sequence[Tensor], put: Put) -> list[Tensor]:
        """Returns what reaches a tap of layer ``i``, window by window; the layer stops there.

        put(patch, tap) : puts the tap on its place.
        """
        return self._seen(lambda h, keywords: self._whole(i, h, keywords), hidden, put)

    def seen_after_attention(self, i: int, post: Sequence[Tensor], put: Put) -> list[Tensor]:
        """The same of the layer's second half."""
        layer: Any = self.layers[i]
        return self._seen(lambda p, _: layer.mlp(layer.post_attention_layernorm(p)), post, put)

    def _whole(self, i: int, hidden: Tensor, keywords: dict[str, Any]) -> Tensor:
        made = self.layers[i](hidden, **keywords)
        return made[0] if isinstance(made, tuple) else made

    def _seen(
        self, run: Callable[[Tensor, dict[str, Any]], Tensor], values: Sequence[Tensor], put: Put
    ) -> list[Tensor]:
        found: list[Tensor] = []

        def tap(x: Tensor) -> Tensor:
            found.append(x.detach())
            raise _Enough

        with Patch(self.model) as patch, torch.no_grad():
            put(patch, tap)
            for value, keywords in zip(values, self._keywords, strict=True):
                try:
                    run(value, keywords)
                except _Enough:
                    pass
        return found
