"""Three official clients at once on the generated RTL; one of four leaves in the middle.

The model is a random LLaMA of one layer, whose tokens are bytes. Each text is that of the request
alone. ``test_serve.py`` has the cases that need no RTL.
"""

import concurrent.futures
import json
import threading
import urllib.request

import pytest

from golden.kllm.model.host_image import host_image
from senbazuru.host.build import build_chip
from senbazuru.host.engine import Engine, Policy, VerilatedChip
from senbazuru.host.test_host import PLACES, SHARED, SIZES
from senbazuru.serve.app import Service
from senbazuru.serve.command import model_of
from senbazuru.serve.local import PATIENCE, client, is_idle, running, until
from senbazuru.serve.worker import Worker
from tests.kllm import model_example as example

NAME = "crane"
ASKED = (
    {"prompt": "Fold a crane", "max_tokens": 9, "temperature": 0},
    {"prompt": "A thousand", "max_tokens": 7, "temperature": 1.2, "seed": 4,
     "extra_body": {"top_k": 5}},
    {"prompt": "P", "max_tokens": 14, "temperature": 0},
)  # fmt: skip


@pytest.fixture(scope="module")
def pack(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pack") / "model"
    return example.packed(folder, speaks=True, layers=1, **SIZES)


@pytest.fixture
def served(pack):
    """A port, the worker, the reports of the steps, and an Event without which none begins."""
    programs = host_image(pack.step_programs, pack.thresholds.tolist())
    with VerilatedChip(build_chip(SHARED), pack.folder, 5) as chip:
        engine = Engine(chip, programs, policy=Policy.FAIR)
        reports, step, go = [], engine.step, threading.Event()
        go.set()

        def noted():
            assert go.wait(PATIENCE)
            reports.append(step())
            return reports[-1]

        engine.step = noted
        worker = Worker(engine, 8)
        with running(Service(model_of(pack, SHARED, NAME), worker)) as port:
            yield port, worker, reports, go


def text(api, fields):
    return api.completions.create(model=NAME, **fields).choices[0].text


def streamed(api, fields):
    chunks = api.completions.create(model=NAME, stream=True, **fields)
    return "".join(each.choices[0].text for each in chunks)


def test_three_clients_share_a_batch(served):
    """A fourth one leaves its stream; its pages are free, and the texts are as alone."""
    port, worker, reports, go = served
    engine = worker.engine
    apis = [client(port) for _ in range(4)]
    alone = [text(apis[0], fields) for fields in ASKED]
    assert {each["sequences"] for each in reports} == {1}
    until(lambda: is_idle(engine))
    go.clear()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        stream = apis[3].completions.create(
            model=NAME, prompt="Leave", max_tokens=30, temperature=0, stream=True
        )
        made = [
            pool.submit(*each) for each in zip((text, streamed, text), apis, ASKED, strict=False)
        ]
        until(lambda: engine.stats()["requests"] == 4)
        go.set()
        next(iter(stream))
        stream.close()
        assert [each.result(PATIENCE) for each in made] == alone
    for api in apis:
        api.close()
    until(lambda: is_idle(engine))
    stats = engine.stats()
    assert (stats["requests"], stats["pages_most"]) == (0, 0)
    assert not any(each["request"] for each in engine.slots())
    assert max(each["sequences"] for each in reports) >= 3
    assert max(each["chosen"] for each in reports) >= 3
    assert max(each["tokens"] for each in reports) == PLACES
    # The one that left has not had its 30 tokens.
    assert stats["chosen_tokens"] < 2 * sum(each["max_tokens"] for each in ASKED) + 30


def test_figures_of_the_chip(served):
    """The page's cycles of the units: the chip counts the least ones or more, and not the step's.

    Weights come before their MATMUL is at work, so of MATMUL the products alone are the least.
    """
    port, worker, reports, _ = served
    with client(port) as api:
        text(api, ASKED[2])
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=PATIENCE) as answer:
        response = json.load(answer)
    last = reports[-1]
    assert response["stats"]["last"]["cycles"] == last["cycles"]
    least, units = response["least"], response["units"]
    assert set(least) == set(units) == {"LOAD", "QUANTIZE", "MATMUL", "FUNCTION", "READ", "CACHE"}
    assert all(0 < cycles < last["cycles"] for cycles in least.values())
    for name, cycles in units.items():
        needs = last["lane_cycles"] if name == "MATMUL" else least[name]
        assert needs <= cycles < last["cycles"], name
    # One request alone: units wait for each other, and only some of their commands overlap.
    assert sum(units.values()) > last["cycles"] / 2
    assert worker.pace.total >= worker.pace.seconds > 0
