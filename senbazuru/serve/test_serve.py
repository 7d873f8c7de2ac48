"""The endpoint on a chip in Python: many clients, bad input, clients that leave, a chip that fails.

``StrictChip`` notes each rule that the host breaks. ``alone`` says which tokens a request gets by
itself. A token is a byte. Shown to fail: the faults of ``worker.py`` and ``app.py`` in
docs/decisions/0341-an-api-before-the-chip.md.
"""

import asyncio
import concurrent.futures
import contextlib
import http.client
import json
import shutil
import socket
import struct
import subprocess
import threading
import time

import openai
import pytest

from golden.kllm import engines
from golden.kllm.fetch import Answer
from golden.kllm.isa import CommandStatus, Unit
from senbazuru.host.engine import Engine, Policy
from senbazuru.host.strict import Sizes, StrictChip, alone
from senbazuru.serve.app import Limits, Model, Service
from senbazuru.serve.local import PATIENCE, client, is_idle, running, until
from senbazuru.serve.text import Chat, Written
from senbazuru.serve.worker import RESETS, Done, Failed, Piece, Wanted, Worker
from tests.kllm import model_example as example

SIZES = Sizes(vocabulary=256, context=96, places=4, sequences=4)
NAME = "bytes"
CHAT = Chat(None)
PROMPTS = ("Fold a crane", "A thousand", "Paper")


class Gate:
    """The steps that the chip may take, as its fault; ``answers``: what each gives."""

    def __init__(self, steps=None):
        self._steps = threading.Semaphore(0 if steps is None else steps)
        self.is_open = steps is None
        self.answers = {}

    def __call__(self, step, _places):
        if not self.is_open:
            assert self._steps.acquire(timeout=PATIENCE)
        return self.answers.get(step)

    def let(self, steps):
        self._steps.release(steps)

    def open(self):
        self.is_open = True
        self._steps.release(1000)


class Served:
    """A server with its chip; closes with the ``with``."""

    def __init__(self, gate=None, sizes=SIZES, queue=8, ends=(), chip=None, **limits):
        self.gate, self.sizes, self.ends = gate or Gate(), sizes, ends
        self.chip = chip or StrictChip(sizes, self.gate)
        engine = Engine(self.chip, sizes.image(), policy=Policy.FAIR)
        self.worker = Worker(engine, queue)
        self.engine = engine
        model = Model(NAME, example.tokenizer(), CHAT, ends, "fp_1", least=lambda t, c: {"LOAD": t})
        self.service = Service(model, self.worker, Limits(**limits))

    def __enter__(self):
        self._stack = contextlib.ExitStack()
        self.port = self._stack.enter_context(running(self.service))
        self._stack.callback(self.gate.open)
        self.api = self._stack.enter_context(client(self.port))
        return self

    def __exit__(self, kind, *error):
        if kind is None:
            self.gate.open()
            until(lambda: self.worker.broken or is_idle(self.engine))
            if not self.worker.broken:
                assert not self.chip.sequences
                assert self.engine.stats()["requests"] == 0
            assert not self.chip.broken
        self._stack.close()

    def stats(self, name):
        return self.engine.stats()[name]

    def tokens(self, prompt, most, sampling=None):
        """The tokens of a request alone, without the one that ends it."""
        found = alone(self.sizes, list(prompt.encode()), most, sampling, self.ends)
        return [token for token in found if token not in self.ends]

    def text(self, prompt, most, sampling=None):
        return bytes(self.tokens(prompt, most, sampling)).decode(errors="replace")

    def ask(self, prompt="Paper", most=5, **fields):
        fields = {"temperature": 0, **fields}
        return self.api.completions.create(
            model=NAME, prompt=prompt, max_tokens=most, **fields
        )  # fmt: skip

    def send(self, body, path="/v1/completions", method="POST", headers=()):
        """Status, headers and body of a request; ``body`` as it is."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        with contextlib.closing(connection):
            connection.request(method, path, body, dict(headers))
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read().decode()


@pytest.fixture
def served():
    with Served() as made:
        yield made


def said(prompt="Paper", most=5, **fields):
    made = {"model": NAME, "prompt": prompt, "max_tokens": most, "temperature": 0, **fields}
    return json.dumps(made)


def connect(served, body, size=None, more=0):
    """A socket with a request that is sent.

    size: of its receive buffer; more: bytes of the body that do not come
    """
    made = socket.socket()
    if size:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
    made.settimeout(PATIENCE)
    made.connect(("127.0.0.1", served.port))
    body = body.encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body) + more}\r\n\r\n"
    made.sendall(head.encode() + body)
    return made


def errors(found):
    """The error of an answer, in the API's form."""
    error = json.loads(found[2])["error"]
    assert {"message", "type", "param", "code"} == set(error)
    return found[0], error["code"]


