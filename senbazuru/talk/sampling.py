"""The choice of the next token, which the accelerator makes."""

import dataclasses

from golden.config import Config, ConfigError, bounded, real
from golden.kllm import engines
from golden.kllm.config import MachineConfig

TOP_K = 40  # by default, where the machine has room for so many


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling(Config):
    """temperature 0: the largest logit. Otherwise a draw from the top_k largest."""

    temperature: float = real(0.0, 0.0, 100.0, "of the softmax over the logits")
    top_k: int = bounded(1, 1, 64, "tokens that may be chosen")
    seed: int = bounded(0, 0, (1 << 32) - 1, "of the draws")

    @classmethod
    def of(
        cls, temperature: float, top_k: int | None, seed: int, machine: MachineConfig
    ) -> "Sampling":
        """ConfigError: more tokens than the machine draws from. top_k None: as many as usual."""
        made = cls(
            temperature=temperature, top_k=min(TOP_K, machine.top) if top_k is None else top_k,
            seed=seed,
        )  # fmt: skip
        if temperature and top_k is None and machine.top == 1:
            raise ConfigError("temperature must be 0 on this machine, which has top=1")
        if made.top_k > machine.top:
            raise ConfigError(f"top_k must be 1..{machine.top} on this machine, not {made.top_k}")
        if not temperature and (top_k is not None or seed):
            raise ConfigError("temperature must be above 0 for top_k or seed to have an effect")
        return made

    @property
    def place(self) -> engines.Sampling | None:
        """The words of a place of the batch."""
        if not self.temperature or self.top_k == 1:
            return None
        return engines.Sampling.at(self.temperature, self.top_k, self.seed)
