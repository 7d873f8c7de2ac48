"""The engines of the papers' systems: bytes, time, energy, and what they refuse."""

import dataclasses
import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from golden.config import ConfigError
from golden.oaken.config import KvShape
from golden.oaken.format import bits_read, effective_bits
from golden.oaken.timing import kv_read_cycles
from sim.constant import Constant
from sim.cost import Cost
from sim.engine import Engine, check_fits, engine_of
from sim.hardware import find_hardware
from sim.model import Model, find_model
from sim.work import Part, Pass, works

OAKEN = ("oaken-hbm", "oaken-lpddr", "oaken-hbm-fp16", "oaken-lpddr-fp16")
CHIPS = OAKEN
LLAMA = find_model("llama-2-7b")
SMALL = Model(
    name="small", architecture="llama", hidden=512, layers=2, heads=4, kv_heads=2, head_size=128,
    intermediate=1024, vocabulary=1000,
)  # fmt: skip


def number(value: float, unit: str = "") -> Constant:
    return Constant(value=value, unit=unit, kind="assumed", source="a test")


def engine(chip: str, memory: dict | None = None, constants: dict | None = None, **more) -> Engine:
    """A chip with other settings, constants and constants of its memory."""
    found = find_hardware(chip)
    held = dataclasses.replace(found.memory, constants={**found.memory.constants, **(memory or {})})
    hardware = dataclasses.replace(
        found, settings={**found.settings, **more}, memory=held,
        constants={**found.constants, **(constants or {})},
    )  # fmt: skip
    return type(engine_of(chip))(hardware)


def named(cost: Cost, name: str):
    return next(each for each in cost.spent if each.name == name)


@st.composite
def models(draw) -> Model:
    kv_heads = draw(st.sampled_from((1, 2, 4, 8, 32)))
    group = draw(st.sampled_from((1, 2, 3, 8)))
    return Model(
        name="drawn",
        architecture="llama",
        hidden=draw(st.sampled_from((512, 1024, 4096))),
        layers=draw(st.integers(1, 80)),
        heads=kv_heads * group,
        kv_heads=kv_heads,
        head_size=draw(st.sampled_from((64, 128))),
        intermediate=draw(st.sampled_from((1024, 11008))),
        vocabulary=draw(st.integers(1, 128000)),
        gated=draw(st.booleans()),
        tied=draw(st.booleans()),
        window=draw(st.sampled_from((0, 0, 1, 100, 4096))),
    )


@st.composite
def passes(draw) -> Pass:
    part = st.builds(
        Part,
        count=st.integers(1, 300),
        new=st.one_of(st.just(1), st.integers(1, 2048)),
        context=st.integers(0, 8000),
    )
    return Pass(tuple(draw(st.lists(part, min_size=1, max_size=4))))


@pytest.mark.parametrize("chip", CHIPS)
@settings(max_examples=12, deadline=None)
@given(model=models(), step=passes())
def test_no_operation_is_above_its_roof(chip, model, step):
    found = engine_of(chip)
    cost = found.cost(model, step)
    assert [each.name for each in cost.spent] == [work.name for work in works(model, step)]
    for each in cost.spent:
        assert each.seconds >= max(each.limits.values()) * (1 - 1e-12)
        assert all(seconds >= 0 for seconds in each.limits.values())
        assert each.limits["memory"] == pytest.approx(
            found.memory.seconds(sum(each.traffic.values())), rel=1e-9
        )
    for joules in cost.energy.values():
        assert 0 <= joules.low <= joules.value <= joules.high
    assert cost.energy["dram"].value == pytest.approx(found.memory.joules(cost.bytes).value)
    assert set(cost.energy) == {"static", "dram", "sram", "core"}


@pytest.mark.parametrize("chip", CHIPS)
@settings(max_examples=8, deadline=None)
@given(model=models(), step=passes())
def test_more_bandwidth_is_not_slower(chip, model, step):
    base = engine_of(chip)
    bandwidth = base.memory.constants["bandwidth"]
    faster = dataclasses.replace(bandwidth, value=2 * bandwidth.value)
    fast = engine(chip, memory={"bandwidth": faster})
    assert fast.cost(model, step).seconds <= base.cost(model, step).seconds


@pytest.mark.parametrize("chip", CHIPS)
@settings(max_examples=8, deadline=None)
@given(model=models(), batch=st.integers(1, 256), context=st.integers(0, 5000))
def test_more_sequences_and_longer_ones_take_longer(chip, model, batch, context):
    found = engine_of(chip)
    less = found.cost(model, Pass.decode(batch, context)).seconds * (1 - 1e-12)
    assert found.cost(model, Pass.decode(batch + 1, context)).seconds >= less
    assert found.cost(model, Pass.decode(batch, context + 1)).seconds >= less
    assert found.kv_bytes(model, context + 1) >= found.kv_bytes(model, context)


