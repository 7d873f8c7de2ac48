"""The engines of the papers' systems: bytes, time, energy, and what they refuse."""

import dataclasses
import itertools
import math
import time
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from golden.config import ConfigError
from golden.million.config import HeadShape, MillionConfig, PqShape
from golden.oaken.config import KvShape
from golden.oaken.format import bits_read, effective_bits
from golden.oaken.timing import kv_read_cycles
from golden.vqllm.config import NAMED, MatrixShape
from hdl.million.window_config import MillionWindowConfig
from sim import run
from sim.constant import Constant
from sim.cost import Cost
from sim.engine import Engine, check_fits, engine_of
from sim.matrix import with_background
from sim.model import Model, find_model
from sim.work import Part, Pass, works

OAKEN = ("oaken-hbm", "oaken-lpddr", "oaken-hbm-fp16", "oaken-lpddr-fp16")
MILLION = ("million-4b", "million-3b")
VQLLM = ("vqllm-aqlm2x8", "vqllm-aqlm2x8-cq4", "vqllm-gptvq2-cq2")
QET = ("qet-4x", "qet-4x-decode")
CHIPS = ("matrix-hbm", *OAKEN, *MILLION, *VQLLM, *QET)
LLAMA = find_model("llama-2-7b")
SMALL = Model(
    name="small", architecture="llama", hidden=512, layers=2, heads=4, kv_heads=2, head_size=128,
    intermediate=1024, vocabulary=1000,
)  # fmt: skip


def number(value: float, unit: str = "") -> Constant:
    return Constant(value=value, unit=unit, kind="assumed", source="a test")


def engine(chip: str, memory: dict | None = None, constants: dict | None = None, **more) -> Engine:
    """A chip with other settings, constants and constants of its memory."""
    found = engine_of(chip).hardware
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


@settings(max_examples=60, deadline=None)
@given(chip=st.sampled_from(CHIPS), model=models(), step=passes())
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


@settings(max_examples=40, deadline=None)
@given(chip=st.sampled_from(CHIPS), model=models(), step=passes())
def test_more_bandwidth_is_not_slower(chip, model, step):
    base = engine_of(chip)
    bandwidth = base.memory.constants["bandwidth"]
    faster = dataclasses.replace(bandwidth, value=2 * bandwidth.value)
    fast = engine(chip, memory={"bandwidth": faster})
    assert fast.cost(model, step).seconds <= base.cost(model, step).seconds * (1 + 1e-12)


@settings(max_examples=40, deadline=None)
@given(
    chip=st.sampled_from(CHIPS),
    model=models(),
    batch=st.integers(1, 256),
    context=st.integers(0, 5000),
)
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
    assert all(more <= less * (1 + 1e-12) for less, more in itertools.pairwise(seconds))
    cores = [
        engine("oaken-hbm", constants={"peak": number(n, "TFLOPS")}, cores=n)
        .cost(model, step)
        .seconds
        for n in (16, 64, 264)
    ]
    assert all(more <= less * (1 + 1e-12) for less, more in itertools.pairwise(cores))


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
        ({"pages": 1}, "settings has no field pages"),
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
    """Fig. 13: Llama-2-13B at batch 16. The paper's HBM ends at 16K tokens, ours before it.

    At 16K tokens the cache of the paper's own 4.82 bits and the weights take 91 GB of 80.
    """
    model = find_model("llama-2-13b")
    most = {"oaken-hbm": 13284, "oaken-lpddr": 56735, "oaken-hbm-fp16": 4112}
    for chip, tokens in most.items():
        found = engine_of(chip)
        check_fits(found, model, 16, tokens)
        with pytest.raises(ConfigError, match="batch 15 would fit"):
            check_fits(found, model, 16, tokens + 1)
    assert model.kv_elements * 4.82 / 8 * 16384 * 16 + model.weights * 2 > 90e9


def throughput(found: Engine, model: Model, batch: int) -> float:
    """Tokens per second of 1K and 1K tokens, from 16 steps of decoding."""
    steps = [found.cost(model, Pass.decode(batch, 1056 + 64 * n)).seconds for n in range(16)]
    return batch * 1024 / (found.cost(model, Pass.prefill(batch, 1024)).seconds + 64 * sum(steps))


