"""Words of each stream of an engine of tables. Before the simulation."""

import dataclasses
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import torch

from golden.vqllm.config import MatrixShape, Tile
from golden.vqllm.matrix import VqMatrix
from golden.vqllm.product import by_tables
from golden.vqllm.timing import Tables, table_cycles
from golden.vqllm.vectors.matrices import code_beats, x_beats
from golden.words import layout_word
from hdl.vqllm.table.config import VqTableGemvConfig


def tables_of(config: VqTableGemvConfig, entries: int) -> Tables:
    return Tables(
        size=config.vq.size, entries=entries, stages=config.vq.stages, lookups=config.lookups,
        lanes=config.lanes,
    )  # fmt: skip


def _parts(config: VqTableGemvConfig, shape: MatrixShape) -> Iterator[tuple[int, Tile]]:
    """Number of the tile, its rows and its vectors, for jobs of at most ``config.rows`` rows."""
    down, along = shape.grid
    for r in range(down):
        tiles = list(enumerate(shape.tiles))[r * along : (r + 1) * along]
        rows = tiles[0][1].rows
        for first in range(rows.start, rows.stop, config.rows):
            some = slice(first, min(first + config.rows, rows.stop))
            for number, tile in tiles:
                yield number, Tile(some, tile.vectors)


@dataclasses.dataclass
class TableWords:
    """``words`` by stream; rows of y and the beats of code that cause them; cycles of all."""

    config: VqTableGemvConfig
    matrix: VqMatrix
    rng: np.random.Generator
    loaded: int  # entries of each load

    def __post_init__(self) -> None:
        self.words: dict[str, list[int]] = {name: [] for name in ("load_info", "load", "job")}
        self.words["code"] = []
        self.causes: list[int] = []
        self.ends: list[int] = []  # rows of y with last
        self.sizes: list[tuple[int, int]] = []
        before = None
        for number, tile in _parts(self.config, self.matrix.shape):
            if number != before:
                self._load(number)
            self._job(tile, is_first=before is None, is_switched=number != before)
            before = number
        if self.config.scaled:
            layout = self.config.finish.scale_layout
            scales = self.matrix.scales.tolist()
            self.words["scale"] = [layout_word(layout, word=word) for word in scales]

    def vectors(self, x: np.ndarray) -> None:
        """x: (vectors, columns). Beyond the end of a row come any finite elements."""
        step = self.config.vectors * self.config.vq.size
        rest = self.rng.integers(0, 0x7C00, (len(x), -x.shape[1] % step))
        beats = SimpleNamespace(sums=self.config.operands)
        self.words["x"] = x_beats(beats, np.concatenate((x, rest), 1))

    def results(self, y: np.ndarray) -> list[int]:
        """y: (rows, batch)."""
        layout = self.config.finish.y_layout
        return [
            layout_word(layout, word=row, last=int(n in self.ends))
            for n, row in enumerate(y.tolist())
        ]

    @property
    def cycles(self) -> int:
        return table_cycles(
            tables_of(self.config, self.loaded), self.sizes, len(self.words["x"]),
            scaled=self.config.scaled, is_switched=len(self.words["load_info"]) > 1,
        )  # fmt: skip

    def _load(self, number: int) -> None:
        store, words = self.config.store, self.words
        exponent = self.matrix.exponent
        words["load_info"].append(
            layout_word(store.info_layout, entries=self.loaded, exponent=exponent)
        )
        entries = self.matrix.codebooks[number, :, : self.loaded].flatten(0, 1).tolist()
        words["load"] += [
            layout_word(store.load_layout, word=entry, last=n == len(entries) - 1)
            for n, entry in enumerate(entries)
        ]

    def _job(self, tile: Tile, *, is_first: bool, is_switched: bool) -> None:
        config, words, rng = self.config, self.words, self.rng
        rows, first = tile.rows.stop - tile.rows.start, tile.vectors.start
        slices = -(-(tile.vectors.stop - first) // config.vectors)
        is_final = tile.vectors.stop == self.matrix.shape.vectors
        words["job"].append(layout_word(
            config.job_layout, offset=first // config.vectors, beats=slices, rows=rows,
            first=first == 0, final=is_final, next_x=is_first, switch=is_switched,
        ))  # fmt: skip
        self.sizes.append((rows, slices))
        code, use = code_beats(config, self.matrix, tile)
        # Lanes that do not look up have any codes.
        code = np.where(use, code, rng.integers(0, config.vq.entries, code.shape))
        order = np.arange(len(code)).reshape(rows, slices).T.flatten()
        masks = use[order].astype(int) @ (1 << np.arange(config.lookups, dtype=object))
        for row, mask in zip(code[order].tolist(), masks, strict=True):
            last = int(rng.integers(2))
            words["code"].append(
                layout_word(config.code_layout, code=row, use=int(mask), last=last)
            )
        if is_final:
            self.causes += range(len(words["code"]) - rows, len(words["code"]))
            self.ends.append(tile.rows.stop - 1)


def table_params(config: VqTableGemvConfig, rng, matrix: VqMatrix, x: np.ndarray):
    """Words of an engine of tables with all its results, and the cycles that are expected."""
    made = TableWords(config, matrix, rng, config.vq.entries)
    made.vectors(x)
    y = by_tables(torch.tensor(x), matrix)[0].numpy().T
    return {"words": made.words | {"y": made.results(y)}, "sink": "y", "phases": []}, made.cycles
