"""Vectors for OakenTokenWriter, and the records of golden."""

import numpy as np

from golden.oaken.format import Group
from golden.oaken.quantize import pack_groups, sparse_records
from golden.oaken.vectors.dequant_tokens import as_bytes, some_tokens
from golden.words import layout_word

STREAMS = ("start", "dense", "sparse", "record", "w")


class Job:
    """Words in and golden words out of some vectors, one after the other."""

    def __init__(self, config, rng):
        self.config, self.rng = config, rng
        self.words: dict[str, list[int]] = {name: [] for name in STREAMS}
        self.ends: list[list[int]] = []  # words of each stream after each vector

    def void(self) -> None:
        config, rng = self.config, self.rng
        scale = rng.integers(0, 1 << 16, 6).tolist()
        self.words["start"].append(layout_word(config.start_layout, void=1, scale=scale))
        self.words["record"] += [0] * config.kv.groups
        self._end()

    def vector(self, encoded, token: int) -> None:
        """One of the vectors of ``encoded``."""
        config, kv, words = self.config, self.config.kv, self.words
        scale = encoded.scale[token].tolist()
        words["start"].append(layout_word(config.start_layout, scale=scale))
        beats = encoded.code[token].reshape(-1, config.lanes).tolist()
        for n, beat in enumerate(beats):
            last = n == len(beats) - 1
            words["dense"].append(layout_word(config.dense_layout, code=beat, last=last))
        blocks = sparse_records(encoded, kv.block, kv.block)[token]
        for n, block in enumerate(blocks):
            fields = {"bytes": len(block), "last": n == len(blocks) - 1}
            sparse = layout_word(
                config.sparse_layout, data=int.from_bytes(block, "little"), **fields
            )
            words["sparse"].append(sparse)
        for record in pack_groups(encoded, token, kv.groups, kv.block):
            words["record"].append(len(record))
            size = config.word_bytes
            for n in range(0, len(record), size):
                data, last = int.from_bytes(record[n : n + size], "little"), n + size >= len(record)
                words["w"].append(layout_word(config.w_layout, data=data, last=last))
        self._end()

    def _end(self) -> None:
        self.ends.append([len(self.words[name]) for name in STREAMS])

    def vectors(self, phase: str) -> dict:
        config = self.config
        layouts = (
            config.start_layout, config.dense_layout, config.sparse_layout, config.record_layout,
            config.w_layout,
        )  # fmt: skip
        return {
            f"{phase}.{name}": as_bytes(self.words[name], layout.size)
            for name, layout in zip(STREAMS, layouts, strict=True)
        } | {f"{phase}.ends": np.array(self.ends)}


def mixed(config, rng, count=40) -> Job:
    """Vectors of every share of outliers, and some without data, also one after the other."""
    job = Job(config, rng)
    encoded, _ = some_tokens(rng, count, config.kv.elements, config.kv.block)
    # The longest records in a row, and the shortest.
    encoded.group[:3], encoded.group[3] = int(Group.OUTER), int(Group.MIDDLE)
    encoded.fifth[3] = 0
    for token in range(count):
        for _ in range(int(rng.choice([0, 0, 0, 1, 2]))):
            job.void()
        job.vector(encoded, token)
    return job


def full(config, rng, count=12) -> Job:
    """Vectors with few outliers, whose words leave as fast as the blocks come."""
    job = Job(config, rng)
    encoded, _ = some_tokens(rng, 12 * count, config.kv.elements, config.kv.block)
    share = (encoded.group != 0).double().mean(-1)
    for token in share.argsort()[:count].tolist():
        job.vector(encoded, token)
    return job
