"""QET: a decoder by its parts next to one of plain product quantization, and gemv next to VQ's."""

import dataclasses
import functools

import torch

from golden.checkpoint import CheckpointError, load
from golden.markers import table
from golden.qet.config import Stage, TileShape
from golden.qet.matrix import QetMatrix
from golden.qet.timing import tile_cycles
from golden.vqllm.bounds import job_bounds
from golden.vqllm.config import NAMED, MatrixShape, VqShape
from golden.vqllm.format import Plan
from golden.vqllm.matrix import VqMatrix, quantize
from hdl.qet.decoder import QetDecoder, QetDecoderConfig
from hdl.qet.dequant_gemv import QetDequantGemv
from hdl.qet.gemv_config import QetDequantGemvConfig
from hdl.vqllm.cache_config import VqCodebookCacheConfig
from hdl.vqllm.gemv import VqGemv
from hdl.vqllm.gemv_config import VqGemvConfig
from hdl.vqllm.gemv_core import VqGemvCoreConfig
from synth.area import load_libraries
from synth.liberty import Library
from synth.tables.common import Map, Tables, mapper
from synth.tables.vqllm import Areas

__all__ = ["DECODERS", "ENGINES", "TABLES", "decoder_table", "engine_table"]

_ENTRIES, _RESIDUAL = 256, 64


def _tiles(levels: tuple[int, ...], entry_bits: int) -> TileShape:
    entries = (_ENTRIES, _RESIDUAL, _RESIDUAL, _RESIDUAL)
    stages = tuple(Stage(levels=each, entries=k) for each, k in zip(levels, entries, strict=False))
    return TileShape(stages=stages, entry_bits=entry_bits)


# What is decoded, from plain product quantization on: levels of each stage, bits of an element.
DECODERS = {
    "product quantization": _tiles((0,), 0),
    **{f"{levels} levels" if levels > 1 else "1 level": _tiles((levels,), 0)
       for levels in range(1, 6)},
    "3 levels, entries of 10 bits": _tiles((3,), 10),
    "3 levels, residual": _tiles((3, 0), 0),
    "3 levels, residual, 10 bits: QET": _tiles((3, 0), 10),
    "3 levels, residual of 3 levels, 10 bits": _tiles((3, 3), 10),
    "3 levels, three residuals, 10 bits": _tiles((3, 0, 0, 0), 10),
    "3 levels, residual, 8 bits": _tiles((3, 0), 8),
    "3 levels, residual, 12 bits": _tiles((3, 0), 12),
}  # fmt: skip

# Engines for a matrix of SmolLM2's FFN, 64 or 32 products per cycle.
ENGINES = {
    "VQ<4,256,2>": (VqShape(size=4, entries=256, stages=2), 32),
    "gptvq2": (NAMED["gptvq2"], 16),
    "aqlm2x8": (NAMED["aqlm2x8"], 8),
    "quip4": (NAMED["quip4"], 8),
}  # fmt: skip


def decoder_table(map_block: Map, library: Library) -> dict[str, str]:
    """Section ``qet_decoder``: per column of a tile, um2 at 28 nm."""
    rows, plain = [], None
    for name, shape in DECODERS.items():
        block = QetDecoder(QetDecoderConfig(shape=shape))
        areas, columns = Areas.of(map_block(block, "qet_decoder"), library), shape.columns
        plain = plain or areas.logic / columns
        logic = areas.logic / columns
        rows.append(
            (
                name, columns, f"{logic:,.0f}", f"{logic / plain:.1f}",
                f"{areas.gates / columns:,.0f}", f"{areas.flip_flops / columns:,.0f}",
                f"{areas.bits / columns:,.0f}", f"{areas.whole['CACTI'] / columns:,.0f}",
                block.timing.latency,
            )
        )  # fmt: skip
    head = (
        "decoder", "columns per cycle", "logic per column", "ratio", "without flip-flops",
        "flip-flops", "SRAM bits", "with SRAM, CACTI", "latency",
    )  # fmt: skip
    return {"qet_decoder": table(head, rows)}


@functools.lru_cache(maxsize=1)
def _weight() -> torch.Tensor:
    try:
        model = load().model
    except CheckpointError as error:
        raise ValueError(str(error)) from None
    return model.get_parameter("model.layers.15.mlp.up_proj.weight").detach().float()


