"""Loads of codebooks, sound and faulty, and rows of codes that use them."""

import dataclasses

import numpy as np
import torch

from golden.fp16.format import FP16
from golden.fp16.ops import bits_from_float, float_from_bits
from golden.index.format import SCALE_EXPONENT_MAX, SCALE_EXPONENT_MIN, CodebookFault
from golden.qet.config import LIMIT, QetShape, TileShape, swap_bits
from golden.qet.format import RowFault
from golden.qet.matrix import QetMatrix, StageCodes, encode
from golden.qet.swap import maps_of_words, words_of_maps
from golden.qet.timing import encoder
from golden.words import layout_words

_FAULTS = (
    "too many entries", "no entries", "low", "low above", "high", "short", "a stage short", "long",
    "nan", "infinity", "large", "exponent",
)  # fmt: skip


@dataclasses.dataclass
class Books:
    """Codebooks of one load. Of each stage: entries (groups, k, group), low, step."""

    entries: list[np.ndarray]
    low: list[int]
    step: list[int]
    exponent: int

    def info(self) -> dict[str, int]:
        found = {"exponent": self.exponent}
        for n, entries in enumerate(self.entries):
            found |= {f"entries_{n}": entries.shape[1], f"low_{n}": self.low[n]}
            found[f"step_{n}"] = self.step[n]
        return found

    def words(self) -> list[np.ndarray]:
        """(groups, group) of each word of the load."""
        return [entries[:, j] for entries in self.entries for j in range(entries.shape[1])]


def books_of(shape: TileShape, rng, kind: int) -> Books:
    """kind 0: the most entries. 1: one. 2: ranges at their ends. Others: random ones.

    kind 2 has the largest exponent, 4 the smallest.
    """
    entries, lows, steps = [], [], []
    most = (1 << shape.entry_bits) - 1
    for n, stage in enumerate(shape.stages):
        k = {0: stage.entries, 1: 1}.get(kind) or int(rng.integers(1, stage.entries + 1))
        size = shape.groups, k, shape.group
        low = step = 0
        if shape.entry_bits:
            low = int(rng.integers(-LIMIT, LIMIT + 1))
            if kind == 2:
                low = (-LIMIT, LIMIT, 0)[n % 3]
            highest = (LIMIT - low) // most + 1  # a part more than -2..2 has
            step = highest if kind == 2 else int(rng.integers(0, highest + 1) * rng.random() ** 3)
            values = rng.integers(0, most + 1, size)
            if kind == 2:
                values = rng.choice([0, 1, most - 1, most], size)
        else:
            values = rng.integers(0, 0x4001, size) | rng.integers(0, 2, size) << 15
            if kind == 2:
                # 2, and what is left of an infinity.
                ends = 0x4000, 0xC000, 0x3FFF, 0xBFFF
                values = rng.choice([0, 0x8000, 1, 0x8001, 0x3FF, 0x400, *ends, *ends], size)
        entries.append(values)
        lows.append(low)
        steps.append(step)
    exponent = int(rng.integers(SCALE_EXPONENT_MIN, SCALE_EXPONENT_MAX + 1))
    exponent = {2: SCALE_EXPONENT_MAX, 4: SCALE_EXPONENT_MIN}.get(kind, exponent)
    return Books(entries, lows, steps, exponent)


def matrix_of(shape: TileShape, books: Books, codes: list, maps: list) -> QetMatrix:
    """One tile as a matrix. codes: by stage (rows, groups); maps: (rows, networks, bits)."""
    rows = len(codes[0])
    stages = tuple(
        dataclasses.replace(stage, entries=entries.shape[1])
        for stage, entries in zip(shape.stages, books.entries, strict=True)
    )
    whole = QetShape(
        rows=rows, columns=shape.columns, element_bits=16, group=shape.group, stages=stages,
        entry_bits=shape.entry_bits,
    )  # fmt: skip
    made = [
        StageCodes(
            stage,
            torch.tensor(entries),
            torch.tensor([[low, step]] if shape.entry_bits else []).reshape(-1, 2),
            torch.tensor(code),
            maps_of_words(torch.tensor(bits).bool(), stage.levels),
        )
        for stage, entries, low, step, code, bits in zip(
            stages, books.entries, books.low, books.step, codes, maps, strict=True
        )
    ]
    return QetMatrix(whole, tuple(made), books.exponent)


