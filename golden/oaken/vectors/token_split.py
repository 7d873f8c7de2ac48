"""Transfers for OakenTokenSplit, sound ones and damaged ones, with the words of golden."""

import numpy as np

from golden.oaken.dequantize import split_records
from golden.oaken.format import SCALE_BYTES
from golden.oaken.vectors.dequant_tokens import as_bytes, damaged, transfer
from golden.oaken.vectors.zero_insert import records as sparse_blocks
from golden.words import layout_word

STREAMS = ("request", "i", "scale", "dense", "sparse")


class Job:
    """Requests, words and golden words of some consecutive transfers."""

    def __init__(self, config, rng):
        self.config, self.rng = config, rng
        self.words: dict[str, list[int]] = {name: [] for name in STREAMS}
        self.masks: dict[str, list[int]] = {name: [] for name in STREAMS[2:]}
        self.ends: list[list[int]] = []  # words of each stream after each request
        self.bad = self.errors = self.full = 0

    def add(self, data: bytes, tokens: int, skip: int, **how) -> None:
        config = self.config
        words, errors = transfer(self.rng, data, config.data_bits // 8, **how)
        parts = split_records(
            data, errors, tokens=tokens, skip=skip, blocks=config.blocks, block=config.block
        )
        self.words["request"].append(layout_word(config.request_layout, tokens=tokens, skip=skip))
        self.words["i"] += words
        is_bad = parts.sparse[-1].end == 0
        good = self._good(parts)
        assert is_bad or good == len(parts.dense)
        for n, (scale, error) in enumerate(parts.scale):
            layout, known = config.scale_layout, n * config.blocks < good
            self._put("scale", layout, known, "scale", scale=scale, error=error)
        for n, codes in enumerate(parts.dense):
            codes_word = int.from_bytes(codes, "little")
            self._put("dense", config.dense_layout, n < good, "data", data=codes_word)
        for word in parts.sparse:
            layout = config.sparse_layout
            fields = word._asdict() | {"data": int.from_bytes(word.data, "little")}
            self.words["sparse"].append(layout_word(layout, **fields))
            any_byte = (1 << 8 * config.block) - (1 << 8 * word.end)
            self.masks["sparse"].append(~layout_word(layout, data=any_byte))
            self.errors += word.error != 0
        self.ends.append([len(self.words[name]) for name in STREAMS])
        self.bad += is_bad

    def _good(self, parts) -> int:
        """Blocks before the sparse transfer's empty word."""
        good, sparse = 0, iter(parts.sparse)
        for word in sparse:
            if word.end == 0:
                break
            good += 1
            if word.data[0] == self.config.block:
                next(sparse)
                self.full += 1
        return good

    def _put(self, name: str, layout, known: bool, field: str, **fields) -> None:
        self.words[name].append(layout_word(layout, **fields))
        low = layout[field].offset
        unknown = 0 if known else (1 << layout[field].width) - 1 << low
        self.masks[name].append(~unknown)

    def vectors(self, phase: str) -> dict:
        config = self.config
        layouts = {
            "request": config.request_layout,
            "i": config.i_layout,
            "scale": config.scale_layout,
            "dense": config.dense_layout,
            "sparse": config.sparse_layout,
        }
        vectors = {
            f"{phase}.{name}": as_bytes(self.words[name], layout.size)
            for name, layout in layouts.items()
        }
        for name, masks in self.masks.items():
            size = layouts[name].size
            kept = [mask & (1 << size) - 1 for mask in masks]
            vectors[f"{phase}.{name}_mask"] = as_bytes(kept, size)
        return vectors | {f"{phase}.ends": np.array(self.ends)}


def records(config, rng, tokens: int, density: float) -> bytes:
    """``tokens`` records of any scale words and codes, with random outliers."""
    data = bytearray()
    for _ in range(tokens):
        data += rng.integers(0, 256, SCALE_BYTES).astype(np.uint8).tobytes()
        for _ in range(config.blocks):
            data += rng.integers(0, 256, config.dense_bytes).astype(np.uint8).tobytes()
            data += sparse_blocks(rng, 1, config.block, density)
    return bytes(data)


def with_wrong_count(config, rng, data: bytes) -> bytes:
    """Sound records of which one count byte is above ``block``."""
    counts, at = [], 0
    while at < len(data):
        at += SCALE_BYTES
        for _ in range(config.blocks):
            counts.append(at + config.dense_bytes)
            at = counts[-1] + 1 + data[counts[-1]]
    made = bytearray(data)
    made[int(rng.choice(counts))] = int(rng.integers(config.block + 1, 256))
    return bytes(made)


def mixed(config, rng, count=120) -> Job:
    job = Job(config, rng)
    for n in range(count):
        tokens = int(rng.integers(1, 5))
        skip, behind = int(rng.choice([0, 0, 1, 3])), int(rng.choice([0, 0, 0, 1, 2]))
        density = rng.choice([0.0, 0.05, 0.1, 0.5, 1.0])
        data = records(config, rng, tokens + skip + behind, density)
        if n % 4 == 1:
            data = damaged(rng, data, config.block)
        if n % 4 == 3:
            data = with_wrong_count(config, rng, data)
        if n % 29 == 11:
            data = b""
        error_at = int(rng.integers(0, len(data))) if n % 5 == 0 and data else None
        job.add(data, tokens, skip, error_at=error_at)
    assert job.bad >= count // 8
    assert job.errors >= 2
    assert job.full >= 2
    return job


def full(config, rng) -> Job:
    """Few outliers, then nearly as many as memory brings: a block in every cycle."""
    job = Job(config, rng)
    data = records(config, rng, 4, 0.05) + records(config, rng, 60, 0.3)
    job.add(data, 64, 0, first=0)
    return job


def skipped(config, rng, skip: int) -> Job:
    """One long skip with few outliers."""
    job = Job(config, rng)
    job.add(records(config, rng, skip + 1, 0.05), 1, skip, first=0)
    return job
