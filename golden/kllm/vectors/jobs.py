"""Lane jobs as port words, with what golden says comes back."""

import dataclasses

import numpy as np
import torch

from golden.kllm.format import NO_OUTPUT, Status
from golden.kllm.lane import JobHeader, header_status, job_status
from golden.kllm.matmul import MatmulResult, integer_matmul, matmul
from golden.kllm.products import codebook_words, integer_words
from golden.kllm.records import Codebooks, Packet, Tokens, Weight
from golden.words import layout_words, pack

STREAMS = ("job", "a", "w", "x", "s_b", "y", "status")

# Faults that golden.kllm.matmul has no operands for.
_BEYOND_MATMUL = (
    Status.CODEBOOK_MISSING | Status.LAST_MISPLACED | Status.OUTLIER_COUNT | Status.COLUMN_RANGE
)


@dataclasses.dataclass
class Job:
    """One job: operands, and the ways in which it may be malformed."""

    values: np.ndarray  # (K,) activation indices or unsigned integers
    outlier: np.ndarray  # (K,) bool
    x: np.ndarray  # (K,) FP16 words, read at outliers
    s_a: int
    index_b: np.ndarray  # (K, n) weight indices, n <= columns
    s_b: np.ndarray  # (n,) FP16 words
    integer: bool = False
    length: int | None = None  # what the header says, where it differs from K
    outliers: int | None = None  # likewise
    last_a: int | None = None  # the beat of `a` that has last, and is the packet's final one
    last_w: int | None = None
    missing_codebook: bool = False

    @property
    def is_malformed(self) -> bool:
        """The header or a ``last`` contradicts the operands."""
        given = (self.length, self.outliers, self.last_a, self.last_w)
        return any(each is not None for each in given)


@dataclasses.dataclass(frozen=True)
class _Beats:
    """The words of a job that a lane meets."""

    mask: np.ndarray  # (beats of a, elements), junk beyond the length
    last_a: int
    last_w: int
    x: np.ndarray  # the outlier words


def codebook_packet(config, codebook_a, codebook_b) -> np.ndarray:
    """Words of the stream of a K-Means packet."""
    return packet_stream(config, packet_words(config, codebook_a, codebook_b))


def packet_words(config, codebook_a, codebook_b) -> np.ndarray:
    """Words of a K-Means packet."""
    books = torch.as_tensor(codebook_a), torch.as_tensor(codebook_b)
    return codebook_words(*books, config.product, config.antisymmetric).numpy()


def integer_words_of(config, codebook_v) -> torch.Tensor:
    """Words of an Integer packet."""
    v = torch.as_tensor(codebook_v)
    return integer_words(v, config.bits_a, config.product, config.antisymmetric)


def integer_packet(config, codebook_v) -> np.ndarray:
    """Words of the stream of an Integer packet."""
    return packet_stream(config, integer_words_of(config, codebook_v).numpy())


