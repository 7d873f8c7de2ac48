"""Sizes of a language model: from a checkpoint's ``config.json``, or built in. No weights.

The field names are those of transformers' configurations. ``sim/models`` holds the models of the
papers in the same form.
"""

import dataclasses
import difflib
import json
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

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

    @property
    def kv_elements(self) -> int:
        """Elements of K and V of one token in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_size

    @property
    def linears(self) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of each matrix of a layer, of one expert."""
        query, kv = self.heads * self.head_size, self.kv_heads * self.head_size
        made = {
            "q": (self.hidden, query),
            "k": (self.hidden, kv),
            "v": (self.hidden, kv),
            "o": (query, self.hidden),
        }
        if self.gated:
            made["gate"] = (self.hidden, self.intermediate)
        made["up"] = (self.hidden, self.intermediate)
        made["down"] = (self.intermediate, self.hidden)
        return made

    @property
    def layer_weights(self) -> int:
        """Elements of the matrices of a layer, all experts, and of its router."""
        return int(self.stored(operator.mul)) + self.router_weights

    @property
    def weights(self) -> int:
        """Elements of all matrices, the embeddings included, without norms and biases."""
        tables = 1 if self.tied else 2
        return self.layers * self.layer_weights + tables * self.vocabulary * self.hidden

    def stored(self, matrix: Callable[[int, int], float]) -> float:
        """The sum of ``matrix(inputs, outputs)`` over a layer, all experts, the router left out."""
        total = 0.0
        for name, size in self.linears.items():
            total += matrix(*size) * (self.experts if name in _EXPERT else 1)
        return total

    @property
    def router_weights(self) -> int:
        """Elements of a layer's router."""
        return self.hidden * self.experts if self.experts > 1 else 0

    def kept(self, tokens: int) -> int:
        """Tokens of a sequence of ``tokens`` that its cache holds."""
        return min(tokens, self.window) if self.window else tokens

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

    def attended(self, context: int) -> int:
        """Tokens that the token after ``context`` others attends, itself included."""
        return self.kept(context + 1)


_EXPERT = ("gate", "up", "down")


def model_of(name: str, fields: Any) -> Model:
    """The Model of a configuration as JSON gives it. ConfigError names what is missing or odd."""
    return Model.of(name, fields)


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
