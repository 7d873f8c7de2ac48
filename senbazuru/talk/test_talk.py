"""A random LLaMA of four layers talks on the small accelerator, equal to golden in every bit.

Odd sizes, heads in groups, a prompt in batches, sampling with temperature. A run that was killed
goes on. After a bus error, an abort and a reset the next pass is right.

Shown to fail:

- waits not counted from the pass's beginning;
- logits of a batch's first token, or its choice;
- a place of the batch without its seed;
- a host that takes LEVELS for one word more than it gives;
- a program after a stopped one without a reset.
"""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from golden.config import ConfigError
from golden.kllm import engines
from golden.kllm.config import MACHINES
from golden.kllm.isa import Unit
from golden.kllm.layer.layout import Job
from golden.kllm.model.program import pass_program
from golden.oaken.kv_engine import Request
from golden.paging.format import Op
from hdl.kllm.room import BLOCKS
from senbazuru.talk import command
from senbazuru.talk.__main__ import main
from senbazuru.talk.build import build_host
from senbazuru.talk.contexts import main as contexts
from senbazuru.talk.driver import CommandFailed, Driver, DriverError
from senbazuru.talk.golden import GoldenFailed, KeptTokens
from senbazuru.talk.run import Mismatch, Settings, Talk, made_for
from senbazuru.talk.sampling import Sampling
from senbazuru.talk.session import Session, SessionError, alone
from tests.kllm import model_example as example

SMALL = dataclasses.replace(
    BLOCKS["kllm_accelerator"].configs["small_cache"], machine=example.paged()
)
# As the command builds it; heads of 64 elements.
FAST = dataclasses.replace(
    SMALL, machine=example.paged(64), functions=4, ahead=True, banks=2,
    build=dataclasses.replace(SMALL.build, coding="sums", packet_words=16),
)  # fmt: skip
TWO = dataclasses.replace(SMALL, machine=example.paged(engines=2))
PROMPT = [3, 141, 59, 26, 53, 58]
TOTAL = 9  # of the runs that stop


@pytest.fixture(scope="module")
def native():
    return build_host(SMALL)


@pytest.fixture(scope="module")
def one_pack(tmp_path_factory):
    return example.packed(tmp_path_factory.mktemp("pack") / "model")


@pytest.fixture(scope="module")
def speaking(tmp_path_factory):
    return example.packed(tmp_path_factory.mktemp("pack") / "model", speaks=True)


def settings(pack, native, config=SMALL, **others):
    sampling = others.pop("sampling", Sampling())
    return Settings(pack, config, native, sampling, others.pop("latency", 5), **others)


def tokens(made, folder, total, stop=None):
    """Tokens of a session in ``folder``, and the words compared; ends after ``stop`` passes."""
    vocabulary = made.pack.layout.shape.vocabulary
    session = Session.open(folder / "session", made_for(made, PROMPT), PROMPT, vocabulary)
    compared = 0
    with Talk(made, session, total, folder / "golden") as run:
        for number, each in enumerate(run.passes(), 1):
            compared += each.compared
            if number == stop:
                break
    return session.tokens, compared


@pytest.mark.telling
@pytest.mark.parametrize("head_dim", [32, 64])
def test_all_words_are_golden(head_dim, tmp_path):
    """Every status, row, slot and logit; memories of two latencies give one text."""
    pack = example.packed(tmp_path / "pack", head_dim=head_dim)
    config = SMALL if head_dim == 32 else FAST
    sampling, texts = Sampling(temperature=1.2, top_k=5, seed=4), []
    for latency in (5, 61):
        made = settings(pack, build_host(config), config, sampling=sampling, check=True, chunk=2,
                        latency=latency)  # fmt: skip
        found, compared = tokens(made, tmp_path / f"{latency}", 19)
        assert len(found) == 19
        assert found[: len(PROMPT)] == PROMPT
        assert compared > 16 * (256 * 8 + 200)
        state = json.loads((tmp_path / f"{latency}" / "session" / "session.json").read_text())
        assert [each["tokens"] for each in state["passes"][:4]] == [2, 2, 2, 1]
        texts.append(found)
    assert texts[0] == texts[1]