def decoded(shape: TileShape, books: Books, codes: list, maps: list) -> np.ndarray:
    """(rows, columns) words of a tile."""
    return matrix_of(shape, books, codes, maps).words().numpy()


def damaged(config, books: Books, fault: str, rng) -> tuple[dict, list, int] | None:
    """(info, words, verdict) of a load with a fault; None: the tile cannot have it."""
    shape, info, words = config.shape, books.info(), books.words()
    n = int(rng.integers(len(shape.stages)))
    if fault in ("no entries", "too many entries"):
        # As many words as the numbers say, or so many that none fits the buffer of the stage.
        value = 0 if fault == "no entries" else shape.stages[n].entries + 1
        if value >> shape.stages[n].entries.bit_length():
            return None
        info[f"entries_{n}"] = value
        size = value or 2 * shape.stages[n].entries
        entries = list(books.entries)
        entries[n] = rng.choice(entries[n], size, axis=1)
        words = dataclasses.replace(books, entries=entries).words()
    elif fault in ("low", "low above", "high"):
        if not shape.entry_bits:
            return None
        most = (1 << shape.entry_bits) - 1
        step = max(2, info[f"step_{n}"]) if fault == "high" else 0
        ends = {"low": -LIMIT - 1, "low above": LIMIT + 1, "high": LIMIT + most + 1 - step * most}
        info |= {f"low_{n}": ends[fault], f"step_{n}": step}
    elif fault in ("short", "a stage short"):
        words = words[:-1] if fault == "short" else words[: books.entries[0].shape[1]]
        if not words or len(words) == len(books.words()):
            return None
    elif fault == "long":
        words = [*words, words[0]]
    elif fault == "exponent":
        if not config.has_exponent:
            return None
        info["exponent"] = int(rng.integers(-16, SCALE_EXPONENT_MIN))
    else:
        if shape.entry_bits:
            return None
        word = {"nan": 0x7E01, "infinity": 0xFC00, "large": 0x4001}[fault]
        at = int(rng.integers(len(words)))
        words[at] = words[at].copy()
        words[at][rng.integers(shape.groups), rng.integers(shape.group)] = word
        verdict = CodebookFault.MAGNITUDE if fault == "large" else CodebookFault.NONFINITE
        return info, words, verdict
    return info, words, CodebookFault.SHAPE


class TileWords:
    """Words of all streams of a block, packet by packet: loads, and the rows that follow."""

    rows_in = "row"
    layouts = {"row": "row_layout", "o": "decoded_layout"}  # noqa: RUF012

    def __init__(self, config, rng, loads: int = 5, rows: int = 12):
        self.config, self.shape, self.rng = config, config.shape, rng
        names = ("info", "load", "verdict", self.rows_in, "o", "mask")
        self.fields: dict[str, list] = {name: [] for name in names}
        self.packets: dict[str, list[int]] = {name: [] for name in names[:-1]}
        self.switches: list[int] = []
        self.rows(None, 3)
        for number in range(loads):
            for fault in _FAULTS[number::loads]:
                self.load(books_of(self.shape, rng, 3), fault)
            books = books_of(self.shape, rng, number)
            self.load(books, None)
            self.switches.append(len(self.fields[self.rows_in]))
            self.rows(books, 1 if number == 3 else rows)

    def load(self, books: Books, fault: str | None) -> None:
        info, words, verdict = books.info(), books.words(), 0
        if fault is not None:
            found = damaged(self.config, books, fault, self.rng)
            if found is None:
                return
            info, words, verdict = found
        self.fields["info"].append(info)
        self.fields["load"] += [
            {"entry": word, "word": word, "last": n == len(words) - 1}
            for n, word in enumerate(words)
        ]
        self.fields["verdict"].append({"fault": verdict})
        if verdict:  # no row uses it
            self.end()

    def end(self) -> None:
        for name, ends in self.packets.items():
            ends.append(len(self.fields[name]))

    def rows(self, books: Books | None, count: int) -> None:
        """Rows with ``books``, the first of which switches to them; None: before any load."""
        raise NotImplementedError

    def params(self) -> dict:
        """switches: rows that use a load; ends: its last word; begins: first words of all loads."""
        lasts = [n for n, word in enumerate(self.fields["load"]) if word["last"]]
        sound = [n for n, each in enumerate(self.fields["verdict"]) if not each["fault"]]
        return {
            "packets": self.packets, "switches": self.switches, "ends": [lasts[n] for n in sound],
            "begins": [0, *(n + 1 for n in lasts)],
        }  # fmt: skip

    def vectors(self) -> dict[str, np.ndarray]:
        config = self.config
        layouts = {
            "info": config.info_layout,
            "load": config.load_layout,
            "verdict": config.verdict_layout,
            **{name: getattr(config, each) for name, each in self.layouts.items()},
        }
        return {name: words_of(layout, self.fields[name]) for name, layout in layouts.items()}


