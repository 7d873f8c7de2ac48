"""Beats: round trips, and bits where golden.kllm.format says they are."""

import numpy as np
import pytest

from golden.kllm.format import (
    Status,
    beats,
    groups,
    integer_packet_length,
    kmeans_packet_length,
    product_index,
    weight_beat_bits,
)
from golden.kllm.pack import (
    pack_activations,
    pack_weights,
    to_words64,
    unpack_activations,
    unpack_weights,
)

SHAPES = [(1, 1), (16, 32), (17, 33), (15, 31), (40, 70), (5, 64)]


@pytest.mark.parametrize(("length", "outputs"), SHAPES)
@pytest.mark.parametrize("bits", [2, 3, 4])
def test_weights_round_trip(length: int, outputs: int, bits: int) -> None:
    index = np.random.default_rng(length).integers(0, 1 << bits, (length, outputs))
    words = pack_weights(index, 32, 16, bits)
    assert len(words) == beats(length, 16) * groups(outputs, 32)
    assert max(words).bit_length() <= weight_beat_bits(32, 16, bits)
    assert np.array_equal(unpack_weights(words, length, outputs, 32, 16, bits), index)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 100])
@pytest.mark.parametrize(("bits_a", "int_bits"), [(4, 8), (3, 4), (4, 0), (2, 8)])
def test_activations_round_trip(length: int, bits_a: int, int_bits: int) -> None:
    rng = np.random.default_rng(length)
    value = rng.integers(0, 1 << max(bits_a, int_bits), length)
    outlier = rng.random(length) < 0.3
    words = pack_activations(value, outlier, 16, bits_a, int_bits)
    got, mask = unpack_activations(words, length, 16, bits_a, int_bits)
    assert np.array_equal(got, value)
    assert np.array_equal(mask, outlier)


def test_weight_beat_is_column_major() -> None:
    index = np.zeros((3, 3), dtype=np.int64)
    index[2, 1] = 5  # second beat, element 0, column 1 of group 0
    index[1, 2] = 3  # first beat, element 1, column 0 of group 1
    assert pack_weights(index, 2, 2, 4) == [0, 5 << (1 * 2 + 0) * 4, 3 << (0 * 2 + 1) * 4, 0]


def test_rejects_index_too_wide() -> None:
    with pytest.raises(ValueError, match=r"^entries must be 0\.\.7$"):
        pack_weights([[8]], 2, 2, 3)


def test_wide_beats_are_little_endian_words() -> None:
    assert to_words64([1 << 64 | 7], 100).tolist() == [[7, 1]]


def test_packet_lengths_and_index_order() -> None:
    assert kmeans_packet_length(4, 4) == 256 + 16
    assert kmeans_packet_length(3, 4) == 128 + 16
    assert integer_packet_length(4) == 16
    assert product_index(5, 2, 3) == 0b101_010


def test_status_bits_keep_their_order() -> None:
    assert [status.name for status in Status] == [
        "LENGTH_ZERO", "LENGTH_TOO_LONG", "CODEBOOK_MISSING", "NONFINITE", "LAST_MISPLACED",
        "OUTLIER_COUNT", "SCALE_NONFINITE", "OVERFLOW", "COLUMN_RANGE",
    ]  # fmt: skip
    assert [int(status) for status in Status] == [1 << i for i in range(9)]
