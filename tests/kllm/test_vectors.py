"""Lane vectors: every corner is there, reproducible, and within its own bounds."""

import numpy as np
import pytest

from golden.kllm.format import NO_OUTPUT, Status, integer_packet_length, kmeans_packet_length
from golden.kllm.vectors.requests import LaneVectors, lane_vectors

CONFIGS = {
    "default": {},
    "small": {"bits_a": 2, "bits_b": 3, "elements": 4, "columns": 3, "k_max": 40, "int_bits": 4},
    "eight_columns": {"bits_a": 3, "columns": 8},
    "no_integer": {"int_bits": 0, "columns": 1, "elements": 1, "k_max": 7},
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_requests_cover_every_status_golden_sees(config: dict) -> None:
    requests = lane_vectors(LaneVectors(**config), seed=3)
    seen = 0
    for request in requests:
        seen |= request.status
        outputs = 0 if request.status & NO_OUTPUT else len(request.s_b)
        assert request.y.shape == (outputs,)
        assert request.idx_b.shape == (len(request.values), len(request.s_b))
        expected = (
            integer_packet_length(config.get("bits_b", 4))
            if request.integer
            else kmeans_packet_length(config.get("bits_a", 4), config.get("bits_b", 4))
        )
        assert len(request.packet) == expected
    assert seen & Status.NONFINITE
    assert seen & Status.SCALE_NONFINITE
    assert seen & Status.OVERFLOW
    assert any(request.integer for request in requests) == (config.get("int_bits", 8) != 0)


def test_same_seed_same_vectors() -> None:
    first, second = lane_vectors(seed=5), lane_vectors(seed=5)
    other = lane_vectors(seed=6)
    assert all(np.array_equal(a.y, b.y) for a, b in zip(first, second, strict=True))
    assert not all(np.array_equal(a.idx_b, b.idx_b) for a, b in zip(first, other, strict=True))
