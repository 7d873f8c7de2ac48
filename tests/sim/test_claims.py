"""The answer of each measure of a trend, with chips whose numbers are given."""

from types import SimpleNamespace

import pytest

from golden.config import ConfigError
from sim.claims import (
    kllm,
    kllm_batches,
    kllm_tables,
    measure,
    million,
    oaken_accuracy,
    oaken_motivation,
    oaken_throughput,
    oaken_traces,
    vqllm,
)
from sim.claims.__main__ import CLAIMS
from sim.claims.claim import Claim, is_fitted, judge
from sim.claims.kllm_table import CHIP, LANE_PARTS, LANES, TABLE_1, area_of, power_of
from sim.constant import Quantity
from sim.cost import Spent
from sim.engine import engine_of
from sim.model import find_model


def test_waves_of_as_many_as_the_memory_holds(monkeypatch):
    """Ten requests, four at a time. Shown to fail: the last wave of two left out."""
    engine = SimpleNamespace(
        cost=lambda _, step: SimpleNamespace(seconds=float(step.parts[0].count))
    )
    monkeypatch.setattr(measure, "_engine", lambda _: engine)
    monkeypatch.setattr(measure, "_model", lambda name: name)
    monkeypatch.setattr(measure, "largest_batch", lambda *_: 4)
    monkeypatch.setattr(
        measure, "decoding", lambda _, __, size, ___, out: SimpleNamespace(seconds=size * out)
    )
    # Prefills of 4 + 4 + 2 seconds, and 5 further words of each.
    assert measure.served("chip", "model", 10, 7, 6) == pytest.approx(10 * 6 / (10 + 50))


def test_a_token_of_a_batch(monkeypatch):
    """Shown to fail: the seconds of a step."""
    engine = SimpleNamespace(not_scaled={})
    joules = SimpleNamespace(value=3.0)
    run = SimpleNamespace(token_seconds=8.0, joules_per_token=joules, engine=engine)
    monkeypatch.setattr(measure, "_run", lambda *_: run)
    assert measure.token_seconds("chip", "model", 1, 4) == 2.0
    assert measure.token_joules("chip", "model", 1, 4) == 3.0
    engine.not_scaled = {"energy": "lanes is 4, stated for 16"}
    assert measure.token_seconds("chip", "model", 1, 4) == 2.0
    for joules_of in (measure.token_joules, measure.energy_parts):
        with pytest.raises(ConfigError, match="chip: energy is not scaled: lanes is 4"):
            joules_of("chip", "model", 1, 4)


def test_energy_in_batches(monkeypatch):
    """Shown to fail: static energy as the chip's own; half of HBM; a fall that a batch reverses."""
    parts = {"static": 10.0, "dram": 5.0, "sram": 2.0, "core": 2.0}
    monkeypatch.setattr(kllm_batches, "energy_parts", lambda *_: parts)
    assert kllm_batches._chip_has_most("chip at 16") == 0
    assert kllm_batches._memory_has_most("chip") == 0
    parts |= {"sram": 4.0, "dram": 5.5}
    assert kllm_batches._chip_has_most("chip at 16") == 1
    parts |= {"dram": 16.5}
    assert kllm_batches._memory_has_most("chip") == 1

    shares = dict(zip(kllm_batches._BATCHES, (0.5, 0.48, 0.4), strict=True))
    monkeypatch.setattr(
        kllm_batches,
        "energy_parts",
        lambda _, __, ___, batch: {"dram": shares[batch], "core": 1 - shares[batch]},
    )
    assert kllm_batches._memory_share_falls("chip") == 1
    for changed in ({4: 0.51}, {16: 0.47}):
        shares = dict(zip(kllm_batches._BATCHES, (0.5, 0.48, 0.4), strict=True)) | changed
        assert kllm_batches._memory_share_falls("chip") == 0


def test_speed_and_joules_in_batches(monkeypatch):
    """Shown to fail: any two speeds as similar."""
    found = {1: (1.0, 1.0), 4: (0.5, 0.9), 16: (0.4, 0.8)}
    monkeypatch.setattr(kllm_batches, "token_seconds", lambda _, __, ___, batch: found[batch][0])
    monkeypatch.setattr(kllm_batches, "token_joules", lambda _, __, ___, batch: found[batch][1])
    assert (kllm_batches._speed_rises("chip"), kllm_batches._energy_falls("chip")) == (1, 1)
    found |= {4: (0.5, 1.1), 16: (0.46, 0.8)}
    assert (kllm_batches._speed_rises("chip"), kllm_batches._energy_falls("chip")) == (0, 0)
    seconds = {"a": 1.0, "b": 1.05, "c": 1.2}
    monkeypatch.setattr(kllm_batches, "token_seconds", lambda name, *_: seconds[name])
    assert kllm_batches._similar("a / b at 4") == kllm_batches._similar("b / a at 4") == 1
    assert kllm_batches._similar("a / c at 4") == kllm_batches._similar("c / a at 4") == 0