def _qet(bits: int) -> QetMatrix:
    from golden.eval.methods.qet import Qet

    return Qet(rate=bits).matrix(_weight())


def _relative(restored: torch.Tensor) -> float:
    """Mean squared error by the variance."""
    exact = _weight().double()
    return float((exact - restored).square().mean() / exact.var(correction=0))


def _vq_engine(vq: VqShape, lookups: int) -> VqGemvConfig:
    shared = min(vq.entries, 4096)
    cache = VqCodebookCacheConfig(vq=vq, lookups=lookups, registers=32, shared=shared)
    vectors = lookups // vq.stages
    columns = -(-1536 // (vectors * vq.size)) * vectors * vq.size
    return VqGemvConfig(core=VqGemvCoreConfig(cache=cache, columns=columns, rows=1536), scaled=True)


def _vq_matrix(vq: VqShape) -> tuple[VqMatrix, float, float]:
    """(matrix, bits per weight, relative error) of the weight."""
    from golden.vqllm import quip

    weight = _weight()
    if vq.lattice:
        generator = torch.Generator().manual_seed(0)
        outputs, inputs = (quip.rotation(width, generator) for width in weight.shape)
        made = quip.quantize(weight, inputs, outputs, vq.stages)
        return made.matrix, made.bits_per_element, _relative(made.real())
    shape = MatrixShape(rows=weight.shape[0], columns=weight.shape[1], vq=vq)
    matrix = quantize(weight, shape, scaled=True)
    bits = shape.code_bits + shape.codebook_bits + 16 * shape.rows
    return matrix, bits / weight.numel(), _relative(matrix.real())


def engine_table(map_block: Map, library: Library) -> dict[str, str]:
    """Section ``qet_gemv``: engines, their bits and errors on the same weight."""
    rows = []

    def add(name, bits, error, products, cycles, block, of):
        areas = Areas.of(map_block(block, of), library)
        rows.append(
            (
                name, f"{bits:.2f}", f"{error:.4f}", products, f"{cycles:,}",
                f"{areas.logic:,.0f}", f"{areas.flip_flops:,}", f"{areas.bits:,}",
                f"{areas.whole['CACTI']:,.0f}",
            )
        )  # fmt: skip

    for bits in (4, 3):
        matrix = _qet(bits)
        stages = tuple(
            dataclasses.replace(stage, entries=max(2, stage.entries))
            for stage in matrix.shape.stages
        )
        config = QetDequantGemvConfig(shape=TileShape(stages=stages), columns=1536, rows=1536)
        entries = sum(stage.entries for stage in matrix.shape.stages)
        books = config.image.book_words(entries)
        codes = config.image.row_words(matrix.shape.rows)
        tile = tile_cycles(matrix.shape.rows, books, codes, entries)
        add(
            f"qet-{bits}b", matrix.shape.stored_bits / _weight().numel(),
            _relative(matrix.real()), config.shape.columns, matrix.shape.tiles * tile + books,
            QetDequantGemv(config), "qet_dequant_gemv",
        )  # fmt: skip
    for name, (vq, lookups) in ENGINES.items():
        config = _vq_engine(vq, lookups)
        matrix, bits, error = _vq_matrix(vq)
        plan = Plan(registers=32, shared=config.core.cache.shared)
        bounds = job_bounds(matrix, config.image, plan, config.core.cache.banks, config.lanes)
        add(name, bits, error, config.core.sums.macs, max(bounds.values()), VqGemv(config),
            "vq_gemv")  # fmt: skip
    head = (
        "engine", "bits per weight", "MSE / variance", "products per cycle", "cycles, bound",
        "logic", "flip-flops", "SRAM bits", "with SRAM, CACTI",
    )  # fmt: skip
    return {"qet_gemv": table(head, rows)}


def _make(options) -> tuple[dict[str, str], float]:
    libraries = load_libraries()
    map_block, library = mapper(libraries), libraries.library
    return decoder_table(map_block, library) | engine_table(map_block, library), 0.0


TABLES = {"qet": Tables(("qet_decoder", "qet_gemv"), _make, page="qet-area.md")}
