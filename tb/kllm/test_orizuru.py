"""KllmOrizuru against golden.kllm.orizuru.pop_token: order, ties, faults, cycles.

Shown to fail:

- equal keys won by the later node while loading;
- a popped leaf left in its row;
- stale rows or stale leaves beyond the token taken for its own;
- the min tree reading in the cycle of the max tree;
- leaves that stay from the token before (parallel);
- one bit of one key of one unit that sticks, or follows another bit (parallel).
"""

import numpy as np
import pytest
import torch

from golden.fp16.format import FP16
from golden.fp16.vectors import random_words
from golden.kllm.format import OrizuruStatus, beats
from golden.kllm.orizuru import pop_token
from hdl.kllm.orizuru import KllmOrizuru, KllmOrizuruConfig
from tb.kllm.support.orizuru_tokens import token_words
from tb.run import simulate
from tb.words import layout_words

# Configuration, tokens of each length, most pops of a tree
CASES = {
    "shared_256": (
        KllmOrizuruConfig(n_max=256, architecture="shared"),
        {1: 30, 2: 60, 8: 250, 16: 200, 17: 150, 100: 400, 255: 100, 256: 300},
        9,
    ),
    "shared_576": (
        KllmOrizuruConfig(n_max=576, elements=8, architecture="shared"),
        {8: 60, 100: 60, 256: 20, 257: 20, 576: 60},
        12,
    ),
    "shared_4096": (
        KllmOrizuruConfig(n_max=4096, architecture="shared"),
        {100: 30, 576: 20, 4096: 24},
        20,
    ),
    "shared_5000": (
        KllmOrizuruConfig(n_max=5000, architecture="shared"),
        {8: 10, 300: 10, 4097: 3, 5000: 4},
        20,
    ),
    "shared_16": (
        KllmOrizuruConfig(n_max=16, elements=4, architecture="shared"),
        {1: 40, 3: 100, 8: 150, 16: 200},
        15,
    ),
    "shared_one_word": (
        KllmOrizuruConfig(n_max=100, elements=1, architecture="shared"),
        {1: 10, 8: 40, 100: 20},
        60,
    ),
    "parallel_256": (
        KllmOrizuruConfig(n_max=256, architecture="parallel"),
        {1: 20, 8: 150, 17: 60, 100: 150, 256: 150},
        9,
    ),
    "parallel_4096": (
        KllmOrizuruConfig(n_max=4096, architecture="parallel"),
        {100: 6, 576: 3, 4096: 4},
        20,
    ),
    "parallel_576": (
        KllmOrizuruConfig(n_max=576, elements=8, architecture="parallel"),
        {8: 40, 100: 40, 257: 15, 576: 30},
        12,
    ),
}


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
    rng = np.random.default_rng([seed, 21])
    tokens = tokens_of(rng, config, lengths, most)
    streams = {name: [] for name in ("job", "word", "last", "pop_max", "pop_min", "done")}
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


@pytest.mark.parametrize("name", CASES)
def test_orizuru(name, seed):
    config, lengths, most = CASES[name]
    vectors, counts, seen = orizuru_vectors(config, lengths, most, seed)
    assert seen == OrizuruStatus(31)
    cycles = sum(token[0] for token in counts) / len(counts)
    flow = max(6, min(len(counts), int(1500 / cycles)))
    params = {
        "tokens": counts,
        "flow": flow,
        "slow": max(4, flow // 5),
        "cuts": [*range(1, 60, 4), *(int(n * cycles) for n in (1, 2, 3))],
    }
    simulate(KllmOrizuru(config), "tb.kllm.tb_orizuru", vectors=vectors, params=params, seed=seed)


def test_units():
    assert KllmOrizuruConfig(architecture="parallel").units == 273
    assert KllmOrizuruConfig(architecture="parallel").trees_config.nodes == (256, 16, 1)
    assert KllmOrizuruConfig(n_max=576).trees_config.nodes == (36, 3, 1)
    assert KllmOrizuruConfig(architecture="shared").units == 2


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"n_max": 1}, "n_max must be 2..65536, not 1"),
        ({"elements": 12}, "elements must be a power of two in 1..16, not 12"),
        ({"architecture": "tree"}, "architecture must be parallel or shared, not 'tree'"),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ValueError, match="must be") as error:
        KllmOrizuruConfig(**wrong)
    assert str(error.value) == f"KllmOrizuruConfig.{message}"
