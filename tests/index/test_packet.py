"""Codebooks of vectors: scale, order of the words, refusals."""

import pytest
import torch

from golden.config import ConfigError
from golden.fp16.ops import float_from_bits
from golden.index.packet import denormalised, from_packet, normalised, packet, packet_rows


def _book(largest: float, shape: tuple[int, int, int] = (2, 4, 3)) -> torch.Tensor:
    book = torch.linspace(-0.9, 1.0, shape[0] * shape[1] * shape[2], dtype=torch.float64)
    return book.reshape(shape) * largest


@pytest.mark.parametrize(
    ("largest", "exponent"),
    [
        (1.0, 0),
        (1.0001, 0),  # rounds to 1
        (1.001, 1),
        (0.5, -1),
        (2.0, 1),
        (2.5, 2),
        (2.0**-8, -8),
        (2.0**-12, -8),
        (32768.0, 15),
        (0.0, -8),
    ],
)
def test_smallest_exponent(largest: float, exponent: int) -> None:
    words, found = normalised(_book(largest))
    assert found == exponent
    assert float(float_from_bits(words).abs().max()) <= 1
    if largest > 2.0**-8:
        assert float(float_from_bits(words).abs().max()) > 0.5 or exponent == -8
    error = (denormalised(words, found) - _book(largest)).abs().max()
    assert float(error) <= largest * 2.0**-11


def test_rounds_once_to_nearest_even() -> None:
    book = torch.tensor([[[1.0 + 2.0**-11, -(1 + 3 * 2.0**-11), 2.0]]], dtype=torch.float64)
    words, exponent = normalised(book)
    assert exponent == 1
    assert words.flatten().tolist() == [0x3800, 0xB802, 0x3C00]


def test_order_of_the_words() -> None:
    words = torch.arange(2 * 3 * 4).reshape(2, 3, 4) * 257
    data = packet(words)
    assert data.dtype == torch.uint8
    for m in range(2):
        for j in range(3):
            for i in range(4):
                at = 2 * ((j * 2 + m) * 4 + i)
                assert int(data[at]) | int(data[at + 1]) << 8 == int(words[m, j, i])
    assert packet_rows(words)[1].tolist() == words[:, 1].flatten().tolist()
    assert torch.equal(from_packet(data, 2, 4), words)


def test_rejects() -> None:
    with pytest.raises(ConfigError, match=r"^codebook must lie in -32768\.\.32768, not reach 33"):
        normalised(_book(33000.0))
    with pytest.raises(ValueError, match=r"^codebook must be finite, \(M, entries, sub\)"):
        normalised(_book(float("inf")))
    with pytest.raises(ValueError, match=r"^a packet must have whole rows of 16 bytes$"):
        from_packet(torch.zeros(24, dtype=torch.uint8), 2, 4)
