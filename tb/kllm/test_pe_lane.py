"""KllmPeLane against golden: both modes, every micro-architecture, faults, rates.

Shown to fail:

- ``tag.empty`` tied to 0 (a faulty job has outputs);
- without the mask of ``done`` in ``inlier`` (a beat counted again with its second outlier);
- the limit of ``codebook``'s entries left out (a packet out of range is taken);
- the outliers of an integer job's header not refused;
- NONFINITE of a header hidden by LENGTH_TOO_LONG;
- ``is_integer`` of the rows tied to 0 (select), and of the sums (fixed16).
"""

import dataclasses

import numpy as np
import pytest

from golden.index.format import K_MAX
from golden.kllm.vectors.jobs import (
    books_of,
    codebook_packet,
    integer_packet,
    phase_vectors,
    random_job,
    weight_codebook,
)
from golden.kllm.vectors.pe_lane import lane_vectors
from hdl.kllm.lane.config import SERIAL, KllmPeLaneConfig
from hdl.kllm.lane.engine import KllmPeLane
from tb.simulate.run import simulate

SMALL = KllmPeLaneConfig(
    bits_a=2, bits_b=3, elements=4, columns=3, k_max=100, integer_bits=4, counter="flipflop",
    macs=8, outliers_max=9, weight_buffer_beats=4,
)  # fmt: skip
CONFIGS = {
    "flipflop": SMALL,
    "flipflop_wide": KllmPeLaneConfig(
        bits_a=3, bits_b=2, elements=16, columns=8, k_max=300, integer_bits=8, counter="flipflop",
        macs=64, outliers_max=40, weight_buffer_beats=3,
    ),
    "flipflop_odd": dataclasses.replace(SMALL, columns=4, macs=4, elements=5),
    "select": dataclasses.replace(SMALL, counter="select"),
    "select_wide": KllmPeLaneConfig(
        bits_a=3, bits_b=4, elements=16, columns=8, k_max=300, integer_bits=8, counter="select",
        outliers_max=40, weight_buffer_beats=3,
    ),
    "select_odd": dataclasses.replace(SMALL, counter="select", columns=4, elements=3),
    "select_one_column_no_integer": dataclasses.replace(
        SMALL, columns=1, elements=1, integer_bits=0, k_max=20, counter="select"
    ),
    "fixed16": dataclasses.replace(SMALL, counter="select", product="fixed16"),
    "fixed16_wide": KllmPeLaneConfig(
        bits_a=4, bits_b=4, elements=16, columns=8, k_max=300, integer_bits=8, product="fixed16",
        outliers_max=40, weight_buffer_beats=3,
    ),
    "antisymmetric": dataclasses.replace(
        SMALL, counter="select", product="fixed16", antisymmetric=True
    ),
    "antisymmetric_rounded": dataclasses.replace(SMALL, counter="select", antisymmetric=True),
    "fixed12": dataclasses.replace(SMALL, counter="select", product="fixed12"),
    "serial": SERIAL,
    "serial_wide": KllmPeLaneConfig(
        elements=4, columns=16, k_max=300, integer_bits=4, product="fixed12", outliers_max=40,
        weight_buffer_beats=3, outlier_parts=4,
    ),
    "fixed16_one_column_no_integer": dataclasses.replace(
        SMALL, columns=1, elements=1, integer_bits=0, k_max=20, counter="select", product="fixed16"
    ),
    "one_column_no_integer": dataclasses.replace(
        SMALL, columns=1, macs=1, elements=1, integer_bits=0, k_max=20
    ),
}
ROWS = {  # packets in rows
    "rows": dataclasses.replace(CONFIGS["select_wide"], packet_words=16),
    "rows_small": dataclasses.replace(SMALL, counter="select", packet_words=16),
    "rows_antisymmetric": dataclasses.replace(
        SMALL, counter="select", product="fixed16", antisymmetric=True, packet_words=16
    ),
    "rows_no_integer": dataclasses.replace(
        SMALL, columns=1, elements=1, integer_bits=0, k_max=20, counter="select", bits_a=3,
        packet_words=16,
    ),
}  # fmt: skip


