"""VqRowSums against golden.vqllm.product.exact_sums: tiles, splits, buffers of vectors, NaN.

Shown to fail with:

- the sum of the job before not read in the next cycle, or read for another row
- a sum kept at ``first``
- the offset left out; the buffers exchanged a cycle early; a buffer filled while it is in use
- ``bad`` of the buffer before, or of all before; a job that does not wait for its vectors
- the room of the queue ignored; every vector in place 0; ``last`` at each end of a row
- entries above 1 cut; sums two bits short
- the total of a group read before it is written, or that of another group
- ``bad`` of group 0 for all groups; a beat that is not held; the first group of a job ignored
- a buffer that goes on with the group of the one before; a group of more than ``batch`` vectors
- words beyond the room of a vector written, or counted from 0 again; too many vectors not told
- a vector longer than the room not told; the length of the buffer in use; not told to ``bad``
- the row's number, or that of its flags, without bit 5
- sums of a row that groups share, or that go to another group; ``row_end`` once in a job
"""

import dataclasses
import itertools

import numpy as np
import pytest
import torch

from golden.config import ConfigError
from golden.fp16.format import FP16
from golden.vqllm.product import exact_sums
from golden.vqllm.vectors.matrices import uneven_x
from golden.words import layout_field, layout_word, layout_words
from hdl.vqllm.row.config import VqRowSumsConfig
from hdl.vqllm.row.sums import VqRowSums
from tb.simulate.run import simulate

CONFIGS = {
    "default": VqRowSumsConfig(),
    "one_mac": VqRowSumsConfig(macs=1, largest=1, columns=9, rows=5),
    "batch": VqRowSumsConfig(macs=8, largest=4, batch=5, columns=64, rows=12),
    "smollm2": VqRowSumsConfig(macs=32, columns=576, rows=1536),
    "widest": VqRowSumsConfig(macs=256, largest=4, batch=2, columns=512, rows=3),
    "one_row": VqRowSumsConfig(macs=4, largest=1, columns=20, rows=1),
    "one_word": VqRowSumsConfig(macs=16, columns=16, rows=40, batch=3),
    "groups": VqRowSumsConfig(macs=4, batch=3, groups=4, columns=20, rows=4),
    "words": VqRowSumsConfig(macs=4, batch=2, groups=2, columns=20, rows=4, states_words=True),
    "two_groups": VqRowSumsConfig(macs=1, largest=4, groups=2, columns=7, rows=3),
}
LARGEST = 0x7BFF
NONFINITE = (0x7C00, 0xFC00, 0x7C01, 0xFFFF)


def words_of(rng, kind: int, largest: int, *shape) -> np.ndarray:
    """Words of at most ``largest``: any, ordinary, the largest of one sign or of both, few."""
    most = {0: LARGEST, 1: 0x3C00, 2: 0x4000, 4: 0x4400}[largest]
    sign = rng.integers(0, 2, shape) << 15
    ordinary = rng.normal(0, 0.2, shape).astype(np.float16).view(np.uint16).astype(int)
    return (
        rng.integers(0, most + 1, shape) | sign,
        np.where(ordinary & 0x7FFF > most, most, ordinary),
        np.full(shape, most | int(rng.integers(0, 2)) << 15),
        most | sign,
        (rng.integers(0, most + 1, shape) | sign) * (rng.random(shape) < 2 / shape[-1]),
    )[kind]


@dataclasses.dataclass
class Stripe:
    """Rows whose sums leave together: their jobs are on neighbouring columns."""

    rows: int
    cuts: list[int]  # words of x at which jobs begin and end


def stripes(rng, config, *, is_first: bool) -> list[Stripe]:
    most, rows = config.words, config.rows
    found = [Stripe(rows if rows < 20 else 3, [0, most]), Stripe(1, [0, 1]), Stripe(1, [0, most])]
    if most > 1:
        found += [Stripe(1, [0, 1, most]), Stripe(min(2, rows), [0, 1, 2][: most + 1])]
        found.append(Stripe(1, list(range(min(most, 6) + 1))))
        found.append(Stripe(min(rows, 7), [most - 1, most]))
    for _ in range(10):
        count = int(rng.integers(1, min(rows, 6) + 1))
        places = sorted(set(rng.integers(0, most + 1, rng.integers(2, 5)).tolist()))
        size = places[-1] - places[0]
        if len(places) > 1 and count * size < 400:
            found.append(Stripe(count, places))
    if is_first:  # each bit of a row's number, and of the number of rows
        found += [Stripe(rows, [0, 1, 2][: most + 1]), Stripe(max(rows - 1, 1), [0, 1])]
    return found


def elements(word: int, count: int) -> list[int]:
    """The FP16 words of a beat."""
    return [word >> FP16.bits * n & (1 << FP16.bits) - 1 for n in range(count)]


