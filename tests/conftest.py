"""One thread per test process: tensors are small here, and pytest-xdist runs several processes.

``tiny``: a random Llama with grouped queries and odd head counts, for tests of golden.eval.
"""

import pytest
import torch

from golden.checkpoint import Checkpoint

torch.set_num_threads(1)


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


@pytest.fixture(scope="session")
def tiny() -> Checkpoint:
    """9 query heads over 3 KV heads of 8: left as found by every test."""
    return tiny_llama()


@pytest.fixture(scope="session")
def tiny_windows() -> list[torch.Tensor]:
    """Three windows of 32 token ids of the tiny model."""
    generator = torch.Generator().manual_seed(7)
    return list(torch.randint(0, 64, (3, 32), generator=generator))
