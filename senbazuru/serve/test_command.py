"""The command: signals in the middle of a step that never ends, and options that are refused.

Shown to fail: a server that waits for its step, and one that waits for its clients.
"""

import contextlib
import http.client
import json
import signal
import subprocess
import sys
import time

import pytest

from senbazuru.serve import __main__ as entry
from senbazuru.serve.local import PATIENCE
from tb.simulate.run import ROOT

# Prints its port, and a line once a step is under way. Every step takes a day.
SERVER = """
import asyncio, socket, sys, time
from senbazuru.host.engine import Engine
from senbazuru.host.strict import Sizes, StrictChip
from senbazuru.serve import command
from senbazuru.serve.app import Model, Service
from senbazuru.serve.text import Chat
from senbazuru.serve.worker import Worker

class Bytes:
    def decode(self, ids, skip_special_tokens):
        return bytes(ids).decode(errors="replace")

def day(*_):
    print("a step", flush=True)
    time.sleep(86400)

command.PATIENCE = 1
sizes = Sizes()
engine = Engine(StrictChip(sizes, day), sizes.image())
worker = Worker(engine, 4)
model = Model("slow", Bytes(), Chat(None), (), "fp")
with socket.create_server(("127.0.0.1", 0)) as place:
    print(place.getsockname()[1], flush=True)
    asyncio.run(command.Server(Service(model, worker)).serve(sockets=[place]))
command._end(worker, engine)
"""


def test_signals_in_the_middle_of_a_step():
    """A stream gets the API's error. The process ends with status 0, and without a traceback."""
    command = [sys.executable, "-c", SERVER]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    processes = [subprocess.Popen(command, cwd=ROOT, text=True, **pipes) for _ in range(2)]
    with contextlib.ExitStack() as stack:
        for process in processes:
            stack.callback(process.communicate)
            stack.callback(process.kill)
        for process, number in zip(processes, (signal.SIGTERM, signal.SIGINT), strict=True):
            port = int(process.stdout.readline())
            connection = stack.enter_context(
                contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE))
            )
            body = {"model": "slow", "prompt": [1, 2], "max_tokens": 3, "stream": True}
            connection.request("POST", "/v1/completions", json.dumps(body))
            answer = connection.getresponse()
            assert process.stdout.readline() == "a step\n"
            began = time.monotonic()
            process.send_signal(number)
            error = json.loads(answer.read().decode().removeprefix("data: "))["error"]
            assert error["code"] == "shutting_down"
            _, said = process.communicate(timeout=PATIENCE)
            assert time.monotonic() - began < 60
            assert (process.returncode, said) == (0, "senbazuru.serve: ended within a step\n")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--port", "65536"], "--port"), (["--queue", "-1"], "--queue"),
        (["--policy", "last"], "--policy"), (["--clock", "0"], "--clock"),
    ],
)  # fmt: skip
def test_options_that_are_refused(words, reason, capsys):
    with pytest.raises(SystemExit) as caught:
        entry.main(words)
    error = capsys.readouterr().err
    assert caught.value.code == 2
    assert error.startswith("senbazuru.serve: ")
    assert reason in error
    assert error.count("\n") == 1


def test_an_address_that_is_not_there(capsys):
    """Refused before the model is packed."""
    assert entry.main(["--host", "192.0.2.1"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