def test_two_engines(tmp_path):
    """Every word is golden's, also of a run that stopped; an error of one engine's memory ends."""
    pack, native = example.packed(tmp_path / "pack", engines=2), build_host(TWO)
    made = settings(pack, native, TWO, check=True)
    some, _ = tokens(made, tmp_path, 8, stop=2)
    found, compared = tokens(made, tmp_path, TOTAL)
    assert found[: len(some)] == some
    assert compared > 2 * (256 * 8 + 200)
    by_steps = settings(pack, native, TWO, golden=False)
    assert by_steps.steps
    assert tokens(by_steps, tmp_path / "steps", TOTAL)[0] == found
    data = TWO.machine.ports.ports
    with Driver(native.executable, pack, 5) as driver:
        right = driver.run_step(Job(1, 0), [3], 1).ids
        for port in range(data + 1, data + 5):  # the engines' reads, then their writes
            driver.begin_sequence()
            driver.set_error(port, 0)
            with pytest.raises(CommandFailed, match=r"\(CACHE\): BUS_ERROR"):
                driver.run_step(Job(1, 0), [3], 1)
            driver.set_error(port, 0, False)
            driver.begin_sequence()
            assert driver.run_step(Job(1, 0), [3], 1).ids == right


def test_stopped_runs_go_on(one_pack, native, tmp_path):
    """A stop, in the prompt or after it, changes no token; golden's are kept."""
    made = settings(one_pack, native, sampling=Sampling(temperature=0.8, top_k=6, seed=1))
    whole, compared = tokens(made, tmp_path / "whole", TOTAL)
    assert compared == TOTAL - len(PROMPT)
    for stop in (1, 3):
        folder = tmp_path / f"stop{stop}"
        first, _ = tokens(made, folder, TOTAL, stop)
        assert len(first) < TOTAL
        left = TOTAL - max(len(first), len(PROMPT))
        assert tokens(made, folder, TOTAL) == (whole, left)
    (kept,) = (tmp_path / "whole" / "golden").iterdir()
    assert json.loads(kept.read_text()) == {str(n): whole[n] for n in range(len(PROMPT), TOTAL)}
    kept.write_text(json.dumps({str(n): 0 for n in range(len(PROMPT), TOTAL)}))
    with pytest.raises(Mismatch, match=r"token 6 is .*, golden's is 0"):
        tokens(made, tmp_path / "whole", TOTAL)  # of tokens that an earlier run has made
    (tmp_path / "whole" / "session" / "session.json").unlink()
    with pytest.raises(Mismatch, match=r"token 6 is .*, golden's is 0"):
        tokens(made, tmp_path / "whole", TOTAL)


def test_other_words_in_memory_are_found(one_pack, native, tmp_path):
    """``check`` sees what a constant that differs does to one layer."""
    made = settings(one_pack, native, check=True)
    session = Session.open(tmp_path, made_for(made, PROMPT), PROMPT, example.VOCABULARY)
    with Talk(made, session, 9, tmp_path / "golden") as run:
        passes = run.passes()
        next(passes)
        run.driver.begin_sequence()  # the pages of the next pass have no tokens
        with pytest.raises((Mismatch, CommandFailed)):
            next(passes)


def test_faults_have_names_and_end(one_pack, native):
    """A pass that failed leaves K and V of some layers: the sequence begins anew."""
    layout = one_pack.layout

    def step(driver, place, token, **others):
        program = pass_program(layout, Job(1, place), chooses=True)
        return driver.run_pass(program, [token], **others)

    def again(driver):
        driver.begin_sequence()
        return [step(driver, 0, 3), step(driver, 1, 141)]

    with Driver(native.executable, one_pack, 5) as driver:
        right = again(driver)
        data = SMALL.machine.ports.ports
        for port, word, name in (
            (1, layout.layers[2].image["down"][0] + 7, "MATMUL"),
            (data, layout.layers[2].place["codebook.h"][0], "LOAD"),
            (data + 1, 0, "CACHE"),
            (data + 2, 0, "CACHE"),
        ):
            driver.begin_sequence()
            driver.set_error(port, word)
            reason = rf"command \d+ \({name}\): BUS_ERROR"
            with pytest.raises(CommandFailed, match=reason):
                [step(driver, place, token) for place, token in ((0, 3), (1, 141))]
            driver.set_error(port, word, False)
            assert all(map(same, again(driver), right))
        for cycle in (0, 3, 17, 24, 900, 2500, 4000):  # words are on their way, or units at work
            driver.begin_sequence()
            step(driver, 0, 3)
            with pytest.raises(CommandFailed, match=r"ABORTED|stopped"):
                step(driver, 1, 141, abort_at=cycle)
            assert all(map(same, again(driver), right))
        words = pass_program(layout, Job(1, 1)).with_tokens([141])
        assert driver.run(words, stop_at=700).failed
        driver.reset()
        assert all(map(same, again(driver), right))


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_steps_need_no_host(temperature, one_pack, native, tmp_path):
    """Programs in memory and ids chosen on the chip give the text that the host's commands give.

    A draw takes two words more. Another seed gives another text.
    """
    texts = []
    drawn = Sampling(temperature=temperature, top_k=6, seed=2)
    for by_host in (True, False):
        made = settings(one_pack, native, by_host=by_host, sampling=drawn)
        texts.append(tokens(made, tmp_path / f"{by_host}", 12)[0])
        state = json.loads((tmp_path / f"{by_host}" / "session" / "session.json").read_text())
        written = [each.get("written") for each in state["passes"] if each["tokens"] == 1]
        words = 6 if temperature else 4
        assert written == ([None] if by_host else [words]) * len(written)
        for each in state["passes"]:
            busy = each["units"].values()
            assert all(bool(each["logits"]) <= cycles < each["cycles"] for cycles in busy), each
    assert texts[0] == texts[1]
    made = settings(one_pack, native, sampling=drawn)
    first, _ = tokens(made, tmp_path / "stop", 12, 3)
    assert len(first) < 12
    assert tokens(made, tmp_path / "stop", 12)[0] == texts[0]
    other = settings(one_pack, native, sampling=dataclasses.replace(drawn, seed=3))
    assert (tokens(other, tmp_path / "other", 12)[0] == texts[0]) == (not temperature)


