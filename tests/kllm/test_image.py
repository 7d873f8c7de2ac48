"""The weight image against its definition, word by word, and against its inverse."""

import numpy as np
import pytest
import torch

from golden.fp16.format import FP16, FP32
from golden.fp16.ops import mul
from golden.fp16.vectors.columns import random_words
from golden.kllm.format import (
    WeightLayout,
    beats,
    groups,
    weight_bit,
    weight_lane_words,
    weight_port_words,
    weight_word_place,
)
from golden.kllm.image import fold_scales, stripe, supply, weight_image, weights_of_image
from golden.kllm.pack import pack_weights

SHAPES = {  # lanes, columns, elements, bits_b, ports, port_bits
    "fewer_ports_than_slots": (4, 4, 2, 4, 6, 16),
    "more_ports_than_slots": (2, 3, 4, 3, 5, 48),
    "equal": (2, 4, 4, 4, 4, 32),
    "one_port": (3, 2, 3, 2, 1, 8),
    "far_more_ports": (1, 2, 2, 4, 7, 64),
    "table1": (16, 32, 16, 4, 24, 1024),
    "four_scale_beats": (1, 16, 1, 4, 1, 64),
    "scales_end_in_a_word": (2, 5, 1, 3, 3, 8),
}


def weights(rng, length, outputs, bits_b):
    return rng.integers(0, 1 << bits_b, (length, outputs)), rng.integers(0, 1 << 16, outputs)


@pytest.mark.parametrize("name", SHAPES)
def test_every_weight_stands_where_the_layout_says(name):
    lanes, columns, elements, bits_b, ports, port_bits = SHAPES[name]
    rng = np.random.default_rng(1)
    length, outputs = 2 * elements + 1, lanes * columns + 1
    index, scale = weights(rng, length, outputs, bits_b)
    layout = WeightLayout(*SHAPES[name])
    image = weight_image(index, scale, layout)
    count, lane_words = (
        beats(length, elements),
        weight_lane_words(columns, elements, bits_b, port_bits),
    )
    slots = lanes * lane_words
    held = [int.from_bytes(port.tobytes(), "little") for port in image]

    def bits(array_beat, lane, lowest, width):
        word = 0
        beats_before, lowest = divmod(lowest, lane_words * port_bits)
        array_beat += beats_before
        for bit in range(width):
            slot = lane * lane_words + (lowest + bit) // port_bits
            port, place = weight_word_place(array_beat, slot, slots, ports)
            word |= (held[port] >> place * port_bits + (lowest + bit) % port_bits & 1) << bit
        return word

    for n in [*range(0, outputs, 5), outputs - 1]:
        group, lane = divmod(n // columns, lanes)
        for k in range(length):
            lowest = weight_bit(n % columns, k % elements, elements, bits_b)
            beat = group * (count + layout.scale_beats) + k // elements
            assert bits(beat, lane, lowest, bits_b) == index[k, n]
        beat = group * (count + layout.scale_beats) + count
        assert bits(beat, lane, 16 * (n % columns), 16) == scale[n]
    # Nothing else is set, and every port holds the words that it should.
    array_beats = groups(outputs, lanes * columns) * (count + layout.scale_beats)
    for port, words in enumerate(image):
        assert len(words) * 8 == port_bits * weight_port_words(array_beats, slots, ports, port)
    index_bits = sum(int(i).bit_count() for i in index.flat)
    scale_bits = sum(int(s).bit_count() for s in scale)
    assert sum(word.bit_count() for word in held) == index_bits + scale_bits


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("outputs", [1, 37])
def test_inverse(name, outputs):
    layout = WeightLayout(*SHAPES[name])
    rng = np.random.default_rng(2)
    index, scale = weights(rng, 19, outputs, layout.bits_b)
    image = weight_image(index, scale, layout)
    assert len(image) == layout.ports
    back = weights_of_image(image, 19, outputs, layout)
    np.testing.assert_array_equal(back[0], index)
    np.testing.assert_array_equal(back[1], scale)


@pytest.mark.parametrize(
    ("index", "scale", "port_bits", "message"),
    [
        ([[4]], [0], 8, "indices must be 0..3"),
        ([[0]], [65536], 8, "scales must be FP16 words"),
        ([[0, 1]], [0], 8, "(K, N) indices and (N,) scales"),
        ([[0]], [0], 12, "port_bits must be a multiple of 8, not 12"),
    ],
)
def test_refuses(index, scale, port_bits, message):
    with pytest.raises(ValueError, match=r"needed|must be") as error:
        weight_image(index, scale, WeightLayout(1, 1, 1, 2, 1, port_bits))
    assert message in str(error.value)


def test_refuses_an_image_of_another_size():
    layout = WeightLayout(1, 1, 1, 2, 2, 16)
    image = weight_image([[0]], [0], layout)
    with pytest.raises(ValueError, match="port 1 must hold 2 bytes, not 4"):
        weights_of_image([image[0], np.zeros(4, np.uint8)], 1, 1, layout)
    with pytest.raises(ValueError, match="2 ports needed, not 1"):
        weights_of_image(image[:1], 1, 1, layout)


def test_folded_scales_are_products_rounded_once():
    """Every FP16 word, and random ones, against the operator's golden model."""
    rng = np.random.default_rng(3)
    scale = np.concatenate([np.arange(1 << 16), random_words(rng, 20_000, FP16)])
    rms = random_words(rng, len(scale), FP32).astype(np.int64)
    # half of them near 1, where products are finite, and halfway between two results for many
    near = rng.random(len(scale)) < 0.5
    rms[near] = (rng.integers(110, 140, near.sum()) << 23) | (rng.integers(0, 8, near.sum()) << 20)
    golden = mul(torch.tensor(scale), torch.tensor(rms), FP16, FP32, FP16).numpy()
    np.testing.assert_array_equal(fold_scales(scale, rms), golden)


def test_slots_of_a_beat():
    held = [[f"{port}.{word}" for word in range(2)] for port in range(3)]
    assert stripe(held, 2) == [["0.0", "2.0", "1.1"], ["1.0", "0.1", "2.1"]]


@pytest.mark.parametrize("name", SHAPES)
def test_lanes_are_given_their_columns(name):
    """Against pack_weights on each lane's own columns."""
    lanes, columns, elements, bits_b, _, _ = SHAPES[name]
    layout = WeightLayout(*SHAPES[name])
    rng = np.random.default_rng(4)
    length, outputs = 3 * elements - 1, lanes * columns + 2
    index, scale = weights(rng, length, outputs, bits_b)
    image = weight_image(index, scale, layout)
    rms = rng.integers(0x3F000000, 0x40000000, 2)
    given = supply(image, length, outputs, layout, 2, rms)
    padded = np.zeros((length, 2 * lanes * columns), dtype=np.int64)
    padded[:, :outputs] = index
    scales = np.zeros(2 * lanes * columns, dtype=np.int64)
    scales[:outputs] = scale
    for lane, (beats_given, words) in enumerate(given):
        wanted, wanted_scales = [], []
        for group in range(2):
            first = (group * lanes + lane) * columns
            own = pack_weights(padded[:, first : first + columns], columns, elements, bits_b)
            wanted += 2 * [(beat, at == len(own) - 1) for at, beat in enumerate(own)]
            for token in range(2):
                wanted_scales += list(fold_scales(scales[first : first + columns], rms[token]))
        assert beats_given == wanted
        assert list(words) == wanted_scales