class Words:
    """Words of each stream, buffer by buffer of vectors."""

    def __init__(self, config, rng):
        self.config, self.rng = config, rng
        self.fields = {name: [] for name in ("x", "job", "w", "sum", "mask")}
        self.ends = {name: [] for name in ("x", "job", "w", "sum")}
        self.causes, self.gapless = [], []
        self.held = []  # cycles that each beat of w takes
        self.early = []  # cycles from each sum to that of the row's last group

    def buffer(self, number: int) -> None:
        config, rng = self.config, self.rng
        kind = (1, 2, 0, 3, 4, 1, 0, 4, 0)[number]
        most, stated = config.batch * config.groups, config.words
        uneven = {1: "longest", 4: "many", 7: "all long"}.get(number)
        count = most if number % 2 == 0 else int(rng.integers(1, most + 1))
        x = words_of(rng, kind, 0, count, config.columns)
        if number in (3, 5, 6):
            x[rng.integers(count), rng.integers(config.columns)] = rng.choice(NONFINITE)
        for b, beats in enumerate(x.reshape(count, config.words, config.macs)):
            for n, word in enumerate(beats):
                last = n == config.words - 1
                end = b == count - 1 if last else rng.integers(2)
                self.fields["x"].append({"word": word, "end": end, "last": last})
        if uneven:
            self.spoil_x(count, uneven)
        elif config.states_words and number == 2:  # all vectors have another length than is stated
            stated -= 1
        is_bad = bool(uneven) or stated != config.words
        first = len(self.fields["w"])
        found = stripes(rng, config, is_first=number == 0)
        for n, stripe in enumerate(found[:: 1 if number == 0 else 2]):
            shape = stripe.rows, config.columns
            w = words_of(rng, (1, 2, 0, 3, 4)[(number + n) % 5], config.largest, *shape)
            # All groups at once, or two jobs with some of them
            groups = -(-count // config.batch)
            cut = int(rng.integers(0, groups)) if n % 2 else 0
            for part in filter(len, (range(cut), range(cut, groups))):
                self.stripe(x, w, stripe.cuts, part, is_new=n == 0, stated=stated, is_bad=is_bad)
        self.gapless.append((first, len(self.fields["w"]) - 1))
        for name, ends in self.ends.items():
            ends.append(len(self.fields[name]))

    def spoil_x(self, vectors: int, kind: str) -> None:
        """The last buffer has vectors of another length, or too many."""
        layout, fields = self.config.x_layout, self.fields["x"]
        at = self.ends["x"][-1] if self.ends["x"] else 0
        beats = [layout_word(layout, **field) for field in fields[at:]]
        found = uneven_x(self.rng, self.config, beats, vectors, kind)
        fields[at:] = [
            {name: layout_field(layout, word, name) for name, _ in layout}
            | {"word": elements(layout_field(layout, word, "word"), self.config.macs)}
            for word in found
        ]

    def stripe(self, x, w, cuts, groups: range, *, is_new, stated, is_bad) -> None:
        """The jobs of a stripe for some groups of vectors, and its sums."""
        config, fields, rows = self.config, self.fields, len(w)
        beats, wrong = w.reshape(rows, -1, config.macs), np.zeros(rows, dtype=bool)
        for first, last in itertools.pairwise(cuts):
            is_first, final, done = first == cuts[0], last == cuts[-1], len(fields["w"])
            fields["job"].append({
                "offset": first, "beats": last - first, "rows": rows, "first": is_first,
                "final": final, "next_x": is_new and is_first, "group": groups.start,
                "groups": len(groups), "words": stated,
            })  # fmt: skip
            faults = self.rng.random((rows, last - first)) < 0.2 / (last - first)
            wrong |= faults.any(1)
            fields["w"] += [
                {"word": beat, "wrong": int(fault), "last": self.rng.integers(2)}
                for beat, fault in zip(beats[:, first:last].reshape(-1, config.macs),
                                       faults.flatten(), strict=True)
            ]  # fmt: skip
            self.held += [len(groups)] * (len(fields["w"]) - done)
            if final:
                ends = range(done + last - first - 1, len(fields["w"]), last - first)
                self.causes += np.repeat(ends, len(groups)).tolist()
                self.early += [*range(len(groups))[::-1]] * rows
        some = slice(cuts[0] * config.macs, cuts[-1] * config.macs)
        sums = exact_sums(torch.tensor(x[:, some]), torch.tensor(w[:, some])).integers()
        bad = ((x & FP16.infinity) == FP16.infinity).any(1) | is_bad
        for r, group in itertools.product(range(rows), groups):
            value, known = [0] * config.batch, [0] * config.batch
            places = range(group * config.batch, min(len(x), (group + 1) * config.batch))
            for b, n in enumerate(places):
                value[b], known[b] = sums[n * rows + r], 0 if bad[n] or wrong[r] else -1
            mask = sum(int(bad[n] | wrong[r]) << b for b, n in enumerate(places))
            ends = group == groups[-1]
            last = r == rows - 1 and ends
            fields["sum"].append({"value": value, "bad": mask, "row_end": ends, "last": last})
            fields["mask"].append(
                {"value": known, "bad": (1 << len(places)) - 1, "row_end": 1, "last": 1}
            )


def stream_words(layout, rows: list[dict]) -> np.ndarray:
    columns = {name: np.array([row[name] for row in rows], dtype=object) for name, _ in layout}
    return layout_words(layout, **columns)


@pytest.mark.telling("one_mac", "batch", "groups", "words", "two_groups")
@pytest.mark.parametrize("name", CONFIGS)
def test_row_sums(name, seed):
    config = CONFIGS[name]
    words = Words(config, np.random.default_rng([seed, 162]))
    for number in range(9):
        words.buffer(number)
    layouts = {name: getattr(config, f"{name}_layout") for name in words.ends}
    layouts["mask"] = config.sum_layout
    simulate(
        VqRowSums(config),
        "tb.vqllm.tb_row_sums",
        vectors={each: stream_words(layouts[each], rows) for each, rows in words.fields.items()},
        params={
            "packets": words.ends, "causes": words.causes, "early": words.early,
            "gapless": words.gapless, "held": words.held,
        },
        seed=seed,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"groups": 64, "rows": 1 << 15},
            "rows must be of at most 2**20 words in a RAM of 64 groups, not 32768",
        ),
        (
            {"groups": 64, "columns": 16 << 14},
            "columns must be of at most 2**20 words in a RAM of 64 groups, not 262144",
        ),
        ({"columns": 100}, "columns must be a multiple of macs = 16, not 100"),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ConfigError) as error:
        VqRowSumsConfig(**wrong)
    assert str(error.value) == f"VqRowSumsConfig.{message}"