@settings(max_examples=8, deadline=None)
@given(model=models(), step=passes())
def test_more_lanes_and_cores_are_not_slower(model, step):
    seconds = [
        engine("oaken-hbm", dequant_lanes=lanes, quant_lanes=lanes).cost(model, step).seconds
        for lanes in (8, 16, 32, 64)
    ]
    assert seconds == sorted(seconds, reverse=True)
    cores = [engine("oaken-hbm", cores=n).cost(model, step).seconds for n in (16, 64, 264)]
    assert cores == sorted(cores, reverse=True)


@pytest.mark.parametrize("chip", OAKEN)
def test_weights_are_read_once(chip):
    found = engine_of(chip)
    read = found.cost(LLAMA, Pass.decode(16, 100)).traffic()["weights"]
    table = LLAMA.vocabulary * LLAMA.hidden
    assert read == pytest.approx((LLAMA.weights - table) * 2)
    assert found.weight_bytes(LLAMA) == LLAMA.weights * 2


@pytest.mark.parametrize("bits", [4, 8])
def test_weights_below_16_bits_have_scales(bits):
    found = engine("oaken-hbm", weight_bits=bits, weight_group=64)
    assert found.weight_bytes(LLAMA) == LLAMA.weights * (bits + 16 / 64) / 8


def test_what_is_read_is_what_is_stored():
    """FP16 words exactly; records but for the scales of a READ and the ends of pages."""
    plain = engine("oaken-hbm-fp16", page_bytes=256)
    assert plain.cost(LLAMA, Pass.decode(3, 512)).traffic()["kv_read"] == 3 * plain.kv_bytes(
        LLAMA, 512
    )
    found = engine("oaken-hbm", split=False, page_bytes=1024)
    stored = found.records(LLAMA).stored * LLAMA.layers
    cost = found.cost(LLAMA, Pass.decode(3, 1000)).traffic()
    assert cost["kv_read"] == pytest.approx(3 * 1000 * stored)
    assert cost["kv_written"] == pytest.approx(3 * stored)
    pages = found.kv_bytes(LLAMA, 1000)
    streams = LLAMA.layers * 2 * (2 * LLAMA.kv_heads + 1)
    assert 1000 * stored <= pages <= 1000 * stored + streams * 1024


@settings(max_examples=20, deadline=None)
@given(model=models(), f=st.integers(0, 100), block=st.sampled_from((16, 32, 64)))
def test_bits_of_records_are_those_of_the_format(model, f, block):
    shares = {"outliers": number(f / 100)}
    found = engine("oaken-hbm", constants=shares, block=block, dequant_lanes=16)
    records = found.records(model)
    elements = model.kv_heads * model.head_size
    bits = effective_bits(Fraction(f, 100), elements, block)
    assert records.stored * 8 / (2 * elements) == pytest.approx(bits)
    assert sum(count * each for count, each in records.streams) * 2 == pytest.approx(records.stored)
    for whole, tokens, heads in ((True, 10, None), (False, 10, 1), (True, 2000, 1)):
        read = bits_read(Fraction(f, 100), model.kv_heads, model.head_size, block, heads)
        assert records.read(tokens, whole) * 8 == pytest.approx(2 * elements * tokens * read)


