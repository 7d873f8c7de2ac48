"""The policies by which requests share a chip: the schedule and its limits."""

import dataclasses
from typing import Any

from golden.config import Config, bounded, choice, real

# Each schedule and its tokens of a pass: vLLM's defaults of 2048 and 512, and Oaken's cores.
SCHEDULES = {
    "continuous": 2048, "chunked": 512, "v1": 2048, "token-level": 256, "static": 2048,
}  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Policy(Config):
    """Limits of a schedule; ``sim.serving.schedule`` says what each schedule does.

    max_batch : requests that have pages at a time
    tokens : prompt tokens, all tokens or cores of a pass, as the schedule says
    positions : longest prompt and output together; longer ones are refused; 0: none is
    prefix_block : tokens of a block of the prefix cache; 0: there is none
    drafts : words that a step drafts for each sequence
    acceptance : probability that a draft is accepted, if those before it are
    seed : of the draws of acceptance
    """

    schedule: str = choice("continuous", SCHEDULES)
    max_batch: int = bounded(256, 1, 1 << 20)
    tokens: int = bounded(2048, 1, 1 << 24)
    positions: int = bounded(0, 0, 1 << 30)
    prefix_block: int = bounded(0, 0, 1 << 20)
    drafts: int = bounded(0, 0, 64)
    acceptance: float = real(0.0, 0.0, 1.0)
    seed: int = bounded(0, 0, (1 << 63) - 1)

    def __post_init__(self) -> None:
        # A step of v1 has a token of each request that decodes.
        if self.schedule == "v1":
            self._check_range("tokens", self.max_batch * (1 + self.drafts), 1 << 24)

    @property
    def words_per_step(self) -> float:
        """Words that a step makes for a sequence on average: 1 + p + p^2 + ... + p^drafts."""
        return sum(self.acceptance**n for n in range(self.drafts + 1))

    @property
    def mixes(self) -> bool:
        """Whether a pass has steps of decoding and prompts."""
        return self.schedule in ("chunked", "v1", "token-level")

    def prompt_tokens(self, batch: int) -> int:
        """Prompt tokens that a pass takes next to ``batch`` steps of decoding."""
        taken = batch * (1 + self.drafts)
        if self.schedule == "token-level":
            return self.tokens - taken % self.tokens
        return max(self.tokens - taken, 0)


def tokens_of(schedule: str, settings: Any) -> int:
    """The tokens by default: the chip's ``cores`` if token-level and its settings have them."""
    cores = getattr(settings, "cores", None)
    if schedule == "token-level" and isinstance(cores, int):
        return cores
    return SCHEDULES[schedule]
