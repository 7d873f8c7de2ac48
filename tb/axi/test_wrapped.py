"""Blocks under AXI's port names (``hdl.build --wrap axi``), driven by cocotbext-axi's models.

The vectors are those of the blocks' own tests. So a wrong bit order, a lost ``last`` or a wrong
handshake shows as a wrong word.

Shown to fail: ``last`` left in tdata, the reset not inverted, fields in reverse order, the
consumer's ready tied high.
"""

import random

import numpy as np
import pytest

from golden.kllm.vectors.pe_lane import lane_vectors
from golden.kllm.vectors.scaler import scaler_vectors
from hdl.kllm.lane.engine import KllmPeLane
from hdl.kllm.lane.scaler import KllmScaler, KllmScalerConfig
from hdl.kllm.room import BLOCKS as KLLM
from hdl.stream.fifo import StreamFifo, StreamFifoConfig
from tb.simulate.run import simulate


def packed(block, names) -> dict:
    """Maps each stream to the fields of its payload that go to tdata, and where ``last`` is."""
    found = {}
    for name in names:
        shape = block.signature.members[name].signature.members["payload"].shape
        fields = {key: (field.offset, field.width) for key, field in shape}
        last = fields.pop("last", None)
        found[name] = (list(fields.values()), last and last[0])
    return found


def run(block, sources, sinks, phases, vectors, seed, first=()):
    params = {"sources": sources, "sinks": sinks, "phases": phases, "first": first}
    params["packed"] = packed(block, [*sources, *sinks])
    simulate(block, "tb.axi.tb_wrapped", vectors=vectors, params=params, seed=seed, wrap="axi")


def test_scaler(seed):
    config = KllmScalerConfig(sum_bits=69, tag_bits=1, stages=3)
    words = scaler_vectors(config, seed)
    vectors = {f"all.{name}": words[name][:400] for name in ("i", "o")}
    run(KllmScaler(config), ["i"], ["o"], ["all"], vectors, seed)


@pytest.mark.parametrize("width", [12, 16])
def test_fifo(width, seed):
    """``last`` between other bits of a byte, and alone in one."""
    rng = random.Random(seed)
    words = [rng.getrandbits(width) | (rng.random() < 0.2) << width for _ in range(300)]
    words.append(1 << width)
    array = np.array([list(word.to_bytes(3, "little")) for word in words], dtype=np.uint8)
    config = StreamFifoConfig(width=width, depth=5)
    run(StreamFifo(config), ["i"], ["o"], ["all"], {"all.i": array, "all.o": array}, seed)


def test_pe_lane(seed):
    config = KLLM["kllm_pe_lane"].configs["small"]
    vectors, params = lane_vectors(config, seed)
    streams = ["job", "a", "w", "x", "s_b", "codebook"]
    phases = params["phases"]
    run(KllmPeLane(config), streams, ["y", "status"], phases, vectors, seed, first=["codebook"])