def test_throughput_by_batch():
    """Fig. 11's trends: HBM leads while its memory lasts, and records are worth more at a batch."""
    chips = {chip: engine_of(chip) for chip in OAKEN}
    for model in (LLAMA, find_model("llama-2-13b")):
        rates = {
            chip: [throughput(found, model, batch) for batch in (16, 64, 256)]
            for chip, found in chips.items()
        }
        for plain, ours in (("oaken-hbm-fp16", "oaken-hbm"), ("oaken-lpddr-fp16", "oaken-lpddr")):
            gains = [b / a for a, b in zip(rates[plain], rates[ours], strict=True)]
            assert gains == sorted(gains)
            assert 1.3 < gains[0] < gains[-1] < 2.6
        assert all(a > b for a, b in zip(rates["oaken-hbm"], rates["oaken-lpddr"], strict=True))
        with pytest.raises(ConfigError):
            check_fits(chips["oaken-hbm"], model, 256, 2048)
        check_fits(chips["oaken-lpddr"], model, 256, 2048)


def test_shares_of_the_engines():
    """Fig. 12b at batch 64 on LPDDR: 1.29 % and 3.23 %, and attention 55.0 % shorter."""
    ours, plain = engine_of("oaken-lpddr"), engine_of("oaken-lpddr-fp16")
    step = Pass.decode(64, 1536)
    cost, other = ours.cost(LLAMA, step), plain.cost(LLAMA, step)
    attention = named(cost, "attention")
    shares = {name: each / cost.seconds for name, each in attention.limits.items()}
    assert 0.03 < shares["dequantize"] < 0.05
    assert 0 < shares["quantize"] + shares["append"] < 0.0129
    assert attention.binds == "memory"
    assert 0.6 < 1 - attention.seconds / named(other, "attention").seconds < 0.68


@pytest.mark.parametrize(("lanes", "batch"), [(8, 256), (16, 4), (32, 1), (64, 1)])
def test_where_the_engines_bind(lanes, batch):
    """The largest batch whose attention waits for the engines, not memory, depends on the lanes."""
    found = engine("oaken-hbm", dequant_lanes=lanes)
    binding = [
        each
        for each in (1, 4, 16, 64, 256)
        if named(found.cost(LLAMA, Pass.decode(each, 2048)), "attention").binds == "dequantize"
    ]
    assert max(binding) == batch


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


def test_the_rest_of_a_layer_hides_background():
    front = {"memory": 3.0, "matrix": 1.0}
    assert with_background(front, {"encode": 2.0}, 0.0)["encode"] == 2.0
    assert with_background(front, {"encode": 5.0}, 4.0)["encode"] == 3.0
    assert with_background(front, {"encode": 9.0}, 4.0)["encode"] == 5.0


# MILLION


@settings(max_examples=20, deadline=None)
@given(model=models(), tokens=st.integers(0, 30000), chip=st.sampled_from(MILLION))
def test_codes_of_million_are_those_of_the_format(model, tokens, chip):
    found = engine(chip, page_bytes=256)
    shape = PqShape(
        head_dim=model.head_size,
        subspaces=found.settings.subspaces,
        bits=found.settings.bits,
    )
    kept = min(tokens, model.window) if model.window else tokens
    exact = min(kept, 36)
    streams = 2 * model.layers * model.kv_heads
    stored = streams * ((kept - exact) * shape.record_bits / 8 + exact * model.head_size * 2)
    assert stored <= found.kv_bytes(model, tokens) <= stored + streams * 256
    books = model.layers * 2 * shape.entries * model.head_size * 2
    assert found.weight_bytes(model) == model.weights * 2 + books


def test_million_reads_what_it_keeps():
    """Codes of 1024 tokens fill whole pages of 4,096 bytes at 64 bytes each."""
    found, model = engine_of("million-4b"), LLAMA
    moved = found.cost(model, Pass.decode(3, 1024 + 36)).traffic()
    assert moved["kv_read"] == 3 * found.kv_bytes(model, 1024 + 36)
    books = found.weight_bytes(model) - model.weights * 2
    table = model.vocabulary * model.hidden * 2
    assert moved["weights"] == pytest.approx(model.weights * 2 - table + books)


