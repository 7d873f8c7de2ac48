"""Physical limits of a pass, and how fast it is with each host. No simulation is run."""

import pytest

from golden.kllm.isa import COMMAND_WORDS
from golden.kllm.layer.layout import Job
from golden.kllm.layer.shape import LayerOptions, LayerShape
from golden.kllm.model.layout import ModelShape, model_layout
from golden.kllm.model.program import pass_program
from hdl.kllm.accelerator import KllmAcceleratorConfig
from hdl.kllm.room import BLOCKS
from senbazuru.talk.options import PORTS
from senbazuru.talk.report import BENCH, HOST, controller, limits, predicted

LAYERS, HIDDEN, FFN, HEADS, KV_HEADS, SIZE, VOCABULARY = 30, 576, 1536, 9, 3, 64, 49152
CONTEXT = 42


@pytest.fixture(scope="module")
def config():
    sets = [f"machine.{each}" for each in PORTS]
    return KllmAcceleratorConfig.parse(BLOCKS["kllm_accelerator"].configs["smollm2_cache"], sets)


@pytest.fixture(scope="module")
def program(config):
    layer = LayerShape(
        hidden=HIDDEN, intermediate=FFN, heads=HEADS, kv_heads=KV_HEADS, head_size=SIZE
    )
    shape = ModelShape(layer=layer, layers=LAYERS, vocabulary=VOCABULARY, context=512)
    layout = model_layout(shape, LayerOptions(), config.machine)
    return pass_program(layout, Job(1, CONTEXT), 1)


def test_lanes_need_a_cycle_for_as_many_products_as_they_form(config, program):
    """The products of the model's matrices, from its sizes alone; the head has two images."""
    kv = KV_HEADS * SIZE
    linear = HIDDEN * (HEADS * SIZE) * 2 + HIDDEN * kv * 2 + 3 * HIDDEN * FFN
    products = LAYERS * linear + 2 * HIDDEN * VOCABULARY
    machine = config.machine
    per_cycle = machine.lanes * machine.columns * machine.elements
    assert per_cycle == 2048
    assert limits(program, machine).lanes == products / per_cycle


def test_ports_need_a_cycle_for_each_word(config, program):
    """A weight has 4 bits, so the words of all ports hold all weights and little else."""
    machine = config.machine
    found = limits(program, machine)
    kv = KV_HEADS * SIZE
    weights = LAYERS * (2 * HIDDEN * (HEADS * SIZE + kv) + 3 * HIDDEN * FFN)
    bits = 4 * (weights + 2 * HIDDEN * VOCABULARY)
    least = bits / (machine.ports.ports * machine.ports.bits)
    assert least < found.ports < 1.1 * least


def test_a_slower_host_takes_longer(config, program):
    free, own, bench = (
        predicted(program, config, 40, host) for host in (HOST, controller(), BENCH)
    )
    assert limits(program, config.machine).ports < free < own < bench


def test_no_host_of_registers_is_as_fast_as_the_one_for_nothing():
    """A write of AXI4-Lite takes two cycles (hdl.axi.lite_registers)."""
    assert controller().command >= 2 * COMMAND_WORDS > HOST.command