# Requests that are answered.


def test_three_clients_share_a_batch():
    """Whole, as a stream and as a chat; each text is that of the request alone."""
    turns = [{"role": "user", "content": PROMPTS[2]}]

    def streamed(api):
        chunks = api.completions.create(
            model=NAME, prompt=PROMPTS[1], max_tokens=30, temperature=0, stream=True
        )
        return "".join(each.choices[0].text for each in chunks)

    def whole(api):
        made = api.completions.create(
            model=NAME, prompt=PROMPTS[0], max_tokens=30, temperature=0.9, seed=5
        )
        return made.choices[0].text

    def chat(api):
        chunks = api.chat.completions.create(
            model=NAME, messages=turns, max_tokens=30, temperature=0, stream=True
        )
        return "".join(each.choices[0].delta.content or "" for each in chunks)

    with Served(Gate(0)) as served, concurrent.futures.ThreadPoolExecutor() as pool:
        apis = [client(served.port) for _ in range(3)]
        texts = [pool.submit(*each) for each in zip((whole, streamed, chat), apis, strict=True)]
        until(lambda: served.stats("requests") == 3)
        served.gate.open()
        found = [each.result(PATIENCE) for each in texts]
        for api in apis:
            api.close()
        draw = engines.Sampling.at(0.9, SIZES.top, 5)
        assert found == [
            served.text(PROMPTS[0], 30, draw), served.text(PROMPTS[1], 30),
            served.text(CHAT.prompt([("user", PROMPTS[2])]), 30),
        ]  # fmt: skip
        assert max(len({place[0] for place in each}) for each in served.chip.batches) == 3


def test_an_answer_whole_and_in_chunks(served):
    """Text, reason, usage and names are the same; the stream's usage is in its last chunk."""
    text = served.text("Paper", 7)
    made = served.ask(most=7)
    (choice,) = made.choices
    assert (choice.text, choice.finish_reason, choice.index) == (text, "length", 0)
    assert (made.object, made.model, made.system_fingerprint) == ("text_completion", NAME, "fp_1")
    usage = (made.usage.prompt_tokens, made.usage.completion_tokens, made.usage.total_tokens)
    assert usage == (5, 7, 12)
    chunks = list(served.ask(most=7, stream=True, stream_options={"include_usage": True}))
    assert "".join(each.choices[0].text for each in chunks[:-1]) == text
    reasons = [each.choices[0].finish_reason for each in chunks[:-1]]
    assert reasons == [None] * (len(reasons) - 1) + ["length"]
    assert (chunks[-1].choices, chunks[-1].usage.total_tokens) == ([], 12)
    assert not any(each.usage for each in chunks[:-1])
    assert not any(each.usage for each in served.ask(stream=True))
    assert len({each.id for each in chunks} | {made.id}) == 2


def test_a_chat_whole(served):
    turns = [{"role": "system", "content": "Be kind"}, {"role": "user", "content": "Hi"}]
    made = served.api.chat.completions.create(
        model=NAME, messages=turns, temperature=0, max_completion_tokens=6
    )
    prompt = CHAT.prompt([("system", "Be kind"), ("user", "Hi")])
    (choice,) = made.choices
    assert (choice.message.role, choice.message.content) == ("assistant", served.text(prompt, 6))
    assert (made.object, made.usage.prompt_tokens) == ("chat.completion", len(prompt))


def test_how_many_tokens_by_default(served):
    """A completion has 16 by default, and a chat goes on to the end of the context."""
    for prompt, count in (("a", 16), ("a" * 90, 6)):
        made = served.api.completions.create(model=NAME, prompt=prompt, temperature=0)
        assert made.usage.completion_tokens == count
    turns = [{"role": "user", "content": "a" * 40}]
    made = served.api.chat.completions.create(model=NAME, messages=turns, temperature=0)
    assert made.usage.total_tokens == SIZES.context


