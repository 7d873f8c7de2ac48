"""Two chips in one: their bytes and times add up, on one memory."""

import pytest

from golden.config import ConfigError
from sim.engine import check_fits, engine_of
from sim.model import find_model
from sim.work import Pass

MODEL = find_model("llama-2-7b")


@pytest.fixture(scope="module")
def chips():
    pair = engine_of("kllm-oaken")
    return pair, pair.weights, pair.cache


def test_step_is_both(chips):
    """Shown to fail: attention of the first chip counted too."""
    pair, weights, cache = chips
    made = pair.cost(MODEL, Pass.decode(1, 500))
    first, second = weights.cost(MODEL, Pass.decode(1, 0)), cache.cost(MODEL, Pass.decode(1, 500))
    attention = {each.name: each for each in second.spent}["attention"]
    named = {each.name: each for each in made.spent}
    assert named["attention"] == attention
    assert named["qkv"] == {each.name: each for each in first.spent}["qkv"]
    assert [each.name for each in made.spent].count("attention") == 1
    assert made.traffic()["weights"] == pytest.approx(first.traffic()["weights"])
    assert made.traffic()["kv_read"] == pytest.approx(second.traffic()["kv_read"])
    assert made.seconds > attention.seconds


def test_memory_is_shared(chips):
    pair, weights, cache = chips
    assert weights.memory is pair.memory
    assert cache.memory is pair.memory
    assert pair.kv_bytes(MODEL, 100) == cache.kv_bytes(MODEL, 100)
    assert pair.weight_bytes(MODEL) == weights.weight_bytes(MODEL)
    energy = pair.cost(MODEL, Pass.decode(1, 500)).energy
    seconds = pair.cost(MODEL, Pass.decode(1, 500)).seconds
    # 222.7 W of Oaken's chip, of which 0.3 are idle, and those of KLLM's are in its core.
    idle = cache.base("watts") * cache.base("idle")
    assert energy["static"].value == pytest.approx((pair.memory.watts.value + idle) * seconds)


def test_faster_than_the_first_chip_alone(chips):
    """Both hold long contexts. Oaken's cores attend to them faster than one engine does."""
    pair, weights, _ = chips
    found = []
    for each in (pair, weights):
        check_fits(each, MODEL, 1, 32769)
        found.append([each.cost(MODEL, Pass.decode(1, n)).seconds for n in (10, 1000, 30000)])
    assert found == [sorted(each) for each in found]
    assert 2 * found[0][2] < found[1][2]


def test_no_pair_of_pairs():
    with pytest.raises(ConfigError, match="kllm-oaken: settings: kllm-oaken must be no pair"):
        engine_of("kllm-oaken", {"settings.weights": "kllm-oaken"})
    with pytest.raises(ConfigError, match="nearest: kllm-a4"):
        engine_of("kllm-oaken", {"settings.weights": "kllm-a"})


def test_what_is_extrapolated_stays_so(chips):
    """Shown to fail: the reasons of the parts dropped."""
    pair, weights, _ = chips
    made = pair.cost(MODEL, Pass.decode(1, 500)).extrapolated
    assert made == weights.cost(MODEL, Pass.decode(1, 0)).extrapolated
    million = engine_of("kllm-oaken", {"settings.cache": "million-4b"})
    made = million.cost(MODEL, Pass.decode(1, 500)).extrapolated
    assert [each.partition("'")[0] for each in made] == ["KLLM", "MILLION"]


def test_area_is_of_both(chips):
    """Shown to fail: a part without a figure of that kind counted as 0."""
    pair, weights, cache = chips
    assert pair.area == {"paper": pytest.approx(weights.area["paper"] + cache.area["paper"])}
    million = engine_of("kllm-oaken", {"settings.cache": "million-4b"})
    assert million.area == {
        "ours": pytest.approx(weights.area["ours"] + engine_of("million-4b").area["ours"])
    }
    assert engine_of("kllm-oaken", {"settings.cache": "qet-4x"}).area == {}
    assert engine_of("kllm-oaken", {"settings.cache": "qet-4x"}).sram_bytes(MODEL) == {}


def test_a_batch_gains_little(chips):
    """The weights are KLLM's: eight sequences take about eight times one."""
    pair, _, cache = chips
    one, eight = (pair.cost(MODEL, Pass.decode(n, 128)).seconds for n in (1, 8))
    assert 7.5 < eight / one < 8.1
    assert (
        cache.cost(MODEL, Pass.decode(8, 128)).seconds
        < 1.1 * cache.cost(MODEL, Pass.decode(1, 128)).seconds
    )
