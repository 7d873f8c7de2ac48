"""``python -m golden.llm.eval.llama2c BIN VOCAB -o DIR``: llama2.c's files as transformers folders.

BIN is the format of version 0: seven little-endian int32, then float32 arrays. The integers are
dim, hidden_dim, layers, heads, kv_heads, vocab and seq_len. A negative vocab has a head of its own.

VOCAB holds one piece and its score per line, with a tab between, "▁" for a space and one character
per piece. Every other character becomes ``<unk>``.
"""

import math
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from golden import command

if TYPE_CHECKING:
    from torch import Tensor

_HEADER = struct.Struct("<7i")


def _interleaved(weight: "Tensor", heads: int) -> "Tensor":
    """Rows of (heads * head_dim, dim), from pairs (2i, 2i+1) to transformers' (i, i + head_dim/2).

    Both are the two coordinates that the rotary embedding turns.
    """
    rows, dim = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, dim).transpose(1, 2).reshape(rows, dim)


def read_model(path: Path) -> tuple[dict[str, Any], "dict[str, Tensor]"]:
    """(fields of a LlamaConfig, state of a LlamaForCausalLM); CheckpointError in one line."""
    import torch

    from golden.llm.checkpoint import CheckpointError

    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from None
    if len(data) < _HEADER.size:
        raise CheckpointError(f"{path} has {len(data)} bytes, less than a llama2.c header")
    dim, hidden, layers, heads, kv_heads, vocab, positions = _HEADER.unpack_from(data)
    tied, vocab = vocab > 0, abs(vocab)
    sizes = (dim, hidden, layers, heads, kv_heads, vocab, positions)
    if min(sizes) < 1 or dim % (2 * heads) or heads % kv_heads:
        raise CheckpointError(f"{path} is not a llama2.c model: its header says {sizes}")
    head_dim = dim // heads
    shapes = {
        "embed": (vocab, dim),
        "input_layernorm": (layers, dim),
        "self_attn.q_proj": (layers, dim, dim),
        "self_attn.k_proj": (layers, kv_heads * head_dim, dim),
        "self_attn.v_proj": (layers, kv_heads * head_dim, dim),
        "self_attn.o_proj": (layers, dim, dim),
        "post_attention_layernorm": (layers, dim),
        "mlp.gate_proj": (layers, hidden, dim),
        "mlp.down_proj": (layers, dim, hidden),
        "mlp.up_proj": (layers, hidden, dim),
        "norm": (dim,),
        "rotary": (2, positions, head_dim // 2),  # follows from the sizes
        **({} if tied else {"head": (vocab, dim)}),
    }
    needed = _HEADER.size + 4 * sum(math.prod(shape) for shape in shapes.values())
    if len(data) != needed:
        raise CheckpointError(f"{path} has {len(data)} bytes, its header asks for {needed}")
    values = torch.frombuffer(bytearray(data[_HEADER.size :]), dtype=torch.float32)
    parts, start = {}, 0
    for name, shape in shapes.items():
        parts[name] = values[start : start + math.prod(shape)].reshape(shape)
        start += math.prod(shape)
    state = {"model.embed_tokens.weight": parts["embed"], "model.norm.weight": parts["norm"]}
    state["lm_head.weight"] = parts["embed"] if tied else parts["head"]
    for name, part in parts.items():
        if name in ("embed", "norm", "rotary", "head"):
            continue
        for layer in range(layers):
            value = part[layer]
            if name == "self_attn.q_proj":
                value = _interleaved(value, heads)
            elif name == "self_attn.k_proj":
                value = _interleaved(value, kv_heads)
            state[f"model.layers.{layer}.{name}.weight"] = value
    config = {
        "hidden_size": dim, "intermediate_size": hidden, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "vocab_size": vocab,
        "max_position_embeddings": positions, "rms_norm_eps": 1e-5, "tie_word_embeddings": tied,
    }  # fmt: skip
    return config, state


def read_vocabulary(path: Path) -> list[str]:
    """Pieces in order of their ids; CheckpointError in one line."""
    from golden.llm.checkpoint import CheckpointError

    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise CheckpointError(f"{path} is not text") from None
    pieces = [line.rpartition("\t")[0] for line in lines if line]
    if "<unk>" not in pieces or len(set(pieces)) != len(pieces):
        raise CheckpointError(f"{path} is not a vocabulary with <unk> and no piece twice")
    return pieces


def tokenizer_of(pieces: list[str]) -> Any:
    """Characters to ids, runs of white space to one "▁", one before the text."""
    from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Replace(Regex(r"\s+"), "▁"), normalizers.Prepend("▁")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


def convert(model: Path, vocabulary: Path, folder: Path) -> None:
    """Writes the transformers folder; CheckpointError in one line."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from golden.llm.checkpoint import CheckpointError

    config, state = read_model(model)
    pieces = read_vocabulary(vocabulary)
    if len(pieces) != config["vocab_size"]:
        raise CheckpointError(
            f"{vocabulary} has {len(pieces)} pieces, the model {config['vocab_size']}"
        )
    loaded = LlamaForCausalLM(LlamaConfig(**config))
    loaded.load_state_dict(state)
    loaded.save_pretrained(folder)
    tokenizer_of(pieces).save_pretrained(folder)


def main(argv: list[str] | None = None) -> int:
    """The command line; 0, or 2 after one line on stderr."""
    parser = command.Parser(
        prog="python -m golden.llm.eval.llama2c", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("model", type=Path, help="llama2.c checkpoint")
    parser.add_argument("vocabulary", type=Path, help="pieces and scores, one a line")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder to write")
    options = parser.parse_args(argv)
    from golden.config import ConfigError
    from golden.files import claimed_folder
    from golden.llm.checkpoint import CheckpointError  # torch, after the arguments

    try:
        with claimed_folder(options.output):
            convert(options.model, options.vocabulary, options.output)
    except (CheckpointError, ConfigError, OSError) as error:
        print(f"llama2c: {error}", file=sys.stderr)
        return 2
    print(f"{options.output}: transformers folder")
    return 0


if __name__ == "__main__":
    command.run("golden.llm.eval.llama2c", main)