@pytest.mark.telling(
    "select_odd", "antisymmetric", "antisymmetric_rounded", "fixed16_one_column_no_integer",
    "one_column_no_integer", "rows_small",
)
@pytest.mark.parametrize("name", CONFIGS | ROWS)
def test_pe_lane(name, seed):
    config = (CONFIGS | ROWS)[name]
    vectors, params = lane_vectors(config, seed)
    simulate(KllmPeLane(config), "tb.kllm.tb_pe_lane", vectors=vectors, params=params, seed=seed)


def test_select_meets_the_words_of_flipflop(seed):
    """Both lanes take the same words and must give the same words, fault for fault.

    Shown to fail: with ``faulty_jobs`` that draw one number more for ``select``.
    """
    of_flipflop, _ = lane_vectors(SMALL, seed)
    of_select, _ = lane_vectors(dataclasses.replace(SMALL, counter="select"), seed)
    assert of_flipflop.keys() == of_select.keys()
    assert all((of_flipflop[name] == of_select[name]).all() for name in of_flipflop)


def longest_vectors(config, seed):
    """(vectors, params): jobs of ``k_max`` elements, with the largest counts and sums."""
    rng = np.random.default_rng([seed, 34])
    k = config.k_max
    largest = random_job(rng, config, k, outliers=k)  # every element an outlier
    largest.x[:], largest.index_b[:] = 0x7BFF, 2**config.bits_b - 1
    mixed = random_job(rng, config, k, outliers=k // 3)
    one_bin = random_job(rng, config, k, index=2**config.bits_b - 1)  # one bin has all
    jobs = [one_bin, mixed, largest, random_job(rng, config, k), random_job(rng, config, k + 1)]
    books = books_of(rng, config)
    book = weight_codebook(rng, config)
    sums = random_job(rng, config, k, integer=True, index=2**config.integer_bits - 1)
    integers = [sums, random_job(rng, config, k, integer=True)]
    vectors, phases = {}, (
        ("kmeans", jobs, books, codebook_packet(config, *books)),
        ("integer", integers, (book,), integer_packet(config, book)),
    )  # fmt: skip
    for name, of_phase, codebooks, packet in phases:
        for stream, words in phase_vectors(config, of_phase, codebooks).items():
            vectors[f"{name}.{stream}"] = words
        vectors[f"{name}.codebook"] = packet
    return vectors, {"phases": [name for name, *_ in phases]}


@pytest.mark.telling("select-fixed16", "flipflop-rounded")
@pytest.mark.parametrize(
    ("counter", "product"),
    [("flipflop", "rounded"), ("select", "rounded"), ("select", "fixed16")],
)
def test_longest(counter, product, seed):
    """The documented most: reductions of 16,383 elements, and as many outliers.

    Shown to fail: bins one bit short, sums of outliers two, and ``left`` of 13 bits.
    """
    config = dataclasses.replace(
        SMALL, elements=16, columns=1, macs=1, k_max=K_MAX, outliers_max=K_MAX, counter=counter,
        product=product,
    )  # fmt: skip
    vectors, params = longest_vectors(config, seed)
    simulate(KllmPeLane(config), "tb.kllm.tb_phases", vectors=vectors, params=params, seed=seed)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"counter": "flipflop", "antisymmetric": True}, "antisymmetric must be False, not True"),
        (
            {"counter": "flipflop", "product": "fixed16"},
            "product must be rounded, not 'fixed16'",
        ),
    ],
)
def test_rejects(wrong, message):
    with pytest.raises(ValueError, match="must be") as error:
        KllmPeLaneConfig(**wrong)
    assert str(error.value) == f"KllmPeLaneConfig.{message}"