class DecoderWords(TileWords):
    """Rows of QetDecoder: any codes and maps, some codes beyond their codebook."""

    def rows(self, books: Books | None, count: int) -> None:
        """Rows with ``books``, the first of which switches to them; None: before any load."""
        rng, shape = self.rng, self.shape
        counts = [entries.shape[1] for entries in books.entries] if books else []
        codes, maps, beyond = [], [], np.zeros(count, dtype=bool)
        for n, stage in enumerate(shape.stages):
            high = counts[n] if books else 1 << stage.code_bits
            code = rng.integers(0, high, (count, shape.groups))
            code[::3] = rng.choice([0, high - 1], code[::3].shape)
            codes.append(code)
            bits = rng.integers(0, 2, (count, shape.networks(stage), swap_bits(stage.levels)))
            bits[1::5] = rng.integers(0, 2)
            maps.append(bits)
        words = np.full((count, shape.columns), FP16.canonical_nan)
        fault = np.full(count, int(RowFault.UNLOADED))
        if books:
            words, fault = decoded(shape, books, codes, maps), np.zeros(count, dtype=int)
            for n, stage in enumerate(shape.stages):
                if counts[n] < 1 << stage.code_bits:
                    some = np.flatnonzero(rng.random(count) < 0.15)
                    place = rng.integers(shape.groups, size=len(some))
                    highest = (1 << stage.code_bits) - 1
                    codes[n][some, place] = rng.choice([counts[n], highest], len(some))
                    beyond[some] = True
            fault[beyond] |= RowFault.CODE
        wrong = rng.random(count) < 0.1
        fault = fault | np.where(wrong, int(RowFault.WRONG), 0)
        for row in range(count):
            given = {f"code_{n}": code[row] for n, code in enumerate(codes)}
            given |= {f"map_{n}": bits[row] for n, bits in enumerate(maps)}
            switch, last = bool(books) and row == 0, int(rng.integers(2))
            self.fields["row"].append(
                {**given, "switch": switch, "wrong": int(wrong[row]), "last": last}
            )
            out = words[row] if not fault[row] else np.full(shape.columns, FP16.canonical_nan)
            self.fields["o"].append({"word": out, "fault": int(fault[row]), "last": last})
        self.end()