def test_prompts_of_tokens(served):
    text = served.text("Paper", 5)
    for prompt in (list(b"Paper"), [list(b"Paper")], ["Paper"]):
        assert served.ask(prompt).choices[0].text == text


def test_draws(served):
    """The seed alone says what is drawn; the chip's words are those of the API's fields."""
    for k in (2, SIZES.top):
        wanted = served.text("Paper", 20, engines.Sampling.at(1.5, k, 77))
        for _ in range(2):
            made = served.ask(most=20, temperature=1.5, seed=77, extra_body={"top_k": k})
            assert made.choices[0].text == wanted
    # Without a seed each request has another one, which a header names. Temperature 1 is usual.
    seeds, body = set(), json.loads(said(most=20))
    del body["temperature"]
    for stream in (False, True, False):
        _, headers, text = served.send(json.dumps(body | {"stream": stream}))
        seed = int(headers["x-seed"])
        seeds.add(seed)
        if not stream:
            wanted = served.text("Paper", 20, engines.Sampling.at(1, SIZES.top, seed))
            assert json.loads(text)["choices"][0]["text"] == wanted
    assert len(seeds) == 3


def test_stop_strings(served):
    """The text ends before the string. The tokens up to its end count; none more is computed."""
    tokens = served.tokens("Paper", 40)
    plain = [n for n in range(4, 39) if all(32 < each < 127 for each in tokens[n : n + 2])]
    stop = bytes(tokens[plain[0] : plain[0] + 2]).decode()
    text = bytes(tokens).decode(errors="replace").partition(stop)[0]
    for stream in (False, True):
        before = served.stats("chosen_tokens")
        made = served.ask(most=40, stop=["never", stop], stream=stream)
        chunks = list(made) if stream else [made]
        assert "".join(each.choices[0].text for each in chunks) == text
        assert chunks[-1].choices[0].finish_reason == "stop"
        count = plain[0] + 2
        assert served.stats("chosen_tokens") - before == count
        assert stream or made.usage.completion_tokens == count


def test_a_stop_in_the_last_token(served):
    """The request ends by its length at the same time: "stop" is the reason."""
    tokens = served.tokens("Paper", 40)
    last = next(n for n in range(1, 40) if 32 < tokens[n] < 127 and tokens[n] not in tokens[:n])
    made = served.ask(most=last + 1, stop=chr(tokens[last]))
    assert made.choices[0].finish_reason == "stop"
    assert made.choices[0].text == bytes(tokens[:last]).decode(errors="replace")
    assert made.usage.completion_tokens == last + 1


def test_a_token_that_ends_the_text():
    end = alone(SIZES, list(b"Paper"), 12)[9]
    with Served(ends=(end,)) as served:
        made = served.ask(most=30)
        tokens = served.tokens("Paper", 30)
        assert len(tokens) < 10
        assert made.choices[0].text == bytes(tokens).decode(errors="replace")
        assert made.choices[0].finish_reason == "stop"
        assert made.usage.completion_tokens == len(tokens) + 1


# Requests that are refused.


def test_beyond_the_context(served):
    for most, length in ((1, 96), (7, 90), (1000, 5)):
        with pytest.raises(openai.BadRequestError) as caught:
            served.ask("a" * length, most)
        assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")
    assert served.ask("a" * 90, 6).usage.total_tokens == SIZES.context
    turns = [{"role": "user", "content": "a" * 96}]
    with pytest.raises(openai.BadRequestError) as caught:
        served.api.chat.completions.create(model=NAME, messages=turns)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ("hello", 400, "invalid_json"), ("", 400, "invalid_json"), ("[1]", 400, "invalid_json"),
        (said(most="5"), 400, "invalid_value"), (said(n=2), 400, "unsupported_value"),
        (said(top_p=0.5), 400, "unsupported_value"), (said(min_p=0), 400, "unknown_parameter"),
        (said(prompt=""), 400, "invalid_value"), (said(prompt=[256]), 400, "invalid_value"),
        (said(prompt=[-1]), 400, "invalid_value"), (said(top_k=7), 400, "invalid_value"),
        (said(model="gpt-4o"), 404, "model_not_found"), (said(model="x" * 9999), 404, None),
    ],
)  # fmt: skip
def test_bad_bodies(body, status, code, served):
    found = errors(served.send(body))
    assert found == (status, code or "model_not_found")
    assert served.ask().choices[0].text == served.text("Paper", 5)


