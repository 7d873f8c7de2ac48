"""Kits of KLLM."""

from golden.kllm.vectors.orizuru import orizuru_vectors
from golden.kllm.vectors.pe_lane import lane_vectors
from hdl.kit.episodes import Vectors
from hdl.kit.words import SEED, Kit, phases, plain, rows


def _orizuru(config) -> Vectors:
    lengths = dict.fromkeys((1, 2, config.elements, config.n_max // 2, config.n_max), 5)
    vectors, _, _ = orizuru_vectors(config, lengths, 4, SEED)
    covers = "tokens of every length; fault: NaN, wrong lengths and numbers of pops"
    return Vectors(episodes=[plain(covers, rows(vectors, *vectors))])


_LANE = {
    "good": "jobs of any length",
    "faults": "fault: lengths, masks, NaN and infinities that are refused",
    "integer": "integer jobs",
    "short": "fault: a codebook one word short",
    "long": "fault: a codebook too long",
    "too_large": "fault: a codebook with an entry that is too large",
    "nan": "fault: a codebook with a NaN",
    "one_word": "fault: a codebook of one word",
    "good_again": "jobs after these faults",
}


def _pe_lane(config) -> Vectors:
    vectors, params = lane_vectors(config, SEED)
    covers = {phase: _LANE[phase] for phase in params["phases"] if phase in _LANE}
    return Vectors(episodes=phases(vectors, covers, "codebook"))


KITS = {
    "kllm_orizuru": Kit(vectors=_orizuru, shown="small"),
    "kllm_pe_lane": Kit(vectors=_pe_lane, shown="small"),
}
