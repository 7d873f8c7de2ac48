"""Four blocks of four rooms, each driven from its NAME.json and NAME.v alone.

The driver, tb/simulate/described.py, knows nothing of hdl and golden. This file gives it values by
the names of fields, and golden's answers.

Failed before on ``kllm_orizuru``: NAME.v, as written for a reader, popped other words than golden.

Shown to fail (``test_a_wrong_description_is_found``): an offset, a type, the order of the elements,
a code or a latency that is wrong in the JSON.
"""

import copy
import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from golden.fp16.format import FP16
from golden.fp16.vectors.columns import random_words
from golden.index.histogram import reduce_counts
from golden.kllm.orizuru import pop_token
from golden.oaken.format import Group, Threshold
from golden.oaken.vectors.kv_vectors import KINDS, beats, decomposed, one_vector, vector_thresholds
from golden.paging.format import Kv, PageOp, Status
from golden.paging.vectors import Traffic
from hdl.build import build
from hdl.registry import find
from tb.simulate.described import Description, Float
from tb.simulate.run import build_model, run_model


def orizuru(config, rng) -> dict:
    """Three tokens, one of them with too many outliers."""
    send = {"job": [], "x": []}
    receive = {"pop_max": [], "pop_min": [], "done": []}
    for length, k_max, k_min in ((config.n_max, 2, 3), (5, 4, 4), (config.n_max - 1, 0, 1)):
        count = -(-length // config.elements)
        words = random_words(rng, count * config.elements, FP16).astype(int)
        words[(words & 0x7FFF) > FP16.infinity] = 0x3C00
        golden = pop_token(
            torch.tensor(words), length, k_max, k_min, n_max=config.n_max, elements=config.elements
        )
        send["job"].append({"length": length, "k_max": k_max, "k_min": k_min})
        rows = words.reshape(count, config.elements).tolist()
        send["x"] += [{"word": row, "last": n == count - 1} for n, row in enumerate(rows)]
        for name, pops in (("pop_max", golden.largest_pops), ("pop_min", golden.smallest_pops)):
            receive[name] += [
                {"index": place, "word": word, "last": n == len(pops) - 1}
                for n, (place, word) in enumerate(pops)
            ]
        status = {each.name.lower(): each in golden.status for each in type(golden.status)}
        receive["done"].append(
            {"largest": golden.largest, "smallest": golden.smallest, "scale": golden.scale,
             "status": status}
        )  # fmt: skip
    last = [n for n, beat in enumerate(send["x"]) if beat["last"]]
    return {"send": send, "receive": receive, "pairs": [(("x", last[0]), ("pop_max", 0))]}


def decomposer(config, rng) -> dict:
    """Vectors with their thresholds, named; groups by name; NaN and infinity among the values."""
    send, receive = {"thresholds": [], "i": []}, {"o": []}
    for n in range(3 * len(KINDS)):
        thresholds = vector_thresholds(rng)
        words = one_vector(rng, KINDS[n % len(KINDS)], thresholds, config.lanes * (1 + n % 3))
        if n == 4:
            words[:3] = 0x7E00, 0xFC00, 0x7C00
        y, group = decomposed(words, thresholds)
        names = [each.name for each in Threshold]
        send["thresholds"].append(dict(zip(names, map(int, thresholds), strict=True)))
        for x, shifted, groups in zip(
            *(beats(each, config.lanes).tolist() for each in (words, y, group)), strict=True
        ):
            nonfinite = any(each & 0x7FFF >= 0x7C00 for each in x)
            numbers = np.array(shifted, np.uint16).view(np.float16).astype(float).tolist()
            send["i"].append({"x": x, "last": False})
            receive["o"].append(
                {
                    "y": shifted if nonfinite else numbers,
                    "group": [Group(each).name for each in groups],
                    "nonfinite": nonfinite,
                    "last": False,
                }
            )
        send["i"][-1]["last"] = receive["o"][-1]["last"] = True
    pairs = [(("i", n), ("o", n)) for n in range(len(send["i"]))]
    return {"send": send, "receive": receive, "pairs": pairs}


def page_table(config, rng) -> dict:
    """Commands of an MMU, with misuse; codes by name."""
    pairs = Traffic(config, random.Random(int(rng.integers(1 << 30)))).pairs(300)
    send = [
        {**command._asdict(), "op": PageOp(command.op).name, "kv": Kv(command.kv).name}
        for command, _ in pairs
        if command.op in tuple(PageOp)
    ]
    receive = [
        {**answer._asdict(), "status": Status(answer.status).name}
        for command, answer in pairs
        if command.op in tuple(PageOp)
    ]
    return {
        "send": {"command": send},
        "receive": {"response": receive},
        "pairs": [(("command", n), ("response", n)) for n in range(1, len(send))],
    }


def reducer(config, rng) -> dict:
    """Packets of counts, of which the first slots are wider, and of weights as numbers."""
    send, receive, pairs = [], [], []
    for _ in range(20):
        beats_of = int(rng.integers(1, 4))
        most = min(config.total_max // (beats_of * config.macs), (1 << config.count_bits) - 1)
        count = rng.integers(0, most + 1, (beats_of, config.macs))
        weight = (
            rng.integers(0, 0x3C01, (beats_of, config.macs))
            | rng.integers(0, 2, (beats_of, config.macs)) << 15
        )
        y = reduce_counts(torch.tensor(count).flatten(), torch.tensor(weight).flatten())
        numbers = weight.astype(np.uint16).view(np.float16).astype(float).tolist()
        send += [
            {"count": c, "weight": w, "last": n == beats_of - 1}
            for n, (c, w) in enumerate(zip(count.tolist(), numbers, strict=True))
        ]
        pairs.append((("i", len(send) - 1), ("o", len(receive))))
        receive.append({"y": int(y)})
    return {"send": {"i": send}, "receive": {"o": receive}, "pairs": pairs}


CASES = {
    "kllm_orizuru": orizuru,
    "oaken_decomposer": decomposer,
    "paging_page_table": page_table,
    "index_reducer": reducer,
}


def _built(name: str, folder: Path):
    """(model of NAME.v, its configuration): the text of the file is what is compiled."""
    registered = find(name)
    config = registered.configs["small"]
    build(name, config, folder)
    text = (folder / f"{name}.v").read_text()
    return build_model(registered.component(config), name=name, transform=lambda _: text), config


@pytest.mark.parametrize("name", CASES)
def test_described(name, tmp_path, seed):
    model, config = _built(name, tmp_path)
    params = CASES[name](config, np.random.default_rng([seed, 77]))
    params["description"] = str(tmp_path / f"{name}.json")
    run_model(model, "tb.simulate.tb_described", config=None, params=params, seed=seed)


def _payload(description: dict, port: str) -> dict:
    return next(each for each in description["ports"] if each["name"] == port)


def _offset(description):
    _payload(description, "i__payload")["fields"][1]["offset"] -= 1


def _order(description):
    field = _payload(description, "o__payload")["fields"][0]
    field["elements"] = [
        {"offset": offset, "width": 16} for offset in reversed(range(0, field["width"], 16))
    ]
    del field["stride"]


def _format(description):
    _payload(description, "o__payload")["fields"][0]["type"] = "unsigned"


def _code(description):
    codes = description["enums"]["Group"]
    codes["INNER"], codes["OUTER"] = codes["OUTER"], codes["INNER"]


def _latency(description):
    description["timing"]["latency"] -= 1


@pytest.mark.parametrize("spoil", [_offset, _order, _format, _code, _latency])
def test_a_wrong_description_is_found(spoil, tmp_path, seed):
    name = "oaken_decomposer"
    model, config = _built(name, tmp_path)
    params = CASES[name](config, np.random.default_rng([seed, 77]))
    description = json.loads((tmp_path / f"{name}.json").read_text())
    wrong = copy.deepcopy(description)
    spoil(wrong)
    assert wrong != description
    (tmp_path / "wrong.json").write_text(json.dumps(wrong))
    params["description"] = str(tmp_path / "wrong.json")
    with pytest.raises(AssertionError):
        run_model(model, "tb.simulate.tb_described", config=None, params=params, seed=seed)


@pytest.mark.parametrize("width", [(5, 10), (8, 23), (4, 3)])
def test_float_words_and_numbers(width):
    format = {"exponent_bits": width[0], "fraction_bits": width[1], "bias": 2 ** (width[0] - 1) - 1}
    bits = 1 + sum(width)
    rng = np.random.default_rng(5)
    words = range(1 << bits) if bits < 16 else rng.integers(0, 1 << bits, 3000).tolist()
    for word in words:
        number = Float(word, format)
        if number == number:
            assert Float.of(float(number), format).word == word
    if width == (5, 10):
        every = np.arange(1 << 16, dtype=np.uint16)
        wanted = every.view(np.float16).astype(float)
        found = np.array([float(Float(int(word), format)) for word in every])
        np.testing.assert_array_equal(found, wanted)
    for value in (1 + 2.0**-40, 2.0**300):
        with pytest.raises(ValueError, match="no word of"):
            Float.of(value, format)


def test_values_that_no_field_has(tmp_path):
    build("stream_narrow", find("stream_narrow").config, tmp_path)
    description = Description(tmp_path / "stream_narrow.json")
    payload = description.payload("i")
    sound = {"data": [1, 2, 3, 4], "count": 4, "last": True}
    word = description.pack(payload, sound)
    assert description.unpack(payload, word) == sound
    for wrong in ({"count": 5}, {"data": [1, 2, 3, 256]}, {"count": 0.5}, {"other": 1}):
        with pytest.raises(ValueError, match=r"is no value of it|does not fit|fields"):
            description.pack(payload, {**sound, **wrong})