def test_errors_of_the_official_client(served):
    with pytest.raises(openai.NotFoundError) as missing:
        served.api.completions.create(model="other", prompt="a")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as refused:
        served.ask(logprobs=3)
    assert (refused.value.param, refused.value.code) == ("logprobs", "unsupported_value")
    assert "logprobs" in refused.value.message


def test_other_paths(served):
    assert errors(served.send(None, "/v2", "GET")) == (404, None)
    assert errors(served.send(None, "/v1/completions", "GET")) == (405, None)
    assert errors(served.send(None, "/v1/models/other", "GET")) == (404, "model_not_found")


def test_ten_megabytes(served):
    """The body has a length or comes in chunks; the sender gets its answer, and others theirs."""
    large = said(prompt="a" * 10_000_000)
    assert errors(served.send(large)) == (413, "body_too_large")
    pieces = (large[at : at + 65536].encode() for at in range(0, len(large), 65536))
    assert errors(served.send(pieces)) == (413, "body_too_large")
    with pytest.raises(openai.APIStatusError) as caught:
        served.ask("a" * 10_000_000)
    assert (caught.value.status_code, caught.value.code) == (413, "body_too_large")
    assert errors(served.send(said(prompt="a" * 1_000_000))) == (400, "context_length_exceeded")
    assert served.ask().choices[0].text == served.text("Paper", 5)


def test_a_body_that_does_not_come():
    with Served(patience=0.2) as served, contextlib.closing(connect(served, "{", more=9)) as slow:
        with contextlib.closing(http.client.HTTPResponse(slow)) as answer:
            answer.begin()
            assert (answer.status, json.loads(answer.read())["error"]["code"]) == (408, "timeout")
        assert slow.recv(1) == b""  # the server closes the connection


def test_a_full_queue():
    """Requests beyond sequences and queue are refused at once. Those before are answered."""
    with Served(Gate(0), queue=2) as served, concurrent.futures.ThreadPoolExecutor() as pool:
        taken = [pool.submit(served.ask, prompt) for prompt in "abcdef"]
        until(lambda: served.stats("requests") == 6)
        with pytest.raises(openai.RateLimitError) as caught:
            served.ask()
        assert caught.value.code == "queue_full"
        assert int(caught.value.response.headers["retry-after"]) >= 1
        served.gate.open()
        for prompt, each in zip("abcdef", taken, strict=True):
            assert each.result(PATIENCE).choices[0].text == served.text(prompt, 5)
        assert served.ask().choices[0].text == served.text("Paper", 5)


def test_two_hundred_connections(served):
    """All are answered: with their own text, or that the queue is full."""

    async def one(number):
        body = said(f"client {number}", 8).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        head = f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n"
        writer.write(f"{head}Connection: close\r\n\r\n".encode() + body)
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        return answer.decode()

    async def all_of_them():
        return await asyncio.wait_for(asyncio.gather(*map(one, range(200))), PATIENCE)

    counts = {"200": 0, "429": 0}
    for number, answer in enumerate(asyncio.run(all_of_them())):
        head, _, body = answer.partition("\r\n\r\n")
        status = head.split()[1]
        counts[status] += 1
        if status == "200":
            assert json.loads(body)["choices"][0]["text"] == served.text(f"client {number}", 8)
        else:
            assert json.loads(body)["error"]["code"] == "queue_full"
    assert counts["200"] >= 12
    assert sum(counts.values()) == 200


# Clients that leave or are slow.


def test_a_client_that_leaves_a_stream():
    """Its request ends before the next step but one, its pages are free, and others go on."""
    with Served(Gate(0)) as served, concurrent.futures.ThreadPoolExecutor() as pool:
        other = pool.submit(served.ask, "Stay", 40)
        until(lambda: served.stats("requests") == 1)
        leaving = pool.submit(served.ask, most=60, stream=True)
        until(lambda: served.stats("requests") == 2)
        served.gate.let(6)
        stream = leaving.result(PATIENCE)
        until(lambda: served.stats("steps") == 6)
        assert served.stats("running") == 2
        next(iter(stream))
        stream.close()
        until(lambda: served.stats("requests") == 1)
        served.gate.let(2)
        until(lambda: served.stats("steps") == 8)
        assert len(served.chip.sequences) == 1
        assert [each["request"] for each in served.engine.slots() if each["request"]] == [1]
        served.gate.open()
        assert other.result(PATIENCE).choices[0].text == served.text("Stay", 40)