def test_the_clock_of_million_is_one_that_its_blocks_reach():
    """The blocks reach it in ASAP7 (docs/timing.md); engines that decode vectors are rivals."""
    page = (Path(__file__).parents[2] / "docs" / "timing.md").read_text()
    rows = page[page.index("<!-- generated: timing_million -->") :]
    rows = rows[: rows.index("<!-- end generated -->")]
    reached = {}
    for line in rows.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if "ASAP7 RVT" in cells and not cells[1].startswith("million_decode"):
            reached[cells[1]] = float(cells[5].replace(",", ""))
    assert len(reached) >= 16
    for chip in MILLION:
        assert engine_of(chip).base("engine_clock") <= min(reached.values()) * 1e6


def test_an_attention_of_million_by_hand():
    """2 sequences of 1,060 tokens on 4 cores: a job has 1,024 codes, and tables of 256 entries."""
    found = engine("million-4b", cores=4, macs=128, queries=2, keys=1, block=32, sinks=4)
    cost, clock = named(found.cost(SMALL, Pass.decode(2, 1060)), "attention"), 0.68
    # One group of two queries: scores 1,024 cycles, tables 2 * 256, a record a word of the port.
    # The window: 36 rows, each 2 * 128 / 32 = 8 cycles, and one.
    assert cost.limits["attend"] / SMALL.layers * 1e9 == pytest.approx(2 * 1024 / clock)
    fill = 512 + max(2 * 1024, 2048) + 512 - 2048
    assert cost.seconds / SMALL.layers * 1e9 == pytest.approx((2048 + fill) / clock)
    wide = engine("million-4b", cores=4, macs=128, queries=2, data_bits=1024)
    cost = named(wide.cost(SMALL, Pass.decode(2, 1060)), "attention")
    assert cost.limits["attend"] / SMALL.layers * 1e9 == pytest.approx(1024 / clock)


def test_tables_of_million_are_counted():
    found = engine("million-4b", cores=1)
    held = found.storage(LLAMA)
    assert held["tables"] == 2 * 4 * 64 * 256 * 2
    assert held["codebooks"] == 2 * 2 * 256 * 128 * 2
    assert "rows" not in held
    more = found.cost(LLAMA, Pass.decode(1, 2000)).energy["sram"].value
    assert more > found.cost(LLAMA, Pass.decode(1, 1000)).energy["sram"].value > 0


def test_the_engine_of_million_has_an_area():
    """The area is that of docs/area.md: 264 engines, 1.20 mm2 of logic and 1,665 KB of RAM each.

    Shown to fail: the paper's cores alone.
    """
    found = engine_of("million-4b")
    ram = 256 + 256 + 640 + 512.5625
    assert sum(found.storage(LLAMA).values()) == pytest.approx(264 * ram * 1024, rel=1e-4)
    engines = 264 * (1.2 + ram * 8192 * 0.39e-6)
    assert 1e6 * found.area["ours"] == pytest.approx(264 * 3.971 + engines, rel=1e-4)
    assert engines == pytest.approx(1710, rel=0.02)
    held = found.sram_bytes(LLAMA)
    assert sum(held.values()) - held["activations"] == pytest.approx(429 * (1 << 20), rel=0.01)
    for more in ({"queries": 1}, {"max_tokens": 1000}, {"subspaces": 32}):
        assert engine("million-4b", **more).area["ours"] < found.area["ours"]
    assert engine("million-4b", subspaces=96, bits=4).area["ours"] > 264 * 3.971e-6


def test_exact_rows_of_million_are_elsewhere(capsys):
    """The RTL has them on chip: each pass says so, and how many sequences hdl would take.

    Shown to fail: no reason; rows of one head.
    """
    (reason,) = engine_of("million-4b").cost(LLAMA, Pass.decode(8, 100)).extrapolated
    assert reason.endswith("18.9 MB for each sequence, and an engine has room for at most 7")
    head = HeadShape(heads=LLAMA.kv_heads, group=1)
    for sequences in (7, 8):
        cache = MillionConfig(head=head, sequences=sequences, layers=LLAMA.layers)
        if sequences == 7:
            MillionWindowConfig(cache=cache)
            continue
        with pytest.raises(ConfigError, match="at most 1048576 words of window_macs elements"):
            MillionWindowConfig(cache=cache)
    options = ["--hw", "million-4b", "--model", "llama-2-7b", "--prompt", "9", "--out", "2"]
    assert run.main(options) == 0
    assert f"extrapolated: {reason}" in capsys.readouterr().out
    assert run.main([*options, "--strict"]) == 2
    assert "exact rows are read from memory" in capsys.readouterr().err


