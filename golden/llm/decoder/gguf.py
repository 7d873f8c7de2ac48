"""GGUF files whose header states what transformers leaves out are refused. Pure Python."""

from collections.abc import Iterable, Mapping
from typing import Any

from golden.config import ConfigError
from golden.llm.decoder.reading import shown

# Of a GGUF file's model: what transformers reads, and what changes nothing at a value.
_GGUF_READ = frozenset(
    """
    attention.head_count attention.head_count_kv attention.layer_norm_rms_epsilon block_count
    context_length embedding_length feed_forward_length rope.freq_base tensor_data_layout vocab_size
    """.split()
)
_GGUF_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "attention.sliding_window": (0,),
    "expert_count": (0, 1),
    "expert_used_count": (0, 1),
    "rope.scaling.finetuned": (False,),
    "rope.scaling.type": ("none",),
    "use_parallel_residual": (False,),
}


def check_gguf(name: str, header: Mapping[str, Any], tensors: Iterable[str]) -> None:
    """ConfigError: a GGUF file states what transformers leaves out when it reads the file.

    header: its keys with their values; tensors: names
    """
    kind = str(header.get("general.architecture"))
    own = {
        key.removeprefix(f"{kind}."): value
        for key, value in header.items()
        if key.startswith(f"{kind}.")
    }
    heads = own.get("attention.head_count")
    width = own.get("embedding_length")
    size = width // heads if isinstance(width, int) and isinstance(heads, int) and heads else None
    if kind in ("llama", "mistral"):
        size = own.get("rope.dimension_count", size)
    sizes = ("attention.key_length", "attention.value_length", "rope.dimension_count")
    for key, value in sorted(own.items()):
        neutral = (size,) if key in sizes else _GGUF_NEUTRAL.get(key)
        if key in _GGUF_READ or (neutral is not None and value in neutral):
            continue
        wanted = "absent" if neutral is None else shown(neutral[0])
        raise ConfigError(
            f"{name}: {kind}.{key} must be {wanted}, as transformers does not read it, "
            f"not {shown(value)}"
        )
    for each in tensors:
        if each.startswith("rope_"):
            raise ConfigError(
                f"{name}: has the tensor {each}, which scales RoPE and which transformers leaves "
                "out: take the checkpoint's folder"
            )