@pytest.mark.parametrize(("uses", "wastes", "least"), [((0.0, 0.9), 1, 1), ((0.6, 0.5), 0, 0)])
def test_attention_and_the_cores(monkeypatch, uses, wastes, least):
    """A second of attention and two of a product. Shown to fail: all time as unused."""
    spent = [Spent("attention", 1.0, {}, {}, 1.0), Spent("down", 2.0, {}, {}, 1.0)]
    engine = SimpleNamespace(cost=lambda *_: SimpleNamespace(spent=spent))
    monkeypatch.setattr(oaken_motivation, "engine_of", lambda _: engine)
    monkeypatch.setattr(oaken_motivation, "check_fits", lambda *_: None)
    monkeypatch.setattr(
        oaken_motivation, "core_use", lambda _, each: uses[each.name != "attention"]
    )
    assert oaken_motivation._attention_wastes_most("chip at 8") == wastes
    assert oaken_motivation._attention_uses_least("chip at 8") == least


def test_four_bits_and_twice_the_batch(monkeypatch):
    """Shown to fail: the chip with 4-bit weights as that with a 4-bit cache."""
    seconds = {"oaken-hbm": 1.0, "oaken-hbm-fp16": 2.0}
    monkeypatch.setattr(oaken_motivation, "_step_seconds", lambda name, *_: seconds[name])
    assert oaken_motivation._cache_gains_more("oaken-hbm-fp16 at 8") == 1
    seconds["oaken-hbm"] = 3.0
    assert oaken_motivation._cache_gains_more("oaken-hbm-fp16 at 8") == 0

    speeds = {8: 10.0, 16: 19.0, 32: 40.0, 64: 39.0}
    monkeypatch.setattr(oaken_motivation, "_throughput", lambda _, __, batch: speeds[batch])
    monkeypatch.setattr(oaken_motivation, "check_fits", lambda *_: None)
    assert [oaken_motivation._sublinear(f"lpu at {batch}") for batch in (8, 16, 32)] == [1, 0, 0]


def test_gains_on_traces(monkeypatch):
    """Shown to fail: the ends of a row alone; ten times as a little."""
    words = oaken_traces.WORDS
    gains = {words: 1.0, 2 * words: 1.2, 4 * words: 1.5}

    def served(chip, model, batch, prompt, out):
        assert prompt == oaken_traces.PROMPT
        assert (model, batch) == ("mixtral-8x7b", 16)
        return gains[out] if chip == "ours" else 1.0

    monkeypatch.setattr(oaken_traces, "served", served)
    rises = oaken_traces._grows_with_outputs("mixtral-8x7b")
    assert rises("ours / theirs at 16") == 1
    gains[2 * words] = 0.9
    assert rises("ours / theirs at 16") == 0
    for gain, is_little in ((1.05, 1), (1.2, 0)):
        gains[words] = gain
        assert oaken_traces._little_on_mixtral("ours / theirs at 16") == is_little


def test_units_do_not_mix():
    """Shown to fail: a sum of areas that passes for watts."""
    area, power = Quantity(8.68e-2, "mm2"), Quantity(5.73, "W")
    assert (area + Quantity(1000, "um2")).value == pytest.approx(8.78e-2)
    assert (2 * power).to("mW") == pytest.approx(11460)
    assert Quantity(1, "W") / Quantity(4, "W") == 0.25
    for mixed in (lambda: area + power, lambda: area / power, lambda: area.to("W")):
        with pytest.raises(ConfigError, match="cannot be in"):
            mixed()
    with pytest.raises(ConfigError, match="unit must be one of"):
        Quantity(1, "horses")


def test_a_claim_of_a_unit_has_a_measure_of_it():
    def judged(found):
        return judge(
            Claim(
                paper="p", figure="1", what="w", claimed=8.25, unit="W", variants=["a"],
                measure=lambda _: found,
            )
        )  # fmt: skip

    assert judged(Quantity(8250, "mW")).status == "reproduced"
    assert judged(Quantity(8.25, "mm2")).missing == {"a": "8.25 mm2 cannot be in W"}
    with pytest.raises(TypeError, match="must be a Quantity in W"):
        judged(8.25)


