"""A random Llama with grouped queries and odd head counts, for tests of golden.llm.eval."""

import torch

from golden.llm.checkpoint import Checkpoint
from golden.llm.eval.method import Site

Q = "model.layers.0.self_attn.q_proj"
# Weights (N, K) of a layer: q, k, v, o, gate, up, down.
SHAPES = [(72, 36), (24, 36), (24, 36), (36, 72), (56, 36), (56, 36), (36, 56)]


class Letters:
    """A tokenizer: every character its code modulo 64."""

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) % 64 for letter in text]}


def tiny_llama(heads: int = 9, kv_heads: int = 3, head_dim: int = 8, seed: int = 0) -> Checkpoint:
    """Two layers, hidden size 36 (4 a head), intermediate size 56, 64 words, 256 positions.

    Weights are large enough for attention to be far from uniform.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        hidden_size=4 * heads, intermediate_size=56, num_hidden_layers=2, num_attention_heads=heads,
        num_key_value_heads=kv_heads, head_dim=head_dim, vocab_size=64, initializer_range=0.3,
        max_position_embeddings=256,
    )  # fmt: skip
    return Checkpoint(LlamaForCausalLM(config).eval(), Letters(), f"tiny-{heads}-{kv_heads}")


def uneven_llama() -> Checkpoint:
    """Like ``tiny_llama``, and nothing is 1 or 0: norm weights, biases; head tied to embedding."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    config = LlamaConfig(
        hidden_size=36, intermediate_size=56, num_hidden_layers=2, num_attention_heads=9,
        num_key_value_heads=3, head_dim=8, vocab_size=64, initializer_range=0.3,
        max_position_embeddings=256, attention_bias=True, mlp_bias=True, tie_word_embeddings=True,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    for name, value in model.named_parameters():
        if "norm" in name:
            value.data = torch.exp(torch.randn(value.shape))
        elif name.endswith("bias"):
            value.data = torch.randn(value.shape)
    return Checkpoint(model, Letters(), "uneven")


def logits(model, windows, method=None, state=None):
    """The logits of windows of one length, with a method installed or of the model as it is."""
    with torch.no_grad(), Site(model) as site:
        if method is not None:
            method.install(site, state)
        return model(torch.stack(windows)).logits