@pytest.mark.parametrize("stream", [False, True])
def test_clients_that_reset_their_connections(stream):
    """They leave in the first step, before any answer. So do those that wait for a sequence."""
    with Served(Gate(0)) as served:
        made = [connect(served, said(f"{n}", 50, stream=stream)) for n in range(7)]
        until(lambda: served.stats("requests") == 7)
        for each in made:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            each.close()
        until(lambda: served.stats("requests") == 0)
        served.gate.open()
        assert served.ask().choices[0].text == served.text("Paper", 5)
        assert served.chip.steps < 20


def test_a_slow_reader():
    """It reads nothing until another client has its answer, and then gets its whole text."""
    sizes = Sizes(vocabulary=256, context=1200, places=4, sequences=4)
    with Served(sizes=sizes) as served:
        slow = connect(served, said("Slow", 1100, stream=True), 2048)
        with contextlib.closing(slow):
            until(lambda: served.stats("requests") == 1)
            assert served.ask("Fast", 30).choices[0].text == served.text("Fast", 30)
            until(lambda: served.stats("requests") == 0)
            answer = http.client.HTTPResponse(slow)
            answer.begin()
            lines = answer.read().decode().split("\n\n")
            answer.close()
        chunks = [json.loads(line.removeprefix("data: ")) for line in lines if "{" in line]
        assert "".join(each["choices"][0]["text"] for each in chunks) == served.text("Slow", 1100)
        assert lines[-2:] == ["data: [DONE]", ""]


# A chip that fails.


def test_a_fault_of_a_request():
    """A fault that stays is an error of the server, whole and in the middle of a stream."""
    bus = Answer(CommandStatus.BUS_ERROR, Unit.CACHE, 17)
    gate = Gate()
    with Served(gate) as served:
        gate.answers = dict.fromkeys(range(3), bus)
        with pytest.raises(openai.InternalServerError) as caught:
            served.ask()
        assert (caught.value.status_code, caught.value.code) == (500, "chip_fault")
        assert "BUS_ERROR" in caught.value.message
        first = served.chip.steps
        gate.answers = dict.fromkeys(range(first + 6, first + 60), bus)
        chunks = []
        with pytest.raises(openai.APIError, match="BUS_ERROR"):
            chunks.extend(served.ask(most=30, stream=True))
        shown = "".join(each.choices[0].text for each in chunks)
        assert shown
        assert served.text("Paper", 30).startswith(shown)
        gate.answers = {}
        assert served.ask().choices[0].text == served.text("Paper", 5)


def test_a_fault_that_passes(served):
    """A step is repeated; no token is shown twice."""
    served.gate.answers = {n: Answer(CommandStatus.BUS_ERROR, Unit.CACHE, 9) for n in (3, 4, 9)}
    chunks = served.ask(most=30, stream=True)
    assert "".join(each.choices[0].text for each in chunks) == served.text("Paper", 30)
    assert served.stats("failed_steps") == 3


def test_a_chip_that_is_silent_for_once(capfd):
    with Served(Gate(0)) as served, concurrent.futures.ThreadPoolExecutor() as pool:
        made = [pool.submit(served.ask, prompt, 20) for prompt in PROMPTS]
        until(lambda: served.stats("requests") == 3)
        served.gate.let(9)
        until(lambda: served.chip.steps == 9)
        served.chip.is_silent = True
        served.gate.open()
        for prompt, each in zip(PROMPTS, made, strict=True):
            assert each.result(PATIENCE).choices[0].text == served.text(prompt, 20)
        assert served.worker.resets == 1
    assert "SILENT" in capfd.readouterr().err


class Lost(StrictChip):
    """A chip that a reset does not bring back."""

    def _reset(self, chip):
        super()._reset(chip)
        self.is_silent = True
        return 0


def test_a_chip_that_is_lost(capfd):
    """Every client gets the error, and so do those that come later."""
    gate = Gate()
    chip = Lost(SIZES, gate)
    with Served(gate, chip=chip) as served:
        assert served.ask().choices[0].text == served.text("Paper", 5)
        assert served.send(None, "/health", "GET")[0] == 200
        chip.is_silent = True
        for _ in range(2):
            with pytest.raises(openai.InternalServerError) as caught:
                served.ask()
            assert (caught.value.status_code, caught.value.code) == (503, "chip_lost")
        status, _, text = served.send(None, "/health", "GET")
        assert (status, json.loads(text)["status"]) == (503, "SILENT")
        assert served.worker.resets == RESETS
        assert served.send(None, "/status", "GET")[0] == 200
    assert capfd.readouterr().err.count("SILENT") == RESETS + 1


