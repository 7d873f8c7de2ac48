"""Words of a codebook packet: which of them are in -1..1."""

from collections.abc import Sequence

from amaranth import Cat, Mux
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


def row_beyond(
    config: KllmPeLaneConfig, words: Sequence[Value], is_product: Value
) -> tuple[Value, Value]:
    """``words_beyond`` of any word of a row: all of products, or the centroids that are first."""
    found = [words_beyond(config, word, is_product) for word in words]
    centroids = 2**config.packet_bits_b
    kmeans, integer = ([each[mode] for each in found] for mode in range(2))
    of_centroids = Cat(kmeans[:centroids]).any()
    return Mux(is_product, Cat(kmeans).any(), of_centroids), Cat(integer[:centroids]).any()
