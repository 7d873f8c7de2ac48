"""Lane jobs as port words, with what golden says comes back."""

import dataclasses

import numpy as np
import torch

from golden.kllm.format import NO_OUTPUT, Status
from golden.kllm.matmul import index_matmul, integer_matmul, product_codebook
from hdl.kllm.pe_lane import KllmPeLaneConfig
from tb.words import pack

__all__ = ["Job", "codebook_packet", "phase_vectors", "random_codebook", "random_job"]

STREAMS = ("job", "a", "w", "x", "s_b", "y", "status")


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
    fault: int = 0  # Status bits: what the malformation above raises

    @property
    def header_length(self) -> int:
        return len(self.values) if self.length is None else self.length


def codebook_packet(config: KllmPeLaneConfig, codebook_a, codebook_b) -> np.ndarray:
    """(words, 2 columns: word, last) of a K-Means packet."""
    codebook_a, codebook_b = torch.as_tensor(codebook_a), torch.as_tensor(codebook_b)
    if config.product == "exact":
        first = codebook_a
    else:
        first = product_codebook(codebook_a, codebook_b)
    return _packet(torch.cat([first, codebook_b]).numpy())


def integer_packet(codebook_v) -> np.ndarray:
    return _packet(np.asarray(codebook_v))


def _packet(words: np.ndarray) -> np.ndarray:
    last = np.zeros(len(words), dtype=np.int64)
    last[-1] = 1
    return pack((words, 16), (last, 1))


def random_codebook(rng: np.random.Generator, bits: int, *, ends: bool = True) -> np.ndarray:
    """Sorted FP16 words in -1..1, both ends included; without ``ends`` every word is random.

    The first and last entry have all their bits tested only without the ends.
    """
    outer = [-1.0, 1.0] if ends else rng.uniform(-1, 1, 2)
    inner = rng.uniform(-1, 1, 2**bits - 2) * rng.choice([1, 2.0**-9, 2.0**-22], 2**bits - 2)
    values = np.sort(np.concatenate([outer, inner])).astype(np.float16)
    return values.view(np.uint16).astype(np.int64)


def _finite_words(rng: np.random.Generator, shape) -> np.ndarray:
    """FP16 words over every exponent but that of infinity."""
    return rng.integers(0, 2, shape) << 15 | rng.integers(0, 31 << 10, shape)


def random_job(
    rng: np.random.Generator,
    config: KllmPeLaneConfig,
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


def _expected(config, job: Job, codebooks) -> tuple[np.ndarray, int]:
    """(y words, status) of one job."""
    fault = job.fault
    if job.header_length == 0:
        fault |= Status.LENGTH_ZERO
    if job.header_length > config.k_max:
        fault |= Status.LENGTH_TOO_LONG
    if job.missing_codebook:
        fault |= Status.CODEBOOK_MISSING
    if job.s_a & 0x7C00 == 0x7C00:
        fault |= Status.NONFINITE
    if fault & NO_OUTPUT:
        return np.zeros(0, dtype=np.int64), int(fault)
    tensor = torch.as_tensor
    s_a, s_b = tensor([job.s_a]), tensor(job.s_b)
    if job.integer:
        result = integer_matmul(
            tensor(job.values)[None], s_a, tensor(job.index_b), s_b, tensor(codebooks[0]),
            int_bits=config.integer_bits, k_max=config.k_max,
        )  # fmt: skip
    else:
        result = index_matmul(
            tensor(job.values)[None], tensor(job.outlier)[None], tensor(job.x)[None], s_a,
            tensor(job.index_b), s_b, tensor(codebooks[0]), tensor(codebooks[1]),
            product=config.product, k_max=config.k_max,
        )  # fmt: skip
    status = int(result.status[0])
    y = result.y[0].numpy() if not status & NO_OUTPUT else np.zeros(0, dtype=np.int64)
    return y, status


def phase_vectors(config: KllmPeLaneConfig, jobs: list[Job], codebooks) -> dict[str, np.ndarray]:
    """Words of every stream of the lane for these jobs in order, and the cycles they are bound by.

    codebooks: (C_A, C_B), or (C_V,) for integer jobs; what is loaded while they run.
    """
    elements, columns = config.elements, config.columns
    words: dict[str, list[np.ndarray]] = {name: [] for name in STREAMS}
    value_bits = max(config.bits_a, config.integer_bits)
    column_bits = max(config.columns - 1, 1).bit_length()
    for job in jobs:
        length = len(job.values)
        beats = -(-length // elements)
        header_outliers = int(job.outlier.sum()) if job.outliers is None else job.outliers
        words["job"].append(
            pack(
                ([job.header_length], 16),
                ([header_outliers], 16),
                ([job.s_a], 16),
                ([len(job.s_b) - 1], column_bits),
                ([job.integer], 1),
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
        for name, at, fields in (
            ("a", job.last_a, [(values, value_bits), (outlier, 1)]),
            ("w", job.last_w, [(index, config.bits_b)]),
        ):
            final = beats - 1 if at is None else at
            take = np.minimum(np.arange(final + 1), max(beats - 1, 0))
            if beats:
                last = (np.arange(final + 1) == final).astype(np.int64)
                words[name].append(pack(*((f[take], bits) for f, bits in fields), (last, 1)))
        at_outliers = job.x[job.outlier]
        sent = np.resize(at_outliers, header_outliers) if len(at_outliers) else np.zeros(
            header_outliers, dtype=np.int64
        )
        if header_outliers:
            words["x"].append(pack((sent, 16)))
        words["s_b"].append(pack((job.s_b, 16)))
        y, status = _expected(config, job, codebooks)
        if len(y):
            last = (np.arange(len(y)) == len(y) - 1).astype(np.int64)
            words["y"].append(pack((y, 16), (last, 1)))
        words["status"].append(pack(([status], len(Status))))
    empty = np.zeros((0, 1), dtype=np.uint8)
    return {name: np.concatenate(parts) if parts else empty for name, parts in words.items()}