def test_an_end_in_the_middle():
    """The server ends: a stream gets the API's error, and nothing hangs."""
    served = Served(Gate(0))
    with contextlib.ExitStack() as stack:
        api = stack.enter_context(client(stack.enter_context(running(served.service))))
        stack.callback(served.gate.open)
        fields = {"model": NAME, "prompt": "a", "max_tokens": 50, "temperature": 0}
        stream = api.completions.create(stream=True, **fields)
        served.gate.let(9)
        next(iter(stream))
        began = time.monotonic()
        served.service.worker.shut()
        with pytest.raises(openai.APIError, match="shuts down"):
            list(stream)
        with pytest.raises(openai.InternalServerError) as caught:
            api.completions.create(**fields)
        assert caught.value.code == "shutting_down"
        assert time.monotonic() - began < 30


# The worker by itself.


def test_cancels_at_every_moment():
    """An ended request, one that nobody knows, and one twice."""
    chip = StrictChip(SIZES)
    worker = Worker(Engine(chip, SIZES.image()), 2)
    worker.start()
    items = []
    number = worker.submit(Wanted([1, 2, 3], 5), Written(lambda _tokens: ""), items.append)
    until(lambda: items)
    assert isinstance(items[-1], Done)
    for each in (number, number, 99):
        worker.cancel(each)
    assert len(items) == 1
    assert worker.close()
    worker.engine.close()
    assert not chip.broken


def test_an_error_of_our_own_ends_no_client_in_silence(capfd):
    """A tokenizer that raises: its client gets an error, as all later ones do."""

    def raises(_tokens):
        raise ZeroDivisionError

    worker = Worker(Engine(StrictChip(SIZES), SIZES.image()), 2)
    worker.start()
    items = []
    worker.submit(Wanted([1, 2, 3], 5), Written(raises), items.append)
    until(lambda: any(isinstance(each, Failed) for each in items))
    assert not any(isinstance(each, Piece) for each in items)
    assert worker.broken
    assert worker.close()
    worker.engine.close()
    assert "ZeroDivisionError" in capfd.readouterr().err


# Figures, and curl.


def test_figures(served):
    served.ask(user="secret words")
    (model,) = served.api.models.list()
    assert (model.id, served.api.models.retrieve(NAME).id) == (NAME, NAME)
    status, _, text = served.send(None, "/status", "GET")
    found = json.loads(text)
    assert status == 200
    assert "secret" not in text
    assert "Paper" not in text
    assert len(found["slots"]) == SIZES.sequences
    assert found["stats"]["chosen_tokens"] == 5
    assert found["least"] == {"LOAD": found["stats"]["last"]["tokens"]}
    cycles = found["stats"]["last"]["unit_cycles"]
    assert cycles == served.chip.work[-1]
    assert found["units"] == {unit.name: cycles[unit] for unit in Unit}
    status, headers, text = served.send(None, "/metrics", "GET")
    assert (status, "text/plain" in headers["content-type"]) == (200, True)
    assert "senbazuru_chosen_tokens_total 5\n" in text
    status, headers, text = served.send(None, "/", "GET")
    assert (status, "text/html" in headers["content-type"]) == (200, True)
    assert "http" not in text  # nothing comes from another place
    served.chip.busy = None
    served.ask()
    _, _, text = served.send(None, "/status", "GET")
    assert json.loads(text)["units"] == {}


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl(served):
    def curl(*words):
        place = f"http://127.0.0.1:{served.port}/v1/completions"
        command = ["curl", "-sS", "-m", "30", "-w", "\n%{http_code}", *words, place]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        text, _, status = done.stdout.rpartition("\n")
        return int(status), text

    status, text = curl("-d", said())
    assert (status, json.loads(text)["choices"][0]["text"]) == (200, served.text("Paper", 5))
    status, text = curl("-N", "-d", said(stream=True))
    lines = text.split("\n\n")
    assert (status, lines[-2]) == (200, "data: [DONE]")
    assert all(line.startswith("data: ") for line in lines if line)
    status, text = curl("-d", "{")
    assert (status, json.loads(text)["error"]["code"]) == (400, "invalid_json")
