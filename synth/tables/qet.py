"""QET: a decoder by its parts next to one of plain product quantization, and gemv next to VQ's."""

from golden.markers import table
from golden.qet.config import Stage, TileShape
from golden.qet.timing import image_bound
from golden.vqllm.config import NAMED, VqShape
from golden.vqllm.format import Plan
from hdl.qet.decoder import QetDecoder, QetDecoderConfig
from hdl.qet.dequant_gemv import QetDequantGemv
from hdl.qet.gemv_config import QetDequantGemvConfig
from hdl.vqllm.cache.config import VqCodebookCacheConfig
from hdl.vqllm.gemv.config import VqGemvConfig
from hdl.vqllm.gemv.core import VqGemvCoreConfig
from hdl.vqllm.gemv.gemv import VqGemv
from synth.area import load_libraries
from synth.liberty import Library
from synth.tables.common import Map, Tables, mapper
from synth.tables.vqllm import Areas

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


def _vq_engine(vq: VqShape, lookups: int) -> VqGemvConfig:
    shared = min(vq.stored, 4096)
    cache = VqCodebookCacheConfig(vq=vq, lookups=lookups, registers=32, shared=shared)
    vectors = lookups // vq.stages
    columns = -(-1536 // (vectors * vq.size)) * vectors * vq.size
    return VqGemvConfig(core=VqGemvCoreConfig(cache=cache, columns=columns, rows=1536), scaled=True)


def engine_table(map_block: Map, library: Library) -> dict[str, str]:
    """Section ``qet_gemv``: engines, their bits and errors on the same weight."""
    from golden.qet.pack import shape_of  # torch, only now
    from golden.vqllm.bounds import job_bounds
    from synth.tables.weight_codes import error_of, qet, vq, weight

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
        matrix = qet(bits)
        config = QetDequantGemvConfig(shape=shape_of(matrix), columns=1536, rows=1536)
        add(
            f"qet-{bits}b", matrix.shape.stored_bits / weight().numel(),
            error_of(matrix.real()), config.shape.columns, image_bound(matrix.shape, config.image),
            QetDequantGemv(config), "qet_dequant_gemv",
        )  # fmt: skip
    for name, (vq_shape, lookups) in ENGINES.items():
        engine = _vq_engine(vq_shape, lookups)
        codes_of, stored, error = vq(vq_shape)
        plan = Plan(registers=32, shared=engine.core.cache.shared)
        bounds = job_bounds(codes_of, engine.image, plan, engine.core.cache.banks, engine.lanes)
        add(name, stored, error, engine.core.sums.macs, max(bounds.values()), VqGemv(engine),
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
