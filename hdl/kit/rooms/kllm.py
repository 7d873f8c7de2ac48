"""Kits of KLLM."""

from golden.kllm.vectors.concat import concat_vectors
from golden.kllm.vectors.integer_quantizer import quantizer_vectors
from golden.kllm.vectors.orizuru import orizuru_vectors
from golden.kllm.vectors.orizuru_unit import unit_vectors
from golden.kllm.vectors.outlier import outlier_vectors
from golden.kllm.vectors.pe_lane import lane_vectors
from golden.kllm.vectors.row_compare import row_compare_params
from golden.kllm.vectors.scaler import scaler_vectors
from golden.words import unpack_ints
from hdl.kit.episodes import Episode, Vectors
from hdl.kit.words import SEED, Kit, phases, plain, rows, sliced

_COUNT = 300  # words of a stream


def _some(words):
    return {name: each[:_COUNT] for name, each in words.items()}


def _words(make, covers: str, *names: str):
    """``make(config, seed)``; every stream has as many words."""

    def vectors_of(config) -> Vectors:
        return Vectors(episodes=[plain(covers, _some(rows(make(config, SEED), *names)))])

    return vectors_of


def _orizuru_unit(config) -> Vectors:
    vectors = unit_vectors(config, SEED)
    masks = {"o": unpack_ints(vectors["mask"])[:_COUNT]}
    words = _some(rows(vectors, "i", "o"))
    return Vectors(episodes=[plain("keys with ties, and keys that are not valid", words,
                                   masks=masks)])  # fmt: skip


def _orizuru(config) -> Vectors:
    lengths = dict.fromkeys((1, 2, config.elements, config.n_max // 2, config.n_max), 5)
    vectors, _, _ = orizuru_vectors(config, lengths, 4, SEED)
    covers = "tokens of every length; fault: NaN, wrong lengths and numbers of pops"
    return Vectors(episodes=[plain(covers, rows(vectors, *vectors))])


def _outlier(config) -> Vectors:
    vectors, params = outlier_vectors(config, SEED)
    episodes: list[Episode] = []
    for phase in params["phases"]:
        words = {name: unpack_ints(vectors[f"{phase}.{name}"]) for name in ("i", "o")}
        ports = {"codebook": unpack_ints(vectors[f"{phase}.codebook"])[0]}
        episodes.append(plain(f"packets with codebook {phase}", words, ports=ports))
    return Vectors(episodes=episodes)


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


def _row_compare(config) -> Vectors:
    params = row_compare_params(config, SEED)
    words = sliced(params["words"], params["packets"], 60)
    return Vectors(episodes=[plain("tokens of each kind, bounds with ties", words)])


KITS = {
    "kllm_concat": Kit(
        vectors=_words(concat_vectors, "indices of both sides", "i_a", "i_w", "o"), shown="small"
    ),
    "kllm_scaler": Kit(
        vectors=_words(scaler_vectors, "sums and scales: usual, at ties, that overflow", "i", "o"),
        shown="small",
    ),
    "kllm_integer_quantizer": Kit(
        vectors=_words(
            quantizer_vectors, "largest elements and rows", "largest", "scale", "i", "o"
        ),
        shown="small",
    ),
    "kllm_orizuru_unit": Kit(vectors=_orizuru_unit, shown="leaf"),
    "kllm_orizuru": Kit(vectors=_orizuru, shown="small"),
    "kllm_outlier": Kit(vectors=_outlier, shown="small"),
    "kllm_pe_lane": Kit(vectors=_pe_lane, shown="small"),
    "kllm_row_compare": Kit(vectors=_row_compare, shown="small"),
}