def test_faults_of_steps_have_names_and_end(one_pack, native):
    """After each fault the sequence begins anew, and its ids are right."""
    layout, data = one_pack.layout, SMALL.machine.ports.ports

    def again(driver):
        driver.begin_sequence()
        return [driver.run_step(Job(1, n), [token], 1).ids for n, token in enumerate((3, 141))]

    with Driver(native.executable, one_pack, 5) as driver:
        right = again(driver)
        for port, word, reason in (
            (data, layout.rows + 40, "a step: BUS_ERROR"),  # of its program
            (1, layout.layers[2].image["down"][0] + 7, r"command \d+ \(MATMUL\): BUS_ERROR"),
            (data + 1, 0, r"command \d+ \(CACHE\): BUS_ERROR"),
        ):
            driver.begin_sequence()
            driver.set_error(port, word)
            with pytest.raises(CommandFailed, match=reason):
                driver.run_step(Job(1, 0), [3], 1)
            driver.set_error(port, word, False)
            assert again(driver) == right
        for job, token, reason in (
            (Job(1, 0), example.VOCABULARY, r"command 0 \(LOAD\): RANGE"),
            (Job(1, example.CONTEXT), 3, r"\((LOAD|CACHE)\): (RANGE|SLOT_MISMATCH|CAPACITY)"),
        ):
            driver.begin_sequence()
            with pytest.raises(CommandFailed, match=reason):
                driver.run_step(job, [token], 1)
            assert again(driver) == right
        for cycle in (1, 60, 900, 4000):
            driver.begin_sequence()
            with pytest.raises(CommandFailed, match="ABORTED"):
                driver.run_step(Job(1, 0), [3], 1, abort_at=cycle)
            assert again(driver) == right


def test_a_full_table_is_one_line(one_pack, native):
    with Driver(native.executable, one_pack, 5) as driver:
        for _ in range(SMALL.machine.cache.sequences - 1):
            driver.request(Request(Op.OPEN))
        with pytest.raises(DriverError, match="OPEN of the cache: TABLE_FULL"):
            driver.request(Request(Op.OPEN))


def test_a_stopped_program_needs_a_reset(one_pack, native):
    """Answers of the stopped program would be taken for those of the next. One line."""
    words = pass_program(one_pack.layout, Job(1)).with_tokens([3])
    with Driver(native.executable, one_pack, 5) as driver:
        assert driver.run(words, stop_at=50).failed
        with pytest.raises(DriverError, match="a program was stopped: reset the accelerator first"):
            driver.run(words)


def same(found, wanted):
    """All words read back, the chosen token among them."""
    return np.array_equal(found.readback, wanted.readback)


def test_a_program_that_ends_is_one_line(one_pack, native, tmp_path):
    (tmp_path / "empty").mkdir()
    with (
        pytest.raises(DriverError, match=r"cannot read .*port_00\.bin"),
        Driver(native.executable, dataclasses.replace(one_pack, folder=tmp_path / "empty"), 5),
    ):
        pass


