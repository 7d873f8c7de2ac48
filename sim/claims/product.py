"""One product of one token, 4096 x 4096, on KLLM and on a GPU."""

import functools

from golden.kllm.assembler import Assembler
from golden.kllm.config import outlier_count
from golden.kllm.isa import ROW_ELEMENTS, Outliers, Unit
from sim.engine import Engine, engine_of
from sim.engines.gpu import Gpu
from sim.engines.kllm import Kllm
from sim.kllm.schedule import timeline
from sim.work import LINEAR, Work

SIZE = 4096


def kllm_product_seconds(hardware: str) -> float:
    """QUANTIZE and MATMUL; codebooks and the token are in the vector memory."""
    engine = engine_of(hardware)
    assert isinstance(engine, Kllm)
    return kllm_product_cycles(hardware)[0] / engine.clock


@functools.cache
def kllm_product_cycles(hardware: str) -> tuple[float, dict[Unit, float]]:
    """Counts the cycles of the product, and of the commands of each unit."""
    engine = engine_of(hardware)
    assert isinstance(engine, Kllm)
    asm = Assembler(engine.machine)
    x, codebook = asm.vector(SIZE), asm.vector(2 * ROW_ELEMENTS)
    packet, y = asm.vector(engine.machine.kmeans_words), asm.vector(SIZE)
    asm.activation_codebook(src=codebook)
    asm.lane_codebook(src=packet)
    slots = asm.slots()
    k = outlier_count(SIZE)
    asm.quantize(src=x, slot=slots, outliers=Outliers(k, k))
    asm.matmul(weights=0, dst=y, length=SIZE, slot=slots)
    made = timeline(asm.words(), engine.cycles, dict.fromkeys(Unit, 0))
    busy = dict.fromkeys(Unit, 0.0)
    for each in made.placed:
        busy[each.unit] += each.end - each.begin
    return made.cycles, busy


def gpu_product_seconds(hardware: str) -> float:
    """A GPU's kernel with 4-bit weights that are looked up and multiplied in FP16."""
    return _seconds(engine_of(hardware, {"settings.weight_bits": 4}))


def stored_product_seconds(hardware: str) -> float:
    """A GPU's kernel with weights and activations as its file stores them."""
    return _seconds(engine_of(hardware))


def _seconds(engine: Engine) -> float:
    work = Work(
        name="product", kind=LINEAR, count=1, macs=SIZE * SIZE, inputs=SIZE, outputs=SIZE, rows=1,
        weights=SIZE * SIZE, vectors=2 * SIZE,
    )  # fmt: skip
    assert isinstance(engine, Gpu)
    return engine.operation(work).seconds