def test_table_1_of_kllm():
    """The parts of a lane are areas: sixteen times their sum is the row of PE lanes.

    Shown to fail: the parts as watts, 1.08 of which were in the power of the buffers.
    """
    assert (LANES * area_of(LANE_PARTS)).to("mm2") == pytest.approx(8.25, abs=5e-3)
    assert area_of(CHIP).to("mm2") == pytest.approx(16.87, abs=5e-3)
    assert power_of(CHIP).to("W") == pytest.approx(8.39, abs=5e-3)
    with pytest.raises(ValueError, match="no power of a lane's parts"):
        power_of(["Wgt Buffer"])
    buffers = [name for name in CHIP if name.endswith("Buffer")]
    units = [name for name in CHIP if name not in buffers]
    for name in ("kllm-a4", "kllm-a3", "kllm-a4-flipflop", "kllm-a3-flipflop"):
        engine = engine_of(name)
        assert engine.base("sram_power") == pytest.approx(power_of(buffers).to("W"), abs=5e-4)
        assert engine.base("core_power") == pytest.approx(power_of(units).to("W"), abs=5e-4)
        assert engine.base("area") == pytest.approx(16.87e-6)


def test_figure_10_of_kllm():
    """Table I's watts by the cycles of our program. Shown to fail: six rows that nothing tests."""
    found = {each.what: judge(each) for each in CLAIMS if each.figure == "10b"}
    assert len(found) == 7
    tested = {what for what, each in found.items() if each.interval}
    assert tested == {f"energy of {name}" for name in kllm._OPERATIONS}
    always = "kllm-a4 at all times, all rows"
    for what, row in (("Orizuru", "Orizuru"), ("quantization", "Clustering Unit")):
        share = 100 * (TABLE_1[row].power / power_of(CHIP))
        assert found[f"energy of {what}"].values[always] == pytest.approx(share)
    # 2,048 cycles of a lane's indices, and a tenth of them in QUANTIZE.
    lanes = found["energy of the lanes: all but these three"].values
    assert lanes["kllm-a4 at work, all rows"] > lanes[always]
    given = sum(each.claim.claimed for each in found.values())
    assert given == pytest.approx(100 + sum(kllm._LANE_OPERATIONS.values()))


def test_a_claim_is_fitted_where_its_numbers_are():
    """Shown to fail: a quotient of two fitted cells, and a cell between two, as reproduced."""
    statuses = {(e.paper, e.figure, e.what): is_fitted(e) for e in CLAIMS}
    assert all(made for (paper, figure, _), made in statuses.items() if figure == "Table IV")
    assert statuses["MILLION", "7", "end to end at 32K, 4 bits against FP16"]
    assert not statuses["MILLION", "7", "attention at 32K"]
    own = {what for (_, figure, what), made in statuses.items() if figure == "Table 1" and made}
    assert own == {
        "Oaken: peak in FP16", "A100 and Oaken-HBM: capacity", "Oaken-LPDDR: capacity",
    }  # fmt: skip
    # Constants of these chips were fitted, but on nothing that KLLM's paper claims.
    assert not any(made for (paper, *_), made in statuses.items() if paper == "KLLM")


def test_fitted_comes_before_all_others():
    def status(paper, values):
        return judge(
            Claim(
                paper=paper, figure="7", what="w", claimed=1, variants=["a40-million / a40"],
                measure=lambda _: values,
            )
        ).status  # fmt: skip

    assert status("MILLION", 1.0) == status("MILLION", 9.0) == "fitted"
    assert status("VQ-LLM", 1.0) == "reproduced"


def test_means_of_kllms_tables():
    """A cell of each reading is computed by hand.

    Shown to fail: KLLM's distance to Atom, not to FP16.
    """
    tables = {each.what: judge(each) for each in kllm_tables.CLAIMS}
    assert tables["W4A4: accuracy below FP16"].interval == pytest.approx((1.976, 1.976), abs=1e-3)
    lost = tables["LLaMA-2-7B, W4A4: less distance to FP16 than Atom"].interval
    assert lost == pytest.approx((100 * (1 - 0.43 / 0.65),) * 2)
    gained = tables["W4A3: KLLM below KLLM-S in the mean"].interval
    assert gained == pytest.approx((1.92 / 7,) * 2)
    assert all(
        each.status == "reproduced" for each in tables.values() if each.claim.figure != "1"
        and each.claim.measure
    )  # fmt: skip