# VQ-LLM


@pytest.mark.parametrize("chip", VQLLM)
def test_bits_of_codes_are_those_of_the_format(chip):
    found = engine_of(chip)
    for inputs, outputs in LLAMA.linears.values():
        shape = MatrixShape(rows=outputs, columns=inputs, vq=NAMED[found.settings.vq])
        bits = 8 * found.matrix_bytes(inputs, outputs)
        assert bits == pytest.approx(shape.bits_per_element * inputs * outputs + 16 * outputs)
    if found.settings.kv == "none":
        moved = found.cost(LLAMA, Pass.decode(1, 100)).traffic()
        table = LLAMA.vocabulary * LLAMA.hidden * 2
        assert moved["weights"] == pytest.approx(found.weight_bytes(LLAMA) - table)
    else:
        size = NAMED[found.settings.kv].size
        codes = 2 * LLAMA.layers * LLAMA.heads * 128 // size
        assert found.kv_bytes(LLAMA, 4096) == codes * 4096
        assert found.cost(LLAMA, Pass.decode(2, 4096)).traffic()["kv_read"] == 2 * codes * 4096


def test_a_matrix_of_vqllm_by_hand():
    """512 x 512 of ``o`` on 4 cores: 128 rows of 16 beats; 100 tokens are 7 groups."""
    found = engine("vqllm-aqlm2x8", constants={"look_cycles": number(2.0, "cycles")}, cores=4)
    one = named(found.cost(SMALL, Pass.decode(1, 0)), "o")
    cycles = {name: each / SMALL.layers * 1e9 for name, each in one.limits.items()}
    assert cycles["look-ups"] == pytest.approx(128 * 16 * 2)
    assert cycles["products"] == pytest.approx(128 * 16)
    # 2 codes of 8 bits for 8 weights, and 2 codebooks of 256 entries of 8 words of 16 bits.
    assert cycles["port"] == pytest.approx((128 * 64 * 16 + 2 * 256 * 8 * 16) / 512)
    many = named(found.cost(SMALL, Pass.decode(100, 0)), "o")
    assert many.limits["products"] / SMALL.layers * 1e9 == pytest.approx(128 * 16 * 7)
    assert many.traffic["weights"] == one.traffic["weights"]
    again = engine("vqllm-aqlm2x8", cores=4, method="gemv")
    assert named(again.cost(SMALL, Pass.decode(100, 0)), "o").traffic["weights"] == (
        7 * one.traffic["weights"]
    )


def test_an_attention_of_vqllm_by_hand():
    """1,000 tokens of cq4: 8 passes of K and of V, each 1,000 tokens; the codebooks fit in them."""
    found = engine("vqllm-aqlm2x8-cq4", cores=64)
    cost = named(found.cost(SMALL, Pass.decode(2, 1000)), "attention")
    # A pass: 1,000 tokens of 8 bytes are 250 words of 256 bits, 8 groups of 256 entries are 256.
    assert cost.limits["attend"] / SMALL.layers * 1e9 == pytest.approx(2 * 8 * 1000)
    assert cost.traffic["weights"] / SMALL.layers == 2 * 2 * 2 * 256 * 128 * 2


# QET


@pytest.mark.parametrize("chip", QET)
def test_bytes_of_qet_are_those_of_the_format(chip):
    found = engine_of(chip)
    for inputs, outputs in LLAMA.linears.values():
        matrix = found.matrix(inputs, outputs)
        assert matrix.shape.ratio >= 4
        stored = matrix.shape.stored_bits / 8
        assert stored * 0.99 <= matrix.bytes <= stored * 1.1
    tokens = {"qet-4x": 5, "qet-4x-decode": 1}[chip]
    table = LLAMA.vocabulary * LLAMA.hidden * 2
    layers = found.weight_bytes(LLAMA) - 2 * table
    moved = found.cost(LLAMA, Pass.decode(5, 100)).traffic()["weights"]
    assert moved == pytest.approx(tokens * layers + table)


