"""Transfers for OakenZeroInsert, sound ones and damaged ones, with the beats of golden."""

import numpy as np

from golden.oaken.dequantize import insert_zeros
from golden.oaken.format import entry
from golden.oaken.vectors.dequant_tokens import as_bytes, damaged, transfer
from golden.words import layout_word


def records(rng, blocks: int, block: int, density: float) -> bytes:
    """``blocks`` blocks of random outliers."""
    data = bytearray()
    for _ in range(blocks):
        index = np.flatnonzero(rng.random(block) < density)
        data.append(len(index))
        data += bytes(entry(int(i), *(int(b) for b in rng.integers(0, 2, 2))) for i in index)
    return bytes(data)


class Job:
    """Requests, words and golden beats of some consecutive transfers."""

    def __init__(self, config, rng):
        self.config, self.rng = config, rng
        self.requests, self.words, self.beats = [], [], []
        self.ends = []  # words of request, sparse and o after each request
        self.bad = self.errors = 0

    def add(self, data: bytes, tokens: int, skip: int, blocks: int, **how) -> None:
        config = self.config
        words, errors = transfer(self.rng, data, config.data_bits // 8, **how)
        beats = insert_zeros(
            data, errors, tokens=tokens, skip=skip, blocks=blocks, block=config.block,
            lanes=config.lanes,
        ) if blocks else []  # fmt: skip
        self.requests.append(
            layout_word(config.request_layout, tokens=tokens, skip=skip, blocks=blocks)
        )
        self.words += words
        element = config.o_layout["outlier"].shape.elem_shape
        for beat in beats:
            outlier = [
                layout_word(element, present=present, group=group, fifth=fifth)
                for present, group, fifth in beat.outlier
            ]
            fields = {"bad": beat.bad, "error": beat.error, "last": beat.last}
            self.beats.append(layout_word(config.o_layout, outlier=outlier, **fields))
        self.ends.append([len(self.requests), len(self.words), len(self.beats)])
        self.bad += any(beat.bad for beat in beats)
        self.errors += any(beat.error and not beat.bad for beat in beats)

    def vectors(self, phase: str) -> dict:
        config = self.config
        return {
            f"{phase}.request": as_bytes(self.requests, config.request_layout.size),
            f"{phase}.sparse": as_bytes(self.words, config.sparse_layout.size),
            f"{phase}.o": as_bytes(self.beats, config.o_layout.size),
            f"{phase}.ends": np.array(self.ends),
        }


def mixed(config, rng, count=250) -> Job:
    job = Job(config, rng)
    for n in range(count):
        tokens = int(rng.integers(1, 5))
        blocks = int(rng.integers(1, min(config.blocks_max, 4) + 1))
        skip = int(rng.choice([0, 0, 1, 3]))
        density = rng.choice([0.0, 0.05, 0.1, 0.5, 1.0])
        behind = int(rng.choice([0, 0, 0, 1, 7]))
        data = records(rng, (tokens + skip + behind) * blocks, config.block, density)
        if n % 2:
            data = damaged(rng, data, config.block)
        if n % 17 == 5:
            tokens, blocks = (0, blocks) if n % 2 else (tokens, 0)
        if n % 29 == 11:
            data = b""  # one word without bytes, from byte 0 or later
        error_at = int(rng.integers(0, len(data) + 1)) if n % 5 == 0 and data else None
        first = 0 if n % 58 == 11 else None
        job.add(data, tokens, skip, blocks, first=first, error_at=error_at)
    assert job.bad >= count // 8
    assert job.errors >= 2
    return job