def test_comparisons_of_orizuru_by_hand():
    """Eight words: 7 and 3 to build. A pop of each side takes 2, as a leaf's sibling needs none.

    Shown to fail: the next word of a root left out.
    """
    assert kllm_tables.orizuru_comparisons("8, 0") == 10
    assert kllm_tables.orizuru_comparisons("8, 1") == 10 + 2 * 2
    assert kllm_tables.orizuru_comparisons("4096, 20") <= 1.5 * 4096 - 2 + 2 * 20 * 11
    assert kllm_tables.orizuru_comparisons("4096, 20") > kllm_tables.orizuru_comparisons("4096, 19")


def test_losses_of_oakens_table_2():
    """Three readings by hand. Shown to fail: per cent of the lower accuracy."""
    loss = oaken_accuracy.loss
    assert loss("Original - Oaken, points") == pytest.approx(12.69 / 9)
    assert loss("KIVI - Oaken, points") == pytest.approx(-2.08 / 9)
    assert loss("Oaken - QServe, points") == pytest.approx(11.75 / 9)
    assert loss("Original - Oaken, per cent of the accuracy") == pytest.approx(1.84, abs=5e-3)
    with pytest.raises(ConfigError, match="reading must be one of points; per cent"):
        loss("Original - Oaken, shares")


def test_the_last_doubling_of_a_batch(monkeypatch):
    """Shown to fail: the smaller batch by the larger one."""
    rates = {("ours", 128): 10.0, ("ours", 256): 18.0, ("theirs", 128): 10.0, ("theirs", 256): 10.9}
    monkeypatch.setattr(
        oaken_throughput, "served", lambda chip, _, batch, __, ___: rates.get((chip, batch), 99.0)
    )
    assert oaken_throughput._saturates("theirs with m") == 1
    assert oaken_throughput._saturates("ours with m") == 0
    assert oaken_throughput._scales_on("ours / theirs with m") == 1
    assert oaken_throughput._scales_on("theirs / ours with m") == 0
    assert oaken_throughput._ahead("ours / theirs with m at 256") == 1


def test_grouped_heads_gain_less(monkeypatch):
    """Shown to fail: the gain of the second model by that of the first one."""
    gains = {"many": 2.0, "few": 1.2}
    monkeypatch.setattr(
        oaken_throughput,
        "served",
        lambda chip, model, *_: gains[model] if chip == "oaken-lpddr" else 1.0,
    )
    assert oaken_throughput._gains_less("many > few at 16") == 1
    assert oaken_throughput._gains_less("few > many at 16") == 0


def test_orders_of_millions_table_iv(monkeypatch):
    """Shown to fail: the slower chip as the one ahead; a gain that shrinks as one that grows."""
    ms = {"a at 1": 2.0, "b at 1": 3.0, "a at 2": 4.0, "b at 2": 12.0}
    monkeypatch.setattr(million, "_token", lambda variant: Quantity(ms[variant], "ms"))
    assert million._ahead("a / b at 1") == 1
    assert million._ahead("b / a at 1") == 0
    assert million._gains_more("a / b at 1 < 2") == 1
    assert million._nearer("a / b at 1 < 2") == 0
    assert million._gains_more("a / b at 2 < 1") == 0


def test_vectors_next_to_the_time_of_their_bytes(monkeypatch):
    """Shown to fail: twice the time as close."""
    limits = {"memory": 1.0}
    spent = [Spent("down", 1.05, limits, {}), Spent("attention", 2.0, limits, {})]
    engine = SimpleNamespace(cost=lambda *_: SimpleNamespace(spent=spent))
    monkeypatch.setattr(vqllm, "engine_of", lambda _: engine)
    assert vqllm._close("products")("chip at 1 x 1024") == 1
    assert vqllm._close("attention")("chip at 1 x 1024") == 0


def test_codes_of_a_vector():
    """Shown to fail: entries of 12 bits as 13."""
    assert [vqllm._ratio(name) for name in ("AQLM-3", "CQ-2")] == [18.75, 12.5]
    # One sequence of 1,024 tokens by hand: 6.74 G weights, 537 MB of K and V.
    model = find_model("llama-7b")
    kept = 2 * model.weights + 2 * 32 * 2 * 4096 * 1024
    passing = 2 * (1024 * (4096 + 4096 + 2 * 11008) + 32000)
    assert vqllm._share_of_memory("1 x 1024") == pytest.approx(100 * kept / (kept + passing))
