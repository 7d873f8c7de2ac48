"""Kits of the lanes of other number formats: the words of their benches."""

from hdl.kit.episodes import Vectors
from tb.kits.kit import SEED, Kit, phases
from tb.lanes.test_fp16 import fp16_vectors
from tb.lanes.test_integer import integer_vectors
from tb.lanes.test_lut import lut_vectors
from tb.lanes.test_w4a16 import w4a16_vectors

__all__ = ["KITS"]


def _lane(make):
    def vectors_of(config) -> Vectors:
        vectors, params = make(config, SEED)
        covers = {phase: f"packets of kind {phase}" for phase in params["phases"]}
        return Vectors(episodes=phases(vectors, covers, "entry"))

    return vectors_of


KITS = {
    "lane_fp16": Kit(vectors=_lane(fp16_vectors), shown="small"),
    "lane_integer": Kit(vectors=_lane(integer_vectors), shown="small"),
    "lane_lut": Kit(vectors=_lane(lut_vectors), shown="small"),
    "lane_w4a16": Kit(vectors=_lane(w4a16_vectors), shown="small"),
}
