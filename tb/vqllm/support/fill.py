"""Cycles of a job of vq_gemv that no look-up takes."""

from golden.vqllm.timing import GemvPath, gemv_fill
from hdl.vqllm.gemv.config import VqGemvConfig


def path_of(config: VqGemvConfig, latency: int) -> GemvPath:
    return GemvPath(config.core.timing.latency, config.scaled, latency, config.far)


def fill_of(config: VqGemvConfig, shared: int, latency: int) -> int:
    """Cycles of a job without look-ups, its first load included."""
    beats = config.image.load_beats(shared, config.core.cache.banks)
    return gemv_fill(beats, config.image.load_words(shared), path_of(config, latency))