class EncoderWords(TileWords):
    """Rows of QetEncoder: any words, entries themselves, what lies between two, ends, NaN."""

    rows_in = "x"
    layouts = {"x": "x_layout", "o": "coded_layout", "mask": "coded_layout"}  # noqa: RUF012

    def __init__(self, *arguments, **fields):
        self.cycles: list[tuple[int, int]] = []
        super().__init__(*arguments, **fields)

    def params(self) -> dict:
        """rows: latency of each row in an empty block, and cycles of its slowest stage."""
        return super().params() | {"rows": self.cycles}

    def _cycles(self, books: Books | None) -> tuple[int, int]:
        if books is None:
            return 0, 0
        stages = tuple(
            dataclasses.replace(stage, entries=entries.shape[1])
            for stage, entries in zip(self.shape.stages, books.entries, strict=True)
        )
        found = encoder(stages, self.shape.group)
        return found.latency, int(found.interval)

    def rows(self, books: Books | None, count: int) -> None:
        rng, shape = self.rng, self.shape
        words = np.stack([self._row(books, row) for row in range(count)])
        special = ((words & FP16.infinity) == FP16.infinity).any(1)
        real = float_from_bits(torch.tensor(np.where(special[:, None], 0, words)), FP16)
        if books:
            none = [np.zeros((1, shape.groups), dtype=int) for _ in shape.stages]
            bits = [
                np.zeros((1, shape.networks(stage), swap_bits(stage.levels)), dtype=int)
                for stage in shape.stages
            ]
            made = encode(real, matrix_of(shape, books, none, bits))
            codes = [stage.codes.numpy() for stage in made.stages]
            maps = [
                words_of_maps(stage.maps, count, shape.columns).int().numpy()
                for stage in made.stages
            ]
        else:
            codes = [np.zeros((count, shape.groups), dtype=int)] * len(shape.stages)
            maps = [
                np.zeros((count, shape.networks(stage), swap_bits(stage.levels)), dtype=int)
                for stage in shape.stages
            ]
        self.cycles += [self._cycles(books)] * count
        for row in range(count):
            switch, last = bool(books) and row == 0, int(rng.integers(2))
            self.fields["x"].append({"word": words[row], "switch": switch, "last": last})
            found = {f"code_{n}": code[row] for n, code in enumerate(codes)}
            found |= {f"map_{n}": each[row] for n, each in enumerate(maps)}
            fault = RowFault.NONFINITE if special[row] else RowFault(0)
            fault |= RowFault(0) if books else RowFault.UNLOADED
            self.fields["o"].append({**found, "switch": switch, "fault": int(fault), "last": last})
            known = {name: np.ones(each.shape, dtype=int) for name, each in found.items()}
            for n, stage in enumerate(shape.stages):
                known[f"code_{n}"] <<= stage.code_bits
                known[f"code_{n}"] -= 1
            known = {name: each * (not fault) for name, each in known.items()}
            self.fields["mask"].append({**known, "switch": 1, "fault": 15, "last": 1})
        self.end()

    def _row(self, books: Books | None, row: int) -> np.ndarray:
        rng, shape = self.rng, self.shape
        kind = row % 5
        if books is None or kind == 0:
            words = rng.integers(0, 1 << 16, shape.columns)
            if rng.random() < 0.7:
                words = np.where((words & FP16.infinity) == FP16.infinity, words ^ 0x4000, words)
            return words
        if kind == 4:  # the largest, whose residuals may be infinite
            return rng.choice([0x7BFF, 0xFBFF, 0, 0x8000, 1], shape.columns)
        codes = [rng.integers(0, e.shape[1], (1, shape.groups)) for e in books.entries]
        maps = [
            rng.integers(0, 2, (1, shape.networks(stage), swap_bits(stage.levels)))
            for stage in shape.stages
        ]
        real = matrix_of(shape, books, codes, maps).real()[0]
        if kind == 2:  # between the entries
            real = real + torch.tensor(rng.normal(0, 0.1, shape.columns)) * 2.0**books.exponent
        if kind == 3:  # of few values
            real = torch.tensor(rng.choice(real.numpy(), 2))[rng.integers(0, 2, shape.columns)]
        real = torch.nan_to_num(real, posinf=65504, neginf=-65504).clamp(-65504, 65504)
        return bits_from_float(real, FP16).numpy()


def words_of(layout, rows: list[dict]) -> np.ndarray:
    """Words of a layout from one mapping each; a row may have fields that the layout lacks."""
    columns = {name: np.stack([np.asarray(row[name]) for row in rows]) for name, _ in layout}
    return layout_words(layout, **columns)