def test_a_matrix_of_qet_by_hand():
    """512 x 512 of ``o`` has 8 tiles: one for each of 8 cores, or rows of it for each of 16."""
    found = engine("qet-4x", cores=8)
    matrix = found.matrix(512, 512)
    entries = sum(stage.entries for stage in matrix.shape.stages)
    books, rows = matrix.image.book_words(entries), matrix.image.row_words(512)
    # A load of the codebooks, then the rows, one in a cycle.
    assert matrix.cycles == max(books, entries) + max(512, rows)
    assert engine("qet-4x", cores=16).matrix(512, 512).cycles == max(books, entries) + max(
        256, matrix.image.row_words(256)
    )
    cost = named(found.cost(SMALL, Pass.decode(3, 0)), "o")
    assert cost.limits["decode"] / SMALL.layers * 1e9 == pytest.approx(3 * matrix.cycles)


@pytest.mark.parametrize(
    ("chip", "model", "more", "line"),
    [
        ("million-4b", {"head_size": 96}, {}, "PqShape.head_dim must be a multiple of subspaces"),
        ("million-4b", {"head_size": 512}, {}, r"PqShape.head_dim must be 16..256, not 512"),
        ("million-4b", {"heads": 34}, {}, r"HeadShape.group must be 1..16, not 17"),
        ("million-4b", {"layers": 300}, {}, r"CacheConfig.layers must be 1..256, not 300"),
        ("million-4b", {}, {"macs": 256}, "RateShape.macs must be a divisor of head_dim = 128"),
        ("vqllm-aqlm2x8", {"hidden": 500}, {}, "columns must be a multiple of vq.size = 8"),
        ("vqllm-aqlm2x8-cq4", {"head_size": 520}, {}, r"PqShape.head_dim must be 16..256"),
        ("vqllm-aqlm2x8-cq4", {}, {"groups": 7}, "must be a divisor of pq.subspaces = 64"),
        ("qet-4x", {"intermediate": 8}, {}, "a matrix of 8 x 512: ratio must be at most"),
    ],
)
def test_engines_of_codes_refuse_sizes(chip, model, more, line):
    found, asked = engine(chip, **more), dataclasses.replace(SMALL, **model)
    for call in (
        lambda: found.cost(asked, Pass.decode(1, 1)),
        lambda: check_fits(found, asked, 1, 1),
    ):
        with pytest.raises(ConfigError, match=line) as error:
            call()
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("chip", [*MILLION, *VQLLM])
def test_contexts_beyond_the_engines_are_refused(chip):
    with pytest.raises(ConfigError, match=r"context must be 1..32768 tokens, not 32769"):
        engine_of(chip).cost(LLAMA, Pass.decode(1, 32768))


@pytest.mark.parametrize(
    ("chip", "more", "line"),
    [
        ("million-4b", {"keys": 3}, "RateShape.keys must be 1 or 2 or 4, not 3"),
        ("million-4b", {"elements": 3}, "MillionSettings.elements must be a divisor of lanes = 16"),
        ("vqllm-aqlm2x8", {"vq": "cq4"}, "VqLlmSettings.vq must be quip4 or aqlm3"),
        ("vqllm-aqlm2x8", {"batch": 65}, r"Engine.batch must be 1..64, not 65"),
        ("qet-4x", {"ratio": 0}, r"QetSettings.ratio must be 1..16, not 0"),
        ("qet-4x", {"data_bits": 100}, "ImageShape.data_bits must be a power of two"),
    ],
)
def test_settings_of_engines_of_codes_are_refused(chip, more, line):
    with pytest.raises(ConfigError, match=line):
        engine(chip, **more)


@pytest.mark.parametrize("chip", CHIPS)
def test_a_step_is_quick(chip):
    """Serving calls for tens of thousands; 2 ms leave room for a busy machine."""
    found = engine_of(chip)
    found.cost(LLAMA, Pass.decode(64, 1000))
    start = time.process_time()
    for context in range(100):
        found.cost(LLAMA, Pass.decode(64, context))
    assert time.process_time() - start < 0.2
