"""Words of a codebook packet: which of them are in -1..1."""

from amaranth import Mux
from amaranth.hdl import Value

from golden.fp16.format import FP16
from hdl.kllm.lane.config import KllmPeLaneConfig

_ONE = FP16.bias << FP16.frac_bits


def words_beyond(config: KllmPeLaneConfig, word: Value, is_product: Value) -> tuple[Value, Value]:
    """Whether ``word`` is not in -1..1: in a K-Means packet, and in an Integer packet.

    is_product: it is one of the products of a K-Means packet. Formats: golden.kllm.products.
    """
    # 1.0 is the largest magnitude; infinities and NaN are above it as integers.
    too_large = word[:-1] > _ONE
    shape = config.select_config
    if not shape.is_fixed:
        return too_large, too_large

    def beyond(grid: int) -> Value:
        one, number = 1 << -grid, word.as_signed()
        return (number > one) | (number < -one)

    return Mux(is_product, beyond(shape.grid), too_large), beyond(shape.integer_grid)
