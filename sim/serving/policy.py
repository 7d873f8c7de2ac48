"""The policies by which requests share a chip: the schedule and its limits."""

import dataclasses
from typing import Any

from golden.config import Config, bounded, choice

# Each schedule and its tokens of a pass: vLLM's defaults of 2048 and 512, and Oaken's cores.
SCHEDULES = {"continuous": 2048, "chunked": 512, "token-level": 256, "static": 2048}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Policy(Config):
    """Limits of a schedule; ``sim.serving.schedule`` says what each schedule does.

    max_batch : requests that have pages at a time
    tokens : prompt tokens, all tokens or cores of a pass, as the schedule says
    positions : longest prompt and output together; longer ones are refused; 0: none is
    """

    schedule: str = choice("continuous", SCHEDULES)
    max_batch: int = bounded(256, 1, 1 << 20)
    tokens: int = bounded(2048, 1, 1 << 24)
    positions: int = bounded(0, 0, 1 << 30)

    @property
    def mixes(self) -> bool:
        """Whether a pass has steps of decoding and prompts."""
        return self.schedule in ("chunked", "token-level")

    def prompt_tokens(self, batch: int) -> int:
        """Prompt tokens that a pass takes next to ``batch`` steps of decoding."""
        if self.schedule == "chunked":
            return max(self.tokens - batch, 0)
        return self.tokens - batch % self.tokens


def tokens_of(schedule: str, settings: Any) -> int:
    """The tokens by default: the chip's ``cores`` if token-level and its settings have them."""
    cores = getattr(settings, "cores", None)
    if schedule == "token-level" and isinstance(cores, int):
        return cores
    return SCHEDULES[schedule]
