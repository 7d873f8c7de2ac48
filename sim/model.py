"""Sizes of a language model: from a checkpoint's ``config.json``, or built in. No weights.

The field names are those of transformers' configurations. ``sim/models`` holds the models of the
papers in the same form.
"""

import dataclasses
import difflib
import functools
import json
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from golden.config import ConfigError
from golden.llm.decoder import ARCHITECTURES, Decoder

__all__ = ["ARCHITECTURES", "FOLDER", "Model", "built_in", "find_model", "model_of"]

FOLDER = Path(__file__).parent / "models"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model(Decoder):
    """A decoder, and what its sizes give. Fields and how they are read: golden.llm.decoder."""

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.heads // self.kv_heads

    # Layers

    @functools.cached_property
    def alike(self) -> "tuple[Model, ...]":
        """The layers by how they attend: models of as many layers, which all attend alike.

        They are for attention and its cache alone. One model, itself, where all layers are alike.
        """
        if not self.sliding:
            return (self,)
        inside = sum(self.sliding)

        def some(layers: int, window: int, chunk: int) -> Model:
            return dataclasses.replace(
                self, layers=layers, window=window, chunk=chunk, sliding=(), unrotated=(), dense=(),
            )  # fmt: skip

        return some(self.layers - inside, 0, 0), some(inside, self.window, self.chunk)

    @property
    def reach(self) -> str:
        """The tokens that layers attend, if all are alike: empty for all, window or chunk."""
        return "window" if self.window else "chunk" if self.chunk else ""

    @functools.cached_property
    def networks(self) -> tuple["Network", ...]:
        """The feed-forward networks by kind; a layer with experts may have a shared one too."""
        dense = sum(self.dense)
        sparse = self.layers - dense
        found = (
            Network("dense", dense, 1, self.dense_intermediate),
            Network("", sparse, self.experts, self.intermediate),
            Network("shared", sparse if self.shared else 0, 1, self.shared),
        )
        return tuple(each for each in found if each.layers)

    # Cache

    @property
    def kv_layer(self) -> int:
        """Elements of K and V of one token in a layer; of latent attention, those of its latent."""
        if self.kv_rank:
            return self.kv_rank + self.rope_head_size
        return self.kv_heads * (self.head_size + self.value)

    @property
    def kv_elements(self) -> int:
        """Elements of K and V of one token in all layers."""
        return self.layers * self.kv_layer

    @property
    def kv_vector(self) -> int:
        """Elements of a vector of the cache: a head's, or the latent one of all heads."""
        return self.kv_layer if self.kv_rank else self.head_size

    @property
    def streams(self) -> int:
        """Vectors of a token in the cache, of all layers."""
        return self.layers * (1 if self.kv_rank else 2 * self.kv_heads)

    @property
    def value(self) -> int:
        """Elements of a head of V."""
        return self.value_size or self.head_size

    def kept(self, tokens: int) -> int:
        """Tokens of a sequence of ``tokens`` that the cache of a layer holds.

        A chunk is given up as a whole, so a cache has room for one. ConfigError: layers differ.
        """
        self._check_alike()
        most = self.window or self.chunk
        return min(tokens, most) if most else tokens

    def cached_elements(self, tokens: int) -> int:
        """Elements of K and V of a sequence of ``tokens`` that its cache holds."""
        return sum(each.kept(tokens) * each.kv_elements for each in self.alike)

    def attended(self, context: int) -> int:
        """Tokens that the token after ``context`` others attends in a layer, itself included.

        ConfigError: layers differ.
        """
        self._check_alike()
        return context % self.chunk + 1 if self.chunk else self.kept(context + 1)

    def _check_alike(self) -> None:
        """ConfigError: layers differ, and the caller has not taken those of ``alike``."""
        if self.sliding:
            raise ConfigError(
                f"{self.name}: layer_types must be one type in all layers for this chip, whose "
                "file of sim/engines does not know Model.alike"
            )

    def starts(self, first: int, end: int) -> range:
        """Contexts above ``first`` and below ``end`` whose next token starts a chunk."""
        if not self.chunk:
            return range(0)
        return range((first // self.chunk + 1) * self.chunk, end, self.chunk)

    # Weights

    @property
    def projections(self) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of each matrix of a layer's attention."""
        query, kv = self.heads * self.head_size, self.kv_heads * self.head_size
        o = {"o": (self.heads * self.value, self.hidden)}
        if not self.kv_rank:
            return {"q": (self.hidden, query), "k": (self.hidden, kv), "v": (self.hidden, kv), **o}
        expanded = self.heads * (self.head_size - self.rope_head_size + self.value)
        made = {"q": (self.hidden, query)}
        if self.query_rank:
            made = {"q_down": (self.hidden, self.query_rank), "q_up": (self.query_rank, query)}
        made["kv_down"] = (self.hidden, self.kv_layer)
        return {**made, "kv_up": (self.kv_rank, expanded), **o}

    def network(self, inside: int) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of each matrix of a feed-forward network."""
        gate = {"gate": (self.hidden, inside)} if self.gated else {}
        return {**gate, "up": (self.hidden, inside), "down": (inside, self.hidden)}

    @property
    def linears(self) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of each matrix of a layer, of one expert."""
        return {**self.projections, **self.network(self.intermediate)}

    @property
    def routed(self) -> int:
        """Layers with a router."""
        return self.layers - sum(self.dense) if self.experts > 1 else 0

    @property
    def router_size(self) -> tuple[int, int]:
        """Inputs and outputs of a router; the gate of a shared network is an output more."""
        return self.hidden, self.experts + self.shared_gate

    @property
    def weights(self) -> int:
        """Elements of all matrices, the embeddings included, without norms and biases."""
        tables = 1 if self.tied else 2
        return self.layer_weights + tables * self.vocabulary * self.hidden

    @property
    def layer_weights(self) -> int:
        """Elements of the matrices of all layers, all experts, and of their routers."""
        return int(self.stored(operator.mul)) + self.router_weights

    @property
    def router_weights(self) -> int:
        """Elements of all routers."""
        inputs, outputs = self.router_size
        return self.routed * inputs * outputs

    def stored(self, matrix: Callable[[int, int], float]) -> float:
        """The sum of ``matrix(inputs, outputs)`` over all layers and experts, without routers."""
        total = 0.0
        for places in (("dense",), ("", "shared")):
            found = [each for each in self.networks if each.place in places]
            layer = sum(matrix(*size) for size in self.projections.values()) if found else 0.0
            for each in found:
                for size in self.network(each.inside).values():
                    layer += matrix(*size) * each.copies
            total += layer * found[0].layers if found else 0.0
        return total

    def is_longer(self, tokens: int) -> bool:
        """Whether a sequence of ``tokens`` has more than the positions that the model states."""
        return 0 < self.positions < tokens

    def check_length(self, tokens: int) -> None:
        """ConfigError: the model has no learned position for each of ``tokens``."""
        if not self.rope and self.is_longer(tokens):
            raise ConfigError(
                f"{self.name}: tokens of a sequence must be 1..{self.positions}, the positions "
                f"that it has learned, not {tokens}"
            )


class Network(NamedTuple):
    """Feed-forward networks of one kind.

    place : ``dense`` in layers without experts where others have some, ``shared`` next to experts
    layers : that have them
    copies : in each of these
    inside : elements inside one
    """

    place: str
    layers: int
    copies: int
    inside: int


def model_of(name: str, fields: Any) -> Model:
    """The Model of a configuration as JSON gives it. ConfigError names what is missing or odd.

    How a checkpoint stores its weights has no effect: the hardware says how they are stored.
    """
    return Model.of(name, fields, stored=False)


def built_in() -> dict[str, Path]:
    """Names of the models that come with the simulator."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.json"))}


def find_model(text: str) -> Model:
    """A built-in name, a ``config.json``, or a checkpoint's folder.

    ConfigError: none of them; the line names the nearest built-in model.
    """
    known = built_in()
    path = known.get(text.lower(), Path(text))
    try:
        path = path / "config.json" if path.is_dir() else path
        is_file = path.is_file()
    except (OSError, ValueError):  # a name that no file can have
        is_file = False
    if not is_file:
        near = difflib.get_close_matches(text.lower()[:100], known, 1, 0.0)
        raise ConfigError(
            "--model must be a config.json, a folder with one, or a built-in model, "
            f"not {text[:100]!r}; the nearest is {near[0]}"
        )
    try:
        fields = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: {error}") from None
    name = path.stem if path.parent == FOLDER else str(path)
    return model_of(name, fields)
