"""Runs of jobs for AttentionStream, and what golden makes of them."""

import dataclasses

import numpy as np
import torch

from golden.attention.exact import quotients
from golden.attention.format import PRODUCT_GRID, cap_operand
from golden.attention.stream import NO_SINK, attend, phases
from golden.fp16.format import FP16
from golden.fp16.limbs import from_shifted
from golden.words import layout_word

LARGEST = 0x7BFF
SPECIALS = (FP16.infinity, FP16.sign_bit | FP16.infinity, 0x7C01, 0x7E00, 0xFFFF)
KINDS = 17
SOUND = (0, 1, 3, 4, 5, 7, 14, 15)  # kinds without a fault of a row


@dataclasses.dataclass
class Job:
    """A job's words, of one head or of several; beats that come with ``error``."""

    q: np.ndarray  # (L, d), or (heads, L, d)
    k: np.ndarray  # (rows, d), or (rows, heads, d)
    v: np.ndarray
    errors: np.ndarray  # (2, rows, beats) of K and V


def of_heads(jobs: list[Job]) -> Job:
    """A job of several heads, from as many of one head."""
    q = np.stack([job.q for job in jobs])
    k, v = (np.stack([getattr(job, name) for job in jobs], axis=1) for name in ("k", "v"))
    return Job(q, k, v, np.concatenate([job.errors for job in jobs], axis=2))


def normal(rng, spread: float, *shape) -> np.ndarray:
    return rng.normal(0, spread, shape).astype(np.float16).view(np.uint16).astype(int)


def finite(rng, *shape) -> np.ndarray:
    """Any finite words."""
    words = rng.integers(0, 1 << 16, shape)
    return np.where(words & FP16.infinity == FP16.infinity, words ^ 0x4000, words)


def one_of(rng, words: np.ndarray) -> tuple:
    """A place in ``words``: the first, the last, or any."""
    ends = [tuple(0 for _ in words.shape), tuple(size - 1 for size in words.shape)]
    return (*ends, tuple(int(rng.integers(0, size)) for size in words.shape))[rng.integers(0, 3)]