def test_golden_refuses_in_one_line(one_pack, native, tmp_path, capfd):
    made = settings(one_pack, native, check=True)
    session = Session.open(tmp_path, made_for(made, PROMPT), PROMPT, example.VOCABULARY)
    with Talk(made, session, 9, tmp_path / "golden") as run:
        assert run.golden is not None
        run.golden.send("run", Job(1, 3), 1, [1])
        with pytest.raises(GoldenFailed, match="a cache of 3 tokens needed, not 0"):
            run.golden.result()
    capfd.readouterr()


def test_contexts(one_pack, capsys):
    """Attention grows with the context, the linear layers do not."""
    words = ["--pack", str(one_pack.folder), *SMALL_WORDS]
    assert contexts([*words, "--context", "40", "--contexts", "0", "36"]) == 0
    rows = [line.split("|") for line in capsys.readouterr().out.splitlines()[2:]]
    short, long = ([int(cell.replace(",", "")) for cell in row[1:-1]] for row in rows)
    assert (short[0], long[0]) == (0, 36)
    assert long[3] > short[3]
    assert abs(long[2] - short[2]) < short[2] / 20


def test_steps_of_users(one_pack, capsys):
    """Two users cost less than two steps; more than there are places are refused."""
    words = ["--pack", str(one_pack.folder), *SMALL_WORDS, "--context", "40", "--contexts", "12"]
    words, cycles = [*words, "--steps"], []
    for users in ("1", "2"):
        assert contexts([*words, "--users", users]) == 0
        row = capsys.readouterr().out.splitlines()[2].split("|")
        cycles.append(int(row[2].replace(",", "")))
    assert cycles[0] < cycles[1] < 2 * cycles[0]
    assert contexts([*words, "--users", "99"]) == 2
    assert "--users must be in 1.." in capsys.readouterr().err
    with pytest.raises(SystemExit):
        contexts([*words[:-1], "--users", "2"])


def test_sampling():
    """The words of a place: none where the largest logit is taken."""
    machine = SMALL.machine
    assert Sampling.of(0.0, None, 0, machine).place is None
    assert Sampling.of(2.0, 1, 3, machine).place is None
    assert Sampling.of(1.0, None, 3, machine).place == engines.Sampling(6, 0x3DC5, 3)
    assert Sampling.of(1.0, None, 3, MACHINES["smollm2_cache"]).top_k == 40
    with pytest.raises(ConfigError, match=r"top_k must be 1\.\.6 on this machine, not 7"):
        Sampling.of(1.0, 7, 3, machine)
    for words in ((None, 3), (2, 0)):
        with pytest.raises(ConfigError, match="temperature must be above 0 for top_k or seed"):
            Sampling.of(0.0, *words, machine)


MADE = {"image": "x", "prompt": PROMPT, "sampling": {}}


def two_passes(folder):
    """A session of 6 cached tokens, and one more."""
    session = Session.open(folder, MADE, PROMPT, 150)
    for job, token in ((Job(2), None), (Job(4, 2), 7)):
        units = {unit.name: 5 for unit in Unit}
        counts = dict.fromkeys(("logits", "compared", "cycles", "ahead"), 1)
        sizes = {"tokens": job.tokens, "context": job.context}
        session.add(token, {**sizes, **counts, "seconds": 0.5, "units": units})
    return session


def test_sessions(tmp_path):
    two_passes(tmp_path)
    again = Session.open(tmp_path, MADE, PROMPT, 150)
    assert (again.tokens, again.cached) == ([*PROMPT, 7], 6)
    assert again.jobs() == [Job(2), Job(4, 2)]
    with pytest.raises(SessionError, match="is of another image: remove"):
        Session.open(tmp_path, MADE | {"image": "y"}, PROMPT, 150)
    again.add(9, again.passes[0] | {"tokens": 1, "context": 6})
    assert Session.open(tmp_path, MADE, PROMPT, 150).tokens == [*PROMPT, 7, 9]
    assert issubclass(SessionError, ConfigError)


def first_pass(**others):
    """A change of the state: other figures of its first pass."""
    return lambda made: {"passes": [made["passes"][0] | others, *made["passes"][1:]]}


@pytest.mark.parametrize(
    "change",
    [
        lambda _made: {"tokens": PROMPT[:4]},
        lambda _made: {"tokens": PROMPT},
        lambda _made: {"tokens": [*PROMPT, "7"]},
        lambda _made: {"tokens": [*PROMPT, -1]},
        lambda _made: {"tokens": [*PROMPT, 10**9]},
        lambda _made: {"tokens": [*PROMPT[:-1], 1, 7]},
        lambda made: {"passes": made["passes"][:1]},
        lambda _made: {"passes": ["x", 3]},
        first_pass(tokens=0),
        first_pass(tokens=10**9),
        first_pass(cycles="many"),
        first_pass(units={}),
        first_pass(seconds=-1),
    ],
)
def test_damaged_states(change, tmp_path):
    """Shown to fail without the check of the tokens' range."""
    two_passes(tmp_path)
    state = tmp_path / "session.json"
    made = json.loads(state.read_text())
    state.write_text(json.dumps(made | change(made)))
    with pytest.raises(SessionError, match=r"is damaged.*: remove"):
        Session.open(tmp_path, MADE, PROMPT, 150)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}'])
