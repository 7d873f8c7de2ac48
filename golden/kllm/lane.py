"""The reports of a lane for a job, well-formed or not (docs/blocks/kllm_pe_lane.md). Pure Python.

golden.kllm.matmul computes the outputs of a well-formed job. This module adds the faults that only
a lane can see: counts that contradict ``last`` bits, and a missing codebook.
"""

import dataclasses
from collections.abc import Sequence

from golden.kllm.format import Status, integer_packet_length, kmeans_packet_length, packet_fits
from golden.kllm.isa import MatmulMode

_INFINITY = 0x7C00  # the exponent field of an FP16 word, all ones


def codebook_mode(
    words: Sequence[int], *, bits_a: int, bits_b: int, integers: bool, product: str = "rounded"
) -> MatmulMode | None:
    """The mode whose codebook the buffer holds after a packet of ``words``; None: of no mode.

    A packet has the length of a mode's packet (golden.kllm.format), and words in -1..1.
    """
    if not packet_fits(words, bits_a, bits_b, product):
        return None
    if len(words) == kmeans_packet_length(bits_a, bits_b):
        return MatmulMode.KMEANS
    is_integer = integers and len(words) == integer_packet_length(bits_b)
    return MatmulMode.INTEGER if is_integer else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobHeader:
    """The word of ``job``."""

    length: int  # elements of the reduction, K
    outliers: int  # words of x
    s_a: int  # FP16 word
    last_column: int  # output columns less one
    integer: bool = False  # Integer x K-Means


def _is_special(word: int) -> bool:
    return word & _INFINITY == _INFINITY


def header_status(
    header: JobHeader, *, columns: int, k_max: int, outliers_max: int, has_codebook: bool = True
) -> Status:
    """Every fault that the header alone shows: the union of the bits, 0 if none.

    columns, k_max, outliers_max: of the lane. has_codebook: the buffer holds a packet of the job's
    mode. The faults are LENGTH_ZERO or LENGTH_TOO_LONG, CODEBOOK_MISSING, NONFINITE (s_a),
    COLUMN_RANGE and OUTLIER_COUNT (more than outliers_max, or any in integer mode).
    """
    status = Status(0)
    if header.length == 0:
        status |= Status.LENGTH_ZERO
    if header.length > k_max:
        status |= Status.LENGTH_TOO_LONG
    if not has_codebook:
        status |= Status.CODEBOOK_MISSING
    if _is_special(header.s_a):
        status |= Status.NONFINITE
    if header.last_column >= columns:
        status |= Status.COLUMN_RANGE
    if header.outliers > outliers_max or (header.integer and header.outliers):
        status |= Status.OUTLIER_COUNT
    return status


def job_status(
    header: JobHeader,
    of_header: Status,
    *,
    mask: Sequence[Sequence[int]],
    last_a: int,
    last_w: int,
    x: Sequence[int],
) -> Status:
    """Faults of a job before its outputs: ``of_header``, or else those that its beats show.

    of_header: ``header_status`` of the header. A lane drains a job with a header fault and checks
    nothing of its beats. mask: outlier mask of each beat of ``a``; last_a, last_w: the beat with
    ``last`` of each stream; x: the outlier words. A lane checks beats up to the one on which the
    length, ``last`` of a or ``last`` of w ends the job; it drains the beats and words after that
    one. Bits: LAST_MISPLACED, OUTLIER_COUNT and NONFINITE (an outlier that was taken), several
    together. SCALE_NONFINITE and OVERFLOW need outputs: see golden.kllm.matmul.
    """
    status = Status(of_header)
    if status:
        return status
    taken = 0
    elements = len(mask[0])
    for beat in range(len(mask)):
        left = header.length - beat * elements
        for is_outlier in mask[beat][:left]:
            if not is_outlier:
                continue
            if taken == header.outliers:
                status |= Status.OUTLIER_COUNT
            else:
                if _is_special(x[taken]):
                    status |= Status.NONFINITE
                taken += 1
        ends = (left <= elements, beat == last_a, beat == last_w)
        if any(ends):
            if not all(ends):
                status |= Status.LAST_MISPLACED
            if taken != header.outliers:
                status |= Status.OUTLIER_COUNT
            return status
    raise ValueError(f"mask must reach beat {min(last_a, last_w)}, not {len(mask)} beats")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """The words that a lane takes in one cycle of a job."""

    beat: int
    is_first: bool  # of the beat: its inliers count
    element: int  # of the outlier; 0 if there is none
    present: bool  # the step takes a word of x
    is_last: bool  # of the job


def job_steps(
    header: JobHeader,
    of_header: Status,
    *,
    mask: Sequence[Sequence[int]],
    last_a: int,
    last_w: int,
) -> list[Step]:
    """Steps of a job: max(1, o) for a beat with o outliers, up to the beat that ends the job.

    Arguments as in ``job_status``. A job with a fault of its header has no steps. An outlier beyond
    ``header.outliers`` has a step that takes no word.
    """
    steps: list[Step] = []
    x_left = header.outliers
    for beat in range(0 if of_header else len(mask)):
        left = header.length - beat * len(mask[0])
        outliers = [e for e, is_outlier in enumerate(mask[beat][:left]) if is_outlier]
        ends = left <= len(mask[0]) or beat in (last_a, last_w)
        for n in range(max(1, len(outliers))):
            present = bool(outliers) and x_left > 0
            x_left -= present
            element = outliers[n] if outliers else 0
            is_last = ends and n + 1 >= len(outliers)
            steps.append(Step(beat=beat, is_first=n == 0, element=element, present=present,
                              is_last=is_last))  # fmt: skip
        if ends:
            break
    return steps
