"""Requests to the dequantization engine with every word that they need and give."""

import numpy as np
import torch

from golden.oaken.dequantize import insert_zeros, request_status
from golden.oaken.format import Group, ScaleWord
from golden.oaken.quantize import Encoded, decode, scales_valid, sparse_records
from golden.oaken.vectors.dequant_tokens import as_bytes, damaged, transfer
from golden.words import layout_word

STREAMS = ("request", "scale", "dense", "sparse", "o", "status")

STEPS = (
    ScaleWord.MIDDLE_STEP, ScaleWord.OUTER_LOW_STEP, ScaleWord.OUTER_HIGH_STEP, ScaleWord.INNER_STEP
)  # fmt: skip


def _is_odd(scale: torch.Tensor) -> torch.Tensor:
    """(T,) bool: words that no encoder writes, for which values are unspecified."""
    special = ((scale & 0x7C00) == 0x7C00).any(-1)
    negative = (scale[:, list(STEPS)] & 0x8000 != 0).any(-1)
    minima = scale[:, [ScaleWord.MIDDLE_MIN, ScaleWord.INNER_MIN]]
    positive = ((minima & 0x8000 == 0) & (minima != 0)).any(-1)
    return special | negative | positive


class Job:
    """Words in and golden words out of some requests, one after the other.

    config: of the engine; ``add`` appends one request.
    """

    def __init__(self, config, rng):
        self.config, self.rng = config, rng
        self.words: dict[str, list[int]] = {name: [] for name in (*STREAMS, "mask")}
        self.ends: list[list[int]] = []  # words of each stream after each request
        self.bad = 0
        self.with_errors = 0

    def add(
        self,
        encoded: Encoded,
        thresholds: torch.Tensor,
        *,
        skip=0,
        behind=0,
        damage=False,
        errors=False,
        first=None,
    ) -> None:
        """Tokens ``skip .. -behind`` of ``encoded``, one head; thresholds: four words.

        errors: in one word of a scale, dense or sparse stream, or in any words of all.
        """
        config, rng, words = self.config, self.rng, self.words
        elements = encoded.code.shape[1]
        blocks, lanes = elements // config.block, config.lanes
        end = len(encoded.code) - behind
        tokens = end - skip
        records = sparse_records(encoded, elements, config.block)
        sparse = b"".join(record for (record,) in records)
        if damage:
            sparse = damaged(rng, sparse, config.block)
        alone = ("scale", "dense", "sparse", "")[self.with_errors % 4] if errors else "none"
        self.with_errors += errors
        in_sparse = alone == "sparse" or (not alone and rng.random() < 0.5)
        at = int(rng.integers(0, len(sparse))) if in_sparse and sparse else None
        sparse_words, byte_errors = transfer(
            rng, sparse, config.data_bits // 8, first=first, error_at=at
        )
        beats = insert_zeros(
            sparse, byte_errors, tokens=tokens, skip=skip, blocks=blocks, block=config.block,
            lanes=lanes,
        )  # fmt: skip
        # What the beats say, not what was encoded: the records may be damaged.
        found = torch.tensor([beat.outlier for beat in beats]).reshape(tokens, elements, 3)
        outlier_group = torch.where(found[..., 1] == 1, int(Group.OUTER), int(Group.INNER))
        read = Encoded(
            scale=encoded.scale[skip:end],
            code=encoded.code[skip:end],
            group=torch.where(found[..., 0] == 1, outlier_group, int(Group.MIDDLE)),
            fifth=found[..., 2] * found[..., 0],
        )
        x = decode(read, thresholds).reshape(-1, lanes).tolist()
        odd = _is_odd(read.scale).tolist()
        codes = read.code.reshape(-1, lanes).tolist()
        words["request"].append(
            layout_word(
                config.request_layout, tokens=tokens, skip=skip, blocks=blocks,
                thresholds=thresholds.tolist(),
            )
        )  # fmt: skip
        chance = 0.0 if alone else 0.02
        scale_errors = [int(rng.random() < chance) for _ in range(tokens)]
        dense_errors = [int(rng.random() < chance / 4) for _ in codes]
        for name, each in (("scale", scale_errors), ("dense", dense_errors)):
            if name == alone:
                each[int(rng.integers(len(each)))] = 1
        for row, error in zip(read.scale.tolist(), scale_errors, strict=True):
            words["scale"].append(layout_word(config.scale_layout, scale=row, error=error))
        words["sparse"] += sparse_words
        sound = scales_valid(read.scale).tolist()
        error, per_token = 0, elements // lanes
        for n, (row, beat) in enumerate(zip(codes, beats, strict=True)):
            dense_error = dense_errors[n]
            words["dense"].append(layout_word(config.dense_layout, code=row, error=dense_error))
            at = n // per_token
            error |= dense_error | scale_errors[at] | (not sound[at]) | beat.error
            words["o"].append(
                layout_word(config.o_layout, x=x[n], error=error, last=n == len(beats) - 1)
            )
            checked = 0 if odd[n // per_token] else (1 << 16 * lanes) - 1
            words["mask"].append(layout_word(config.o_layout, x=checked, error=1, last=1))
        status = request_status(beats, read.scale, [bool(each) for each in scale_errors])
        words["status"].append(int(status))
        self.bad += int(status) != 0
        self.ends.append([len(words[name]) for name in STREAMS])

    def vectors(self, phase: str) -> dict:
        config = self.config
        sizes = {
            "request": config.request_layout.size,
            "scale": config.scale_layout.size,
            "dense": config.dense_layout.size,
            "sparse": config.zero_insert.sparse_layout.size,
            "o": config.o_layout.size,
            "status": config.status_layout.size,
            "mask": config.o_layout.size,
        }
        vectors = {
            f"{phase}.{name}": as_bytes(self.words[name], size) for name, size in sizes.items()
        }
        return vectors | {f"{phase}.ends": np.array(self.ends)}