def test_a_state_that_is_none(text, tmp_path):
    two_passes(tmp_path)
    (tmp_path / "session.json").write_text(text)
    with pytest.raises(SessionError, match="is damaged or of another version"):
        Session.open(tmp_path, MADE, PROMPT, 150)


@pytest.mark.parametrize("text", ["[]", '{"x": 1}', '{"6": "1"}', "{"])
def test_damaged_tokens_of_golden_are_none(text, tmp_path):
    file = tmp_path / "kept.json"
    file.write_text(text)
    kept = KeptTokens(file)
    assert kept.tokens == {}
    assert kept.get(6, lambda: 3) == 3
    assert KeptTokens(file).tokens == {6: 3}


# Through the command.

SMALL_WORDS = ["--config", "small_cache", "--latency", "5", "--threads", "1"]
SMALL_WORDS += [word for each in example.PAGED for word in ("--set", each)]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder in which the command keeps its sessions."""
    monkeypatch.setattr(command, "FOLDER", tmp_path)
    return tmp_path


def stored(folder):
    """Tokens of the only session."""
    (state,) = folder.glob("session-*/session.json")
    return json.loads(state.read_text())["tokens"]


def test_a_finished_text_stays_finished(native, folder, tmp_path, capsys):
    """Shown to fail without the look for an end before the first pass."""

    def said(pack, tokens):
        words = ["--prompt", "fold", "--no-golden", "--tokens", str(tokens)]
        assert main(["--pack", str(pack.folder), *SMALL_WORDS, *words]) == 0
        return capsys.readouterr().out

    endless = example.packed(tmp_path / "endless", speaks=True)
    assert "passes" in said(endless, 1)
    said(endless, 6)
    made = stored(folder)
    shutil.rmtree(next(folder.glob("session-*/")))
    assert made[:4] == list(b"fold")
    ends = example.packed(tmp_path / "ends", end=[made[5]], speaks=True)
    length = 5 + made[4:].index(made[5])
    first = said(ends, 6)
    assert stored(folder) == made[:length]
    assert said(ends, 6) == first.partition("timeline")[0]
    assert stored(folder) == made[:length]


def test_two_runs_of_a_session(speaking, native, folder, capsys):
    """The second one changes nothing. Shown to fail without the lock."""
    words = ["--pack", str(speaking.folder), *SMALL_WORDS, "--prompt", "fold", "--no-golden"]
    assert main([*words, "--tokens", "1"]) == 0
    (session,) = folder.glob("session-*/")
    capsys.readouterr()
    with alone(session):
        assert main([*words, "--tokens", "2", "--fresh"]) == 2
    assert "another run uses" in capsys.readouterr().err
    assert len(stored(folder)) == 5


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--prompt", ""], "--prompt must have a word, it is empty"),
        (["--prompt", "fold\udcff"], "--prompt must be UTF-8 text, character 4 is not"),
        (["--prompt", "\u00e9"], "--prompt has the token 195: tokens of the model are 0..149"),
        (["--prompt", "x" * 30, "--tokens", "11"], "they must be at most 40"),
        (["--chat"], "--chat needs a tokenizer with a chat template"),
        (["--pack", "nowhere"], "has no manifest.json"),
        (["--temperature", "-1"], "temperature must be 0..100, not -1.0"),
        (["--top-k", "7"], "top_k must be 1..6 on this machine"),
        (["--top-k", "65"], "top_k must be 1..64, not 65"),
        (["--set", "lane.lanes=0"], "lanes must be"),
        (["--check", "--no-golden"], "exclude each other"),
        (["--tokens", "0"], "argument --tokens: must be a whole number from 1 on"),
        (["--config", "table1", "--set", "lane.lanes=16"], "must be"),
    ],
)
def test_bad_input_is_one_line(words, reason, speaking, capsys):
    try:
        status = main(["--pack", str(speaking.folder), *SMALL_WORDS, *words])
    except SystemExit as error:
        status = error.code
    shown = capsys.readouterr().err
    assert status == 2
    assert reason in shown
    assert shown.count("\n") == 1
