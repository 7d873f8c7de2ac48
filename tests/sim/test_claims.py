"""What each measure of a trend answers, with chips whose numbers are given."""

from types import SimpleNamespace

import pytest

from sim.claims import kllm_batches, measure, oaken_motivation, oaken_traces
from sim.cost import Spent


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
    run = SimpleNamespace(token_seconds=8.0, joules_per_token=SimpleNamespace(value=3.0))
    monkeypatch.setattr(measure, "_run", lambda *_: run)
    assert measure.token("chip", "model", 1, 4) == (2.0, 3.0)


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
    monkeypatch.setattr(kllm_batches, "token", lambda _, __, ___, batch: found[batch])
    assert (kllm_batches._speed_rises("chip"), kllm_batches._energy_falls("chip")) == (1, 1)
    found |= {4: (0.5, 1.1), 16: (0.46, 0.8)}
    assert (kllm_batches._speed_rises("chip"), kllm_batches._energy_falls("chip")) == (0, 0)
    seconds = {"a": 1.0, "b": 1.05, "c": 1.2}
    monkeypatch.setattr(kllm_batches, "token", lambda name, *_: (seconds[name], 0.0))
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
