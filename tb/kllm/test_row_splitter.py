"""KllmRowSplitter against golden.kllm.quantizer_phases.split_rows.

Shown to fail with:

- one outlier more than fit
- a count, or a fault, kept from the token before
- words that are not stored left out of ``x``
- a beat sent twice when its outliers stall
- a mark before the last outlier
- a codebook that counts as loaded in spite of a word beyond 1
"""

import numpy as np
import pytest

from golden.kllm.format import TokenKind
from golden.kllm.isa import ROW_ELEMENTS, CommandStatus
from golden.kllm.quantizer_phases import split_rows
from golden.words import join
from hdl.kllm.quantize.payloads import beat_layout, outlier_layout, split_row_layout
from hdl.kllm.quantize.splitter import KllmRowSplitter, KllmRowSplitterConfig
from tb.simulate.run import simulate

CONFIGS = {f"outliers_{most}": KllmRowSplitterConfig(outliers_max=most) for most in (1, 7, 64)}
TOKENS = 120
STREAMS = ("i", "beat", "outlier", "x", "centroids", "midpoints")


def bits(mask) -> int:
    return join(*((flag, 1) for flag in mask))


def row_fields(words, beyond, **fields) -> dict:
    return {**fields, "word": [int(word) for word in words], "beyond": bits(beyond)}


class Maker:
    """Words of every stream, and what the rate of each row depends on."""

    def __init__(self, rng, config: KllmRowSplitterConfig):
        self.rng, self.config = rng, config
        self.words: dict[str, list[int]] = {name: [] for name in STREAMS}
        self.packets: dict[str, list[int]] = {name: [] for name in STREAMS}
        self.rows: list[dict] = []

    def token(self) -> None:
        rng, words, most = self.rng, self.words, self.config.outliers_max
        kind = TokenKind(int(rng.choice(3)))
        count, share = int(rng.integers(1, 5)), rng.choice([0, 0.05, 0.4, 1])
        x = rng.integers(0, 1 << 16, (count, ROW_ELEMENTS))
        beyond = rng.random(x.shape) < (0 if kind == TokenKind.INTEGER else share)
        nonfinite = rng.random(count) < 0.1
        fields = {"kind": int(kind), "slot": int(rng.integers(256)),
                  "norm": int(rng.integers(2)) & (kind != TokenKind.INTEGER),
                  "s": int(rng.integers(1 << 16))}  # fmt: skip
        split = split_rows(x.tolist(), beyond, most, nonfinite=bool(nonfinite.any()))
        stored = 0
        for row in range(count):
            last, live = int(row == count - 1), int(rng.integers(1 << 16))
            given = row_fields(
                x[row], beyond[row], **fields, row=row, last=last, live=live,
                nonfinite=int(nonfinite[row]),
            )  # fmt: skip
            words["i"].append(split_row_layout.const(given).as_bits())
            tag = {"slot": fields["slot"], "row": row, "outlier": bits(beyond[row]),
                   "live": live, "norm": fields["norm"], "last": last}  # fmt: skip
            beat = {"integer": int(kind == TokenKind.INTEGER), "word": x[row].tolist(),
                    "s": fields["s"], "last": last, "tag": tag}  # fmt: skip
            words["beat"].append(beat_layout.const(beat).as_bits())
            outliers = int(beyond[row].sum())
            fits = min(outliers, most - stored)
            stored += fits
            self.rows.append(
                {"codebook": False, "last": bool(last), "outliers": outliers, "stored": fits}
            )
        words["outlier"] += [
            outlier_layout.const({"slot": fields["slot"], "position": at, "word": word}).as_bits()
            for at, word in split.stored
        ]
        if fields["norm"]:
            words["x"] += split.all
        self.mark(fields["slot"], split)

    def mark(self, slot: int, split) -> None:
        mark = {"mark": 1, "slot": slot, "position": split.count, "word": int(split.status)}
        self.words["outlier"].append(outlier_layout.const(mark).as_bits())
        for name, ends in self.packets.items():
            ends.append(len(self.words[name]))

    def codebook(self, *, wrong: bool) -> tuple[list[int], bool]:
        """Its rows, and whether it counts as loaded."""
        count, rng = centroids(self.rng), self.rng
        x = rng.integers(0, 0x3C01, (2, ROW_ELEMENTS)) | rng.integers(0, 2, (2, 16)) << 15
        if wrong:
            row = int(rng.integers(2))
            x[row, rng.integers(0, count - row)] = rng.choice([0x3C01, 0xBC01, 0x7C00, 0xFFFF])
        x[:, count:] = 0x7C00  # not of the codebook
        x[1, count - 1] = 0x7C00
        beyond = np.arange(ROW_ELEMENTS) < count - np.arange(2)[:, None]
        split = split_rows(x.tolist(), beyond, 0, codebook=True)
        slot = int(rng.integers(256))
        rows = []
        for row in range(2):
            given = row_fields(
                x[row], beyond[row], kind=int(TokenKind.CODEBOOK), slot=slot, norm=0, s=0,
                row=row, last=row, live=0xFFFF, nonfinite=1,
            )  # fmt: skip
            rows.append(split_row_layout.const(given).as_bits())
            outliers = count - row
            packet = [int(word) for word in x[row, :outliers]]
            self.words[("centroids", "midpoints")[row]] += [
                word | (n == outliers - 1) << 16 for n, word in enumerate(packet)
            ]
            self.rows.append({"codebook": True, "last": bool(row), "outliers": outliers,
                              "stored": 0})  # fmt: skip
        self.words["i"] += rows
        self.mark(slot, split)
        assert split.status == (CommandStatus.RANGE if wrong else 0)
        return rows, not split.status


def centroids(rng) -> int:
    """Words of a codebook."""
    return int(rng.choice([4, 8, 16]))


@pytest.mark.parametrize("name", CONFIGS)
def test_row_splitter(name, seed):
    rng = np.random.default_rng([seed, 92])
    maker = Maker(rng, CONFIGS[name])
    codebooks = []
    for n in range(TOKENS):
        if n % 9 == 5:
            rows, ok = maker.codebook(wrong=len(codebooks) % 3 == 1)
            codebooks.append({"rows": rows, "ok": int(ok)})
        else:
            maker.token()
    simulate(
        KllmRowSplitter(CONFIGS[name]), "tb.kllm.tb_row_splitter",
        params={"words": maker.words, "packets": maker.packets, "rows": maker.rows,
                "codebooks": codebooks[:6]},
        seed=seed,
    )  # fmt: skip
