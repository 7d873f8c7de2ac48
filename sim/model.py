"""Sizes of a language model: from a checkpoint's ``config.json``, or built in. No weights.

The field names are those of transformers' configurations. ``sim/models`` holds the models of the
papers in the same form.
"""

import dataclasses
import difflib
import json
import operator
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from golden.config import Config, ConfigError

__all__ = ["ARCHITECTURES", "FOLDER", "Model", "built_in", "find_model", "model_of"]

FOLDER = Path(__file__).parent / "models"
_MOST = 1 << 30


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model(Config):
    """A decoder-only model. All sizes are elements, none is rounded."""

    name: str  # of its file or folder
    architecture: str  # model_type of its configuration
    hidden: int  # elements of a token
    layers: int  # decoder layers
    heads: int  # query heads
    kv_heads: int  # key and value heads, a divisor of heads
    head_size: int  # elements of a head
    intermediate: int  # elements inside the feed-forward network, of one expert
    vocabulary: int  # words of the vocabulary
    gated: bool = True  # gate and up, or one matrix in their place
    tied: bool = False  # the head is the table of embeddings
    experts: int = 1  # feed-forward networks of a layer
    active: int = 1  # experts that a token passes
    window: int = 0  # tokens that a token attends, itself included; 0: all
    positions: int = 0  # longest context that the configuration states; 0: none

    def __post_init__(self) -> None:
        for name in ("hidden", "layers", "heads", "head_size", "intermediate", "vocabulary"):
            self._check_range(name, 1, _MOST)
        self._check_range("kv_heads", 1, self.heads)
        if self.heads % self.kv_heads:
            self._refuse("kv_heads", f"a divisor of {self.heads} heads")
        self._check_bool("gated")
        self._check_bool("tied")
        self._check_range("experts", 1, _MOST)
        self._check_range("active", 1, self.experts)
        self._check_range("window", 0, _MOST)
        self._check_range("positions", 0, _MOST)

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
        return int(self.stored(operator.mul)) + self.router

    @property
    def weights(self) -> int:
        """Elements of all matrices, the embeddings included, without norms and biases."""
        tables = 1 if self.tied else 2
        return self.layers * self.layer_weights + tables * self.vocabulary * self.hidden

    def stored(self, matrix: Callable[[int, int], float]) -> float:
        """Of a layer, the router left out: the sum of ``matrix(inputs, outputs)``, all experts."""
        total = 0.0
        for name, size in self.linears.items():
            total += matrix(*size) * (self.experts if name in _EXPERT else 1)
        return total

    @property
    def router(self) -> int:
        """Elements of a layer's router."""
        return self.hidden * self.experts if self.experts > 1 else 0

    def kept(self, tokens: int) -> int:
        """Tokens of a sequence of ``tokens`` that its cache holds."""
        return min(tokens, self.window) if self.window else tokens

    def attended(self, context: int) -> int:
        """Tokens that the token after ``context`` others attends, itself included."""
        return self.kept(context + 1)


_EXPERT = ("gate", "up", "down")


def _whole(name: str, fields: Mapping[str, Any], field: str, default: int | None = None) -> int:
    value = fields.get(field)
    if value is None:
        if default is None:
            raise ConfigError(f"{name}: lacks {field}")
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name}: {field} must be a whole number of 1 or more, not {value!r}")
    return value


def _truth(name: str, fields: Mapping[str, Any], field: str, default: bool) -> bool:
    value = fields.get(field, default)
    if not isinstance(value, bool):
        raise ConfigError(f"{name}: {field} must be true or false, not {value!r}")
    return value


def _llama(name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    heads = _whole(name, fields, "num_attention_heads")
    hidden = _whole(name, fields, "hidden_size")
    if fields.get("head_dim") is None and hidden % heads:
        raise ConfigError(
            f"{name}: num_attention_heads must divide hidden_size {hidden}, not {heads}"
        )
    return {
        "hidden": hidden,
        "layers": _whole(name, fields, "num_hidden_layers"),
        "heads": heads,
        "kv_heads": _whole(name, fields, "num_key_value_heads", heads),
        "head_size": _whole(name, fields, "head_dim", max(hidden // heads, 1)),
        "intermediate": _whole(name, fields, "intermediate_size"),
        "vocabulary": _whole(name, fields, "vocab_size"),
        "tied": _truth(name, fields, "tie_word_embeddings", False),
        "positions": _whole(name, fields, "max_position_embeddings", 0),
    }


def _mistral(name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    window = fields.get("sliding_window")
    made = _llama(name, fields)
    return made | {"window": 0 if window is None else _whole(name, fields, "sliding_window")}


def _qwen2(name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    made = _llama(name, fields)
    full = fields.get("max_window_layers", made["layers"])  # the first layers attend all tokens
    if not fields.get("use_sliding_window") or full == made["layers"]:
        return made
    if full != 0:
        raise ConfigError(
            f"{name}: max_window_layers must be 0 or {made['layers']}, not {full!r}: "
            "a window of some layers is not supported"
        )
    return _mistral(name, fields)


def _mixtral(name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    return _mistral(name, fields) | {
        "experts": _whole(name, fields, "num_local_experts"),
        "active": _whole(name, fields, "num_experts_per_tok"),
    }


def _opt(name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """OPT: one matrix before ReLU, no gate. ``word_embed_proj_dim`` must be ``hidden_size``."""
    hidden = _whole(name, fields, "hidden_size")
    if fields.get("word_embed_proj_dim", hidden) != hidden:
        raise ConfigError(f"{name}: word_embed_proj_dim must be hidden_size, {hidden}")
    as_llama = dict(fields) | {"intermediate_size": fields.get("ffn_dim")}
    if fields.get("ffn_dim") is None:
        raise ConfigError(f"{name}: lacks ffn_dim")
    tied = _truth(name, fields, "tie_word_embeddings", True)
    return _llama(name, as_llama) | {"gated": False, "tied": tied}


# model_type to how its fields are read.
ARCHITECTURES: dict[str, Callable[[str, Mapping[str, Any]], dict[str, Any]]] = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "mixtral": _mixtral,
    "opt": _opt,
}


def model_of(name: str, fields: Any) -> Model:
    """The Model of a configuration as JSON gives it. ConfigError names what is missing or odd."""
    if not isinstance(fields, Mapping):
        raise ConfigError(f"{name}: must be an object of fields")
    kind = fields.get("model_type")
    if kind is None:
        raise ConfigError(f"{name}: lacks model_type")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise ConfigError(f"{name}: model_type must be one of {known}, not {kind!r}")
    try:
        return Model(name=name, architecture=kind, **ARCHITECTURES[kind](name, fields))
    except ConfigError as error:
        text = str(error)
        raise ConfigError(text if text.startswith(f"{name}:") else f"{name}: {text}") from None


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
