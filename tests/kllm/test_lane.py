"""golden.kllm.lane: the status of a job, and its agreement with golden.kllm.matmul."""

import itertools

import pytest
import torch

from golden.kllm.format import NO_OUTPUT, Status
from golden.kllm.lane import JobHeader, Step, header_status, job_status, job_steps
from golden.kllm.matmul import integer_matmul, matmul
from golden.kllm.records import Codebooks, Tokens, Weight

NAN, ONE = 0x7E01, 0x3C00
LIMITS = {"columns": 3, "k_max": 4, "outliers_max": 2}


def header(length=3, outliers=0, s_a=ONE, last_column=2, integer=False) -> JobHeader:
    return JobHeader(
        length=length, outliers=outliers, s_a=s_a, last_column=last_column, integer=integer
    )


@pytest.mark.parametrize("length", [0, 3, 4, 5])
@pytest.mark.parametrize("s_a", [ONE, 0x7C00, NAN])
@pytest.mark.parametrize("integer", [False, True])
def test_the_matrix_product_reports_what_its_header_shows(length, s_a, integer) -> None:
    """Both operands of a fault at once: the product once left out NONFINITE at a wrong length."""
    weight = Weight(torch.zeros(length, 2, dtype=torch.int64), torch.tensor([ONE, ONE]))
    book = torch.tensor([ONE] * 4)
    tokens = Tokens.integers(torch.zeros(1, length, dtype=torch.int64), torch.tensor([s_a]))
    if integer:
        result = integer_matmul(tokens, weight, book, k_max=LIMITS["k_max"])
    else:
        result = matmul(tokens, weight, Codebooks(book, book), LIMITS["k_max"])
    wanted = header_status(header(length, s_a=s_a, integer=integer), **LIMITS)
    assert Status(int(result.status[0])) & NO_OUTPUT == wanted


def test_header_faults_are_reported_together() -> None:
    faults = {
        Status.LENGTH_TOO_LONG: {"length": 5},
        Status.NONFINITE: {"s_a": NAN},
        Status.COLUMN_RANGE: {"last_column": 3},
        Status.OUTLIER_COUNT: {"outliers": 3},
        Status.CODEBOOK_MISSING: {},
    }
    for n in range(len(faults) + 1):
        for chosen in itertools.combinations(faults, n):
            fields = {name: value for fault in chosen for name, value in faults[fault].items()}
            status = header_status(
                header(**fields), **LIMITS, has_codebook=Status.CODEBOOK_MISSING not in chosen
            )
            assert status == sum(chosen)
    assert header_status(header(0, s_a=NAN), **LIMITS) == Status.LENGTH_ZERO | Status.NONFINITE
    assert header_status(header(outliers=1, integer=True), **LIMITS) == Status.OUTLIER_COUNT


@pytest.mark.parametrize(
    ("mask", "last_a", "last_w", "outliers", "x", "wanted"),
    [
        ([[1, 0], [0, 1]], 1, 1, 1, [ONE], Status(0)),  # the last place is beyond the length
        ([[1, 0], [0, 1]], 1, 1, 1, [NAN], Status.NONFINITE),
        ([[1, 0], [0, 1]], 0, 1, 1, [ONE], Status.LAST_MISPLACED),
        ([[1, 0], [0, 1]], 1, 2, 1, [ONE], Status.LAST_MISPLACED),
        ([[1, 0], [1, 1]], 0, 0, 2, [ONE, NAN], Status.LAST_MISPLACED | Status.OUTLIER_COUNT),
        ([[1, 1], [1, 0]], 1, 1, 2, [ONE, NAN], Status.NONFINITE | Status.OUTLIER_COUNT),
        ([[0, 0], [0, 0]], 1, 1, 2, [NAN, NAN], Status.OUTLIER_COUNT),  # drained, not taken
        (
            [[1, 0]], 0, 1, 2, [NAN, ONE],
            Status.LAST_MISPLACED | Status.OUTLIER_COUNT | Status.NONFINITE,
        ),
    ],
)  # fmt: skip
def test_faults_of_beats(mask, last_a, last_w, outliers, x, wanted) -> None:
    job = header(outliers=outliers)
    beats = {"mask": mask, "last_a": last_a, "last_w": last_w, "x": x}
    assert job_status(job, Status(0), **beats) == wanted
    assert job_status(job, Status.COLUMN_RANGE, **beats) == Status.COLUMN_RANGE


def test_a_mask_that_is_too_short_is_refused() -> None:
    with pytest.raises(ValueError, match="mask must reach beat 1, not 1 beats"):
        job_status(header(), Status(0), mask=[[0, 0]], last_a=1, last_w=1, x=[])


def test_steps_of_beats_with_outliers() -> None:
    """One step per beat, and one more for each further outlier. Shown to fail: all steps first."""
    header = JobHeader(length=6, outliers=2, s_a=0, last_column=0)
    mask = [[1, 0, 1, 1], [0, 0, 1, 1]]  # elements 6 and 7 are beyond the length
    steps = job_steps(header, Status(0), mask=mask, last_a=1, last_w=1)
    assert steps == [
        Step(beat=0, is_first=True, element=0, present=True, is_last=False),
        Step(beat=0, is_first=False, element=2, present=True, is_last=False),
        Step(beat=0, is_first=False, element=3, present=False, is_last=False),
        Step(beat=1, is_first=True, element=0, present=False, is_last=True),
    ]
    assert [step.beat for step in job_steps(header, Status(0), mask=mask, last_a=0, last_w=1)] == [
        0, 0, 0,
    ]  # fmt: skip
    assert not job_steps(header, Status.NONFINITE, mask=mask, last_a=1, last_w=1)