def test_records_of_real_vectors():
    """The mean bytes of encoded vectors are those of the engine at their share of outliers."""
    torch = pytest.importorskip("torch")
    from golden.fp16.ops import bits_from_float
    from golden.oaken.quantize import encode, pack_token

    kv = KvShape(heads=2, head_dim=128, block=64)
    x = torch.randn(
        64, kv.elements, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    words = bits_from_float(x)
    thresholds = bits_from_float(torch.tensor([-2.0, -0.1, 0.1, 2.0], dtype=torch.float64))
    encoded = encode(words, thresholds, kv.block)
    records = [pack_token(encoded, token, kv.head_dim) for token in range(len(words))]
    stored = sum(len(part) for record in records for part in record)
    found = engine("oaken-hbm", constants={"outliers": number(float(encoded.sparse_fraction))})
    assert found.records(SMALL).stored / 2 * len(words) == pytest.approx(stored)


def test_an_attention_by_hand():
    """2 sequences of 100 tokens, 2 heads of 128 on 4 cores: a job is a head, each on its core."""
    found = engine("oaken-hbm", cores=4, dequant_lanes=8, quant_lanes=8)
    cost = named(found.cost(SMALL, Pass.decode(2, 100)), "attention")
    cycles = {name: each / SMALL.layers * 1e9 for name, each in cost.limits.items()}
    assert cycles["dequantize"] == pytest.approx(2 * 100 * 128 / 8)
    assert cycles["quantize"] == pytest.approx(2 * 128 / 8)
    # BEGIN 5; 3 records of 6; memory, a word, COMMIT 5 and 6 more.
    assert cycles["append"] == pytest.approx(2 * (5 + 18 + 100 + 1 + 5 + 6))
    bits = 4 + 8 * 0.1 + 8 / 64 + 96 / 128
    assert cost.traffic["kv_read"] / SMALL.layers == pytest.approx(2 * 100 * 2 * 256 * bits / 8)
    fill = kv_read_cycles(7, 5, 128, 100)
    assert cost.seconds / SMALL.layers * 1e9 == pytest.approx(2 * 100 * 128 / 8 + fill)
    assert cost.binds == "dequantize"
    whole = engine("oaken-hbm", cores=4, dequant_lanes=8, quant_lanes=8, split=False)
    cost = named(whole.cost(SMALL, Pass.decode(2, 100)), "attention")
    assert cost.limits["dequantize"] / SMALL.layers * 1e9 == pytest.approx(2 * 2 * 100 * 128 / 8)


def test_a_token_on_one_core_has_its_rate():
    step = Pass.decode(1, 0)
    apart = named(engine("oaken-hbm").cost(LLAMA, step), "down").limits["matrix"]
    alone = named(engine("oaken-hbm", split=False).cost(LLAMA, step), "down").limits["matrix"]
    assert alone == pytest.approx(264 * apart)


def test_a_chip_has_the_figures_of_its_paper():
    for chip, bandwidth, capacity in (("oaken-hbm", 2.0e12, 80e9), ("oaken-lpddr", 1.1e12, 256e9)):
        found = engine_of(chip)
        assert found.memory.peak == pytest.approx(bandwidth)
        assert found.memory.capacity == pytest.approx(capacity)
        assert found.base("peak") == 270e12
        assert found.settings.cores * 512 * 2e9 == pytest.approx(270e12, rel=2e-3)


def test_an_average_group_and_a_window():
    """A window bounds what is read, what is kept, and what is written."""
    model = dataclasses.replace(SMALL, window=64)
    for chip in OAKEN:
        found = engine_of(chip)
        long, short = (found.cost(model, Pass.decode(1, n)) for n in (5000, 63))
        assert long.traffic() == short.traffic()
        assert found.kv_bytes(model, 5000) == found.kv_bytes(model, 64)


@pytest.mark.parametrize("chip", CHIPS)
def test_costs_of_one_pass_do_not_depend_on_others(chip):
    found, step = engine_of(chip), Pass.decode(7, 300)
    before = found.cost(LLAMA, step)
    found.cost(SMALL, step)
    found.cost(LLAMA, Pass.decode(7, 301))
    assert found.cost(LLAMA, step) == before == engine_of(chip).cost(LLAMA, step)


@pytest.mark.parametrize(
    ("model", "line"),
    [
        (dataclasses.replace(SMALL, head_size=80), "KvShape.head_dim must be a multiple of block"),
        (dataclasses.replace(SMALL, heads=256, kv_heads=256), r"KvShape.heads must be 1..128"),
    ],
)
def test_engines_refuse_heads(model, line):
    for call in (
        lambda: engine_of("oaken-hbm").cost(model, Pass.decode(1, 1)),
        lambda: engine_of("oaken-hbm").kv_bytes(model, 1),
        lambda: check_fits(engine_of("oaken-hbm"), model, 1, 1),
    ):
        with pytest.raises(ConfigError, match=line):
            call()
    assert engine_of("oaken-hbm-fp16").cost(model, Pass.decode(1, 1)).seconds > 0


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({"quant_lanes": 12}, "OakenSettings.quant_lanes must be a power of two in 8..64, not 12"),
        ({"block": 16, "dequant_lanes": 32}, "dequant_lanes must be a power of two in 8..16"),
        ({"records": "kivi"}, "OakenSettings.records must be oaken or none, not 'kivi'"),
        ({"cores": 0}, r"OakenSettings.cores must be 1..65536, not 0"),
        ({"weight_bits": 5}, "OakenSettings.weight_bits must be 4 or 8 or 16, not 5"),
        ({"pages": 1}, "unexpected keyword argument 'pages'"),
    ],
)
def test_settings_are_refused_in_one_line(more, line):
    with pytest.raises(ConfigError, match=line) as found:
        engine("oaken-hbm", **more)
    assert "\n" not in str(found.value)


def test_a_context_that_is_too_long_is_refused():
    with pytest.raises(ConfigError, match=r"context must be 1..1000 tokens, not 1001"):
        engine("oaken-hbm", max_tokens=1000).cost(LLAMA, Pass.decode(1, 1000))


def test_where_the_memory_ends():
    """Fig. 13: Llama-2-13B at batch 16. 32K tokens fit LPDDR, and no more than 16K fit HBM."""
    model = find_model("llama-2-13b")
    check_fits(engine_of("oaken-lpddr"), model, 16, 32768)
    with pytest.raises(ConfigError, match="batch"):
        check_fits(engine_of("oaken-hbm"), model, 16, 32768)
    check_fits(engine_of("oaken-hbm"), model, 16, 8192)


def test_records_are_worth_their_engines():
    """The same chip with FP16 words takes longer where the cache is most of the traffic."""
    step = Pass.decode(64, 2048)
    for memory in ("hbm", "lpddr"):
        ours, plain = (engine_of(f"oaken-{memory}{end}") for end in ("", "-fp16"))
        ratio = (
            named(ours.cost(LLAMA, step), "attention").seconds
            / named(plain.cost(LLAMA, step), "attention").seconds
        )
        assert math.isclose(ratio, 5.675 / 16, rel_tol=0.02)
