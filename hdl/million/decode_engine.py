"""Attention to past keys and values by decoding them (docs/blocks/million_decode_engine.md)."""

import dataclasses
from typing import ClassVar

from amaranth import Module
from amaranth.lib import wiring

from golden.million.config import NAMED
from golden.million.timing import decode_keys
from golden.timing import Timing
from hdl.block import Block
from hdl.children import add
from hdl.million.decode_keys import MillionDecodeKeys, MillionDecodeKeysConfig
from hdl.million.decode_lookup import MillionDecodeLookupConfig
from hdl.million.decode_values import MillionDecodeValues, MillionDecodeValuesConfig
from hdl.million.shapes import SMALL, SMALL_RATE, SMOLLM2_RATE
from hdl.ports import Member
from hdl.stream.link import link


class MillionDecodeEngineConfig(MillionDecodeLookupConfig):
    """Codes, keys per cycle and queries side by side."""

    @property
    def keys_side(self) -> MillionDecodeKeysConfig:
        return MillionDecodeKeysConfig(pq=self.pq, rate=self.rate, max_keys=self.max_keys)

    @property
    def values_side(self) -> MillionDecodeValuesConfig:
        return MillionDecodeValuesConfig(pq=self.pq, rate=self.rate, max_keys=self.max_keys)


class MillionDecodeEngine(Block):
    """The rival of tables and bins: million_decode_keys and million_decode_values side by side.

    Streams of the first begin with ``k_``, those of the second with ``v_``. The softmax between
    them is the parent's. Each side has its own codebooks, so keys and values may differ. The sides
    share nothing. Golden: golden.million.decode.decode_scores and decode_sums.
    """

    golden = "golden.million.decode:decode_scores"
    reference = "tests/million/test_decode.py: test_scores"
    default = MillionDecodeEngineConfig()
    configs: ClassVar = {
        "smollm2": MillionDecodeEngineConfig(pq=NAMED["4b_64"], rate=SMOLLM2_RATE),
        "small": MillionDecodeEngineConfig(pq=SMALL, rate=SMALL_RATE, max_keys=64),
    }
    checked = "small"

    def __init__(self, config: MillionDecodeEngineConfig):
        self._sides = {
            "k": MillionDecodeKeys(config.keys_side),
            "v": MillionDecodeValues(config.values_side),
        }
        members = {}
        for prefix, side in self._sides.items():
            side._MustUse__silence = True  # type: ignore[attr-defined]  # only its ports
            for name, member in side.signature.members.items():
                members[f"{prefix}_{name}"] = Member(member, side.texts[name])
        super().__init__(config, members)

    @property
    def timing(self) -> Timing:
        """The keys have this one; the values have their own."""
        return dataclasses.replace(
            decode_keys(self.config.pq.head_dim), start="k_code", end="k_score"
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        for prefix, block in self._sides.items():
            side = add(m, {"k": "keys", "v": "values"}[prefix], block)
            for name, member in block.signature.members.items():
                inner, outer = getattr(side, name), getattr(self, f"{prefix}_{name}")
                pair = (outer, inner) if member.flow == wiring.In else (inner, outer)
                link(m, *pair)
        return m