def tied_scores(rng, queries: int, rows: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """(q, k) whose scores are ties of the rounding, by terms of both signs.

    A unit of 2**-48 decides those with an odd number, and not those with an even one. Every element
    has a term, in a random place.
    """
    signs = rng.integers(0, 2, size)
    k = normal(rng, 500, rows, size) & ~FP16.sign_bit
    k[:, 3::2] = k[:, 2:-1:2] | FP16.sign_bit
    k[:, 0] = (1025 + rng.integers(0, 8, rows)).astype(np.float16).view(np.uint16)
    k[:, 1] = 0x3800  # a half
    q = np.full((queries, size), 0x3C00) - 0x400 * np.arange(queries)[:, None]  # 1, 1/2, 1/4, ...
    place = rng.permutation(size)
    return (q | signs << 15)[:, place], (k ^ signs << 15)[:, place]


def least_sums(rng, queries: int, rows: int, size: int) -> tuple[np.ndarray, ...]:
    """(q, k, v) in whose outputs a unit of 2**-48 of W decides, with terms of both signs.

    One row has a score of 0, all others have one of -17: a weight of 2**-24.
    """
    q, k = np.zeros((queries, size), dtype=int), np.zeros((rows, size), dtype=int)
    v = np.zeros((rows, size), dtype=int)
    place = rng.integers(0, size)
    q[:, place], k[:, place] = 0x3C00, 0xCC40
    first, high, middle, low = rng.permutation(rows)[:4]
    k[first, place] = 0
    # The least W that an output shows: about half of its last place.
    candidates = torch.arange((1 << 23) - 64, (1 << 23) + 2 * rows)
    total = torch.tensor([(1 << 24) + rows - 1])
    sums = from_shifted([(candidates[None], 0)])
    shown = quotients(sums, PRODUCT_GRID, total, torch.tensor([False]))[0] != 0
    least = int(candidates[shown][0]) - rng.integers(0, 2, size)
    # In three digits that FP16 has; the digit below the highest is negative.
    parts = least // 8192 + 1, least % 8192 // 64 - 128, least % 64
    for row, part, unit in zip((high, middle, low), parts, (8192, 64, 1), strict=True):
        v[row] = (part * unit * 2.0**-24).astype(np.float16).view(np.uint16)
    return q, k, v ^ rng.integers(0, 2, size) << 15


def job_words(rng, config, kind: int, rows: int) -> Job:
    """A job of one head: ordinary, wide, largest, subnormal, faulty, and others by ``kind``."""
    size, queries = config.head_dim, config.queries
    q = normal(rng, size**-0.5, queries, size)
    k, v = normal(rng, 1.5, rows, size), normal(rng, 1, rows, size)
    errors = np.zeros((2, rows, config.steps), dtype=bool)
    signs = FP16.sign_bit
    if kind == 1:  # V of any size, scores far apart
        q, v = normal(rng, 2, queries, size), finite(rng, rows, size)
    elif kind == 2:  # the largest sums: all weights are 1
        k, v = np.zeros((rows, size), dtype=int), np.full((rows, size), LARGEST)
        v[:, rng.random(size) < 0.5] |= signs
    elif kind == 3:  # sums of products that nearly cancel, after the largest partial sum
        q, k = np.full((queries, size), LARGEST), np.full((rows, size), LARGEST)
        k[:, size // 2 :] |= signs
        q[:, -1] = k[:, 0] = 0
        q[:, 0] = normal(rng, 1, queries)
        k[:, -1] = LARGEST | signs
        k[:, 1] = normal(rng, 1e-3, rows)
        q[:, 1] = 0x3C00
        q[:, size // 2] = 0
    elif kind == 4:  # subnormal, with any
        q = rng.integers(0, 0x400, (queries, size)) | rng.integers(0, 2, (queries, size)) << 15
        k = finite(rng, rows, size)
        v = rng.integers(0, 0x400, (rows, size)) | rng.integers(0, 2, (rows, size)) << 15
    elif kind == 5:  # one product decides, of any binade
        k, q = finite(rng, rows, size), np.zeros((queries, size), dtype=int)
        for query in range(queries):
            q[query, rng.integers(0, size)] = 0x0800 + int(rng.integers(0, 0x3000))
    elif kind == 6:  # scores of -infinity in one query, of all rows or of some
        q[rng.integers(0, queries)] = LARGEST
        k |= signs
        if rng.random() < 0.5:
            k[rng.random(rows) < 0.5] &= signs | 0x07FF
    elif kind == 7:  # +infinity in one query, in one row
        q[rng.integers(0, queries)] = LARGEST
        k &= 0x07FF
        if rows:
            k[rng.integers(0, rows)] = 0x3C00
    elif kind == 8:  # with small keys, so that the score is finite by chance
        q[one_of(rng, q)] = rng.choice(SPECIALS)
        k &= signs | 0x03FF
    elif kind in (9, 10) and rows:
        words = k if kind == 9 else v
        words[one_of(rng, words)] = rng.choice(SPECIALS)
    elif kind == 11 and rows:
        errors[one_of(rng, errors)] = True
    elif kind == 12:  # everything at once
        q[one_of(rng, q)] = rng.choice(SPECIALS)
        for words in (k, v, errors):
            if rows:
                words[one_of(rng, words)] = rng.choice(SPECIALS)
    elif kind == 13:  # constant
        q[:], k[:], v[:] = q[0, 0], 0x3C00, rng.integers(0, 0x7C00)
    elif kind == 14 and rows:
        q, k = tied_scores(rng, queries, rows, size)
    elif kind == 15 and rows >= 4:
        q, k, v = least_sums(rng, queries, rows, size)
    elif kind == 16 and rows:  # the lowest sums of products, and one score of 0
        q[:], k[:] = LARGEST, LARGEST | signs
        k[rng.integers(0, rows)] = 0
    return Job(q & 0xFFFF, k & 0xFFFF, v & 0xFFFF, errors)


def run_rows(config, rng, n: int) -> list[int]:
    """Rows of the jobs of run n: the ends of the range, refused ones, and others."""
    most = config.max_rows
    few = min(most, 3)
    ends = [
        [most], [1], [most, most], [0], [1, 1, 1], [few, 0, few], [most + 1, 1], [1, most + 1, 0],
        [0, 0, 0, 0, 0, most],
    ]  # fmt: skip
    if n < len(ends):
        return ends[n]
    lengths = rng.integers(1, most + 1, int(rng.integers(1, 5))).tolist()
    return [min(length, 12) if rng.random() < 0.3 else length for length in lengths]


def sink_beats(config, sinks, rest: int) -> list[list[int]]:
    """Beats of q with the sinks of a job; ``rest``: what the last one has beyond them."""
    words = [int(word) for word in np.asarray(sinks).reshape(-1)]
    words += [int(rest)] * (-len(words) % config.width)
    return [words[n : n + config.width] for n in range(0, len(words), config.width)]


def draw_cap(rng) -> int:
    """None in a third of the jobs, one that some scores reach, or any words."""
    kind = int(rng.integers(0, 6))
    if kind < 2:
        return int(rng.integers(0, 1 << 16)) << 16 if kind else 0
    if kind == 5:
        return int(rng.integers(0, 1 << 32))
    return cap_operand(float(2 ** rng.uniform(-4, 7)))


def draw_sinks(rng, heads: int, queries: int) -> np.ndarray:
    """(heads, queries) words: none, near the scores, far above or below them, a few faulty."""
    shape = heads, queries
    kind = int(rng.integers(0, 8))
    if kind == 0:
        return np.full(shape, NO_SINK)
    sinks = normal(rng, 2, *shape)
    if kind == 1:
        sinks = finite(rng, *shape)
    elif kind == 2:
        sinks = rng.choice([LARGEST, LARGEST | FP16.sign_bit, 0, FP16.sign_bit, NO_SINK], shape)
    elif kind == 3:
        sinks[one_of(rng, sinks)] = rng.choice(SPECIALS)
    return sinks


def run_vectors(config, rng, runs: int, usual: bool = False) -> tuple[dict, dict]:
    """Words of every stream; by stream how many words are done after each run, and its rows.

    usual: two jobs of the most rows in each run, of normal words.
    """
    words: dict = {name: [] for name in ("job", "q", "rows", "o", "status")}
    ends: dict = {name: [] for name in words}
    counts: list[list[int]] = []
    kinds: list[int] = []
    by_beat = (config.heads, config.queries, config.steps, config.lanes)
    for n in range(runs):
        rows = [config.max_rows] * 2 if usual else run_rows(config, rng, n)
        counts.append(rows)
        jobs = []
        for place, count in enumerate(rows):
            heads = []
            for head in range(config.heads):
                if not kinds:  # each kind as often
                    kinds = rng.permutation(KINDS).tolist()
                # A fault of a row is one of all heads, and would hide what the others do.
                kind = (2, 3, 15)[n] if n < 3 else kinds.pop() if not head else rng.choice(SOUND)
                heads.append(job_words(rng, config, 0 if usual else kind, count))
            job = of_heads([heads[k] for k in rng.permutation(config.heads)])
            jobs.append(job)
            tag = int(rng.integers(0, 256))
            is_last = place == len(rows) - 1
            cap = draw_cap(rng) if config.caps else 0
            rules = {"cap": cap} if config.caps else {}
            words["job"].append(
                layout_word(config.job_layout, rows=count, tag=tag, last=is_last, **rules)
            )
            sinks = draw_sinks(rng, config.heads, config.queries) if config.sinks else None
            if sinks is not None:
                words["q"] += [
                    layout_word(config.q_layout, word=beat)
                    for beat in sink_beats(config, sinks, rng.integers(0, 1 << 16))
                ]
            beats = job.q.reshape(by_beat).transpose(0, 2, 1, 3).reshape(-1, config.width)
            words["q"] += [layout_word(config.q_layout, word=beat) for beat in beats.tolist()]
            q, k, v = (torch.tensor(x) for x in (job.q, job.k, job.v))
            found = attend(
                q, k, v, config.max_rows, bool(job.errors.any()), cap,
                None if sinks is None else torch.tensor(sinks),
            )  # fmt: skip
            outputs = found.words.numpy().reshape(by_beat).transpose(0, 2, 1, 3)
            outputs = outputs.reshape(-1, config.width)
            words["o"] += [
                layout_word(config.o_layout, word=beat, last=k == len(outputs) - 1)
                for k, beat in enumerate(outputs.tolist())
            ]
            bad = sum(int(flag) << k for k, flag in enumerate(found.bad.flatten()))
            words["status"].append(
                layout_word(config.status_layout, tag=tag, status=int(found.status), bad=bad)
            )
        for is_value, of in phases(rows):
            x = (jobs[of].v if is_value else jobs[of].k).reshape(-1, config.lanes)
            errors = jobs[of].errors[int(is_value)].reshape(-1)
            words["rows"] += [
                layout_word(config.rows_layout, x=beat, error=bool(error))
                for beat, error in zip(x.tolist(), errors, strict=True)
            ]
        for name in words:
            ends[name].append(len(words[name]))
    return words, {"ends": ends, "counts": counts}