def packet_stream(config, words: np.ndarray, junk: int = 0xFFFF) -> np.ndarray:
    """A packet with ``last``, word by word or in rows. junk: the words after its last one."""
    per_row = config.packet_words
    rows = -(-len(words) // per_row)
    padded = np.full(rows * per_row, junk, dtype=np.int64)
    padded[: len(words)] = words
    last = np.zeros(rows, dtype=np.int64)
    last[-1] = 1
    shape = (rows, per_row) if per_row > 1 else rows
    return layout_words(config.packet_layout, word=padded.reshape(shape), last=last)


def random_codebook(rng: np.random.Generator, bits: int, *, ends: bool = True) -> np.ndarray:
    """Sorted FP16 words in -1..1, both ends included; without ``ends`` every word is random.

    The first and last entry have all their bits tested only without the ends.
    """
    outer = [-1.0, 1.0] if ends else rng.uniform(-1, 1, 2)
    inner = rng.uniform(-1, 1, 2**bits - 2) * rng.choice([1, 2.0**-9, 2.0**-22], 2**bits - 2)
    values = np.sort(np.concatenate([outer, inner])).astype(np.float16)
    return values.view(np.uint16).astype(np.int64)


def weight_codebook(rng: np.random.Generator, config, *, ends: bool = True) -> np.ndarray:
    """``random_codebook`` of the weights or of V, of the kind that the lane takes."""
    book = random_codebook(rng, config.bits_b, ends=ends)
    if config.antisymmetric:
        upper = np.sort(book[len(book) // 2 :] & 0x7FFF)
        book = np.concatenate([upper[::-1] | 0x8000, upper])
    return book


def books_of(rng: np.random.Generator, config, *, ends: bool = True) -> list:
    """C_A and C_B."""
    return [random_codebook(rng, config.bits_a, ends=ends), weight_codebook(rng, config, ends=ends)]


def _finite_words(rng: np.random.Generator, shape) -> np.ndarray:
    """FP16 words over every exponent but that of infinity."""
    return rng.integers(0, 2, shape) << 15 | rng.integers(0, 31 << 10, shape)


def random_job(
    rng: np.random.Generator,
    config,
    length: int,
    *,
    columns: int | None = None,
    outliers: int = 0,
    integer: bool = False,
    index: int | None = None,
) -> Job:
    """Random operands; ``index`` makes every index that one."""
    columns = config.columns if columns is None else columns
    bits = config.integer_bits if integer else config.bits_a
    values = rng.integers(0, 2**bits, length)
    index_b = rng.integers(0, 2**config.bits_b, (length, columns))
    if index is not None:
        values[:] = index % 2**bits
        index_b[:] = index % 2**config.bits_b
    outlier = np.zeros(length, dtype=bool)
    outlier[rng.permutation(length)[:outliers]] = True
    return Job(
        values=values,
        outlier=outlier,
        x=_finite_words(rng, length),
        s_a=int(_finite_words(rng, 1)[0]) & 0x3FFF,
        index_b=index_b,
        s_b=_finite_words(rng, columns) & 0xBFFF,
        integer=integer,
    )


def _header(job: Job) -> JobHeader:
    return JobHeader(
        length=len(job.values) if job.length is None else job.length,
        outliers=int(job.outlier.sum()) if job.outliers is None else job.outliers,
        s_a=job.s_a,
        last_column=len(job.s_b) - 1,
        integer=job.integer,
    )


def _of_golden(config, job: Job, codebooks) -> MatmulResult:
    """The matrix product of a well-formed job."""
    tensor = torch.as_tensor
    tokens = Tokens(
        tensor(job.values)[None],
        tensor(job.outlier)[None],
        tensor(job.x)[None],
        tensor([job.s_a]),
    )
    weight = Weight(tensor(job.index_b), tensor(job.s_b))
    if job.integer:
        packet = Packet(
            integer_words_of(config, codebooks[0]), config.bits_a, config.bits_b, config.product,
            config.antisymmetric,
        )  # fmt: skip
        return integer_matmul(tokens, weight, packet, config.integer_bits, config.k_max)
    books = Codebooks(tensor(codebooks[0]), tensor(codebooks[1]), config.product)
    return matmul(tokens, weight, books, config.k_max)


def _expected(config, job: Job, codebooks, beats: _Beats) -> tuple[np.ndarray, int]:
    """(y words, status) of one job: golden.kllm.lane, and golden.kllm.matmul where it applies."""
    header = _header(job)
    of_header = header_status(
        header, columns=config.columns, k_max=config.k_max, outliers_max=config.outliers_max,
        has_codebook=not job.missing_codebook,
    )  # fmt: skip
    status = job_status(
        header, of_header, mask=beats.mask.tolist(), last_a=beats.last_a, last_w=beats.last_w,
        x=beats.x.tolist(),
    )  # fmt: skip
    none = np.zeros(0, dtype=np.int64)
    if job.is_malformed or status & _BEYOND_MATMUL:
        assert status & NO_OUTPUT, f"a malformed job without a fault: {job}"
        return none, int(status)
    result = _of_golden(config, job, codebooks)
    of_product = int(result.status[0])
    assert of_product & NO_OUTPUT == status, (
        f"golden.kllm.matmul: {Status(of_product)!r}, golden.kllm.lane: {status!r}"
    )
    return none if status & NO_OUTPUT else result.y[0].numpy(), of_product


def phase_vectors(config, jobs: list[Job], codebooks) -> dict[str, np.ndarray]:
    """Words of every stream of the lane for these jobs in order, and the cycles they are bound by.

    codebooks: (C_A, C_B), or (C_V,) for integer jobs, loaded while they run.
    """
    elements, columns = config.elements, config.columns
    words: dict[str, list[np.ndarray]] = {name: [] for name in STREAMS}
    for job in jobs:
        length = len(job.values)
        beats = -(-length // elements)
        header = _header(job)
        words["job"].append(
            layout_words(
                config.job_layout,
                length=[header.length],
                outliers=[header.outliers],
                s_a=[header.s_a],
                last_column=[header.last_column],
                integer=[header.integer],
            )
        )
        padding = beats * elements - length
        values = np.pad(job.values, (0, padding), constant_values=1).reshape(beats, elements)
        # The mask beyond the end is junk that the lane must ignore.
        outlier = np.pad(job.outlier, (0, padding), constant_values=1).reshape(beats, elements)
        index = np.pad(
            job.index_b, ((0, padding), (0, columns - job.index_b.shape[1])), constant_values=1
        )
        index = index.reshape(beats, elements, columns).transpose(0, 2, 1)
        final = {}
        for name, at, layout, fields in (
            ("a", job.last_a, config.a_layout, {"value": values, "outlier": outlier}),
            ("w", job.last_w, config.w_layout, {"index": index}),
        ):
            final[name] = beats - 1 if at is None else at
            take = np.minimum(np.arange(final[name] + 1), max(beats - 1, 0))
            if beats:
                last = (np.arange(final[name] + 1) == final[name]).astype(np.int64)
                taken = {field: part[take] for field, part in fields.items()}
                words[name].append(layout_words(layout, **taken, last=last))
        at_outliers = job.x[job.outlier]
        sent = (
            np.resize(at_outliers, header.outliers)
            if len(at_outliers)
            else np.zeros(header.outliers, dtype=np.int64)
        )
        if header.outliers:
            words["x"].append(pack((sent, 16)))
        words["s_b"].append(pack((job.s_b, 16)))
        mask = outlier[np.minimum(np.arange(final["a"] + 1), beats - 1)] if beats else outlier
        met = _Beats(mask=mask, last_a=final["a"], last_w=final["w"], x=sent)
        y, status = _expected(config, job, codebooks, met)
        if len(y):
            last = (np.arange(len(y)) == len(y) - 1).astype(np.int64)
            words["y"].append(layout_words(config.word_layout, word=y, last=last))
        words["status"].append(pack((np.array([status]), len(Status))))
    empty = np.zeros((0, 1), dtype=np.uint8)
    return {name: np.concatenate(parts) if parts else empty for name, parts in words.items()}
