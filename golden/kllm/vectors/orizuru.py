"""Tokens for KllmOrizuru, sound ones and faulty ones, with the pops of golden."""

import numpy as np
import torch

from golden.fp16.format import FP16
from golden.fp16.vectors.columns import random_words
from golden.kllm.format import OrizuruStatus, beats
from golden.kllm.orizuru import pop_token
from golden.kllm.vectors.orizuru_tokens import token_words
from golden.words import layout_words

UNIT = 16  # keys that a unit compares


def ranks_near_in_each_unit(rng, count: int) -> np.ndarray:
    """A permutation in which the keys of each unit, on each level, are next to each other."""
    if count <= UNIT:
        return rng.permutation(count)
    sizes = np.minimum(UNIT, count - np.arange(0, count, UNIT))
    places = ranks_near_in_each_unit(rng, len(sizes))
    starts = np.zeros_like(sizes)
    starts[np.argsort(places)] = np.cumsum([0, *sizes[np.argsort(places)][:-1]])
    return np.concatenate(
        [start + rng.permutation(size) for start, size in zip(starts, sizes, strict=True)]
    )


def tokens_of(rng, config, lengths, most):
    """[(words as sent, length, k_max, k_min)]: sound ones and every fault, mixed."""
    elements, n_max = config.elements, config.n_max
    tokens = []

    def send(words, length, k_max, k_min, sent=None):
        sent = beats(length, elements) if sent is None else sent
        packet = random_words(rng, sent * elements, FP16).astype(np.int64)  # NaN among the padding
        packet[: len(words)] = words[: len(packet)]
        tokens.append((packet, length, k_max, k_min))

    for length, count in lengths.items():
        for words in token_words(rng, count, length):
            k_max = int(rng.integers(0, min(length, most + 1)))
            k_min = int(rng.integers(0, min(length - k_max, most + 1)))
            if length > most and rng.random() < 0.5:
                k_max = k_min = min(most, (length - 1) // 2)
            elif rng.random() < 0.2:
                k_max = min(most, length - 1)  # all but one of a short token
                k_min = min(most, length - 1 - k_max)
            send(words, length, k_max, k_min)
        words = token_words(rng, 1, length)[0]
        send(words, length, length, 0)
        send(words, length, 65535, 65535)
        send(words, length, 0, length)
        for place in {0, length - 1, int(rng.integers(0, length))}:
            spoilt = words.copy()
            spoilt[place] = rng.choice([0x7C01, 0x7E00, 0xFC01, 0xFFFF])
            send(spoilt, length, 0, 0)
        send(words, length, 0, 0, beats(length, elements) + int(rng.integers(1, 40)))
        if beats(length, elements) > 1:
            send(words, length, 0, 0, int(rng.integers(1, beats(length, elements))))
    words = token_words(rng, 1, n_max + 1)[0]
    send(words, n_max + 1, 1, 1)
    send(words, n_max + 1, 1, 1, 2)
    send(words, 65535, 1, 1, 3)
    for k in (0, 1):
        tokens.append((np.zeros(0, dtype=np.int64), 0, k, k))
    tokens = [tokens[n] for n in rng.permutation(len(tokens))]
    if config.architecture == "parallel":  # each tree pops half of the elements, in every unit
        for ranks in (rng.permutation(n_max), ranks_near_in_each_unit(rng, n_max)):
            words = int(rng.integers(0, 0x7C00 - n_max)) + ranks
            for each in (words, words ^ 0x8000):
                send(each, n_max, (n_max - 1) // 2, n_max // 2)
    return tokens


def orizuru_vectors(config, lengths, most, seed):
    """(vectors, params, statuses seen)"""
    return _vectors(config, tokens_of(np.random.default_rng([seed, 21]), config, lengths, most))


def sound_vectors(config, words: np.ndarray, pops: int):
    """(vectors, params) of the rows of ``words``, ``pops`` of each popped from either end."""
    return _vectors(config, [(row, len(row), pops, pops) for row in words])[:2]


def _vectors(config, tokens):
    streams: dict[str, list] = {
        name: [] for name in ("job", "word", "last", "pop_max", "pop_min", "done")
    }
    counts, seen = [], OrizuruStatus(0)
    for words, length, k_max, k_min in tokens:
        golden = pop_token(
            torch.as_tensor(words), length, k_max, k_min,
            n_max=config.n_max, elements=config.elements,
        )  # fmt: skip
        seen |= golden.status
        sent = len(words) // config.elements
        streams["job"].append((length, k_max, k_min))
        streams["word"] += list(words.reshape(sent, config.elements))
        streams["last"] += [beat == sent - 1 for beat in range(sent)]
        popped = golden.largest_pops, golden.smallest_pops
        for name, pops in zip(("pop_max", "pop_min"), popped, strict=True):
            streams[name] += [(*pop, n == len(pops) - 1) for n, pop in enumerate(pops)]
        streams["done"].append((golden.largest, golden.smallest, golden.scale, int(golden.status)))
        counts.append((sent, *map(len, popped), not golden.status))
    columns = {
        name: [np.array(column) for column in zip(*streams[name], strict=True)]
        for name in ("job", "pop_max", "pop_min", "done")
    }
    pop = config.pop_layout, ("index", "word", "last")
    fields = {
        "job": (config.job_layout, ("length", "k_max", "k_min")),
        "pop_max": pop,
        "pop_min": pop,
        "done": (config.done_layout, ("largest", "smallest", "scale", "status")),
    }
    vectors = {}
    for name, (layout, names) in fields.items():
        vectors[name] = layout_words(layout, **dict(zip(names, columns[name], strict=True)))
    vectors["x"] = layout_words(config.x_layout, word=streams["word"], last=streams["last"])
    return vectors, counts, seen
