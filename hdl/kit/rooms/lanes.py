"""Kits of the lanes of other number formats."""

from golden.lanes.vectors.fp16 import fp16_vectors
from golden.lanes.vectors.integer import integer_vectors
from golden.lanes.vectors.lut import lut_vectors
from golden.lanes.vectors.w4a16 import w4a16_vectors
from hdl.kit.episodes import Vectors
from hdl.kit.words import SEED, Kit, phases


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
