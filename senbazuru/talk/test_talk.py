"""A random LLaMA of four layers talks on the small accelerator, equal to golden in every bit.

Odd sizes, heads in groups, V's images of one group and of two, a prompt in batches, sampling with
temperature. A run that was killed goes on. After a bus error, an abort and a reset the next pass is
right.

Shown to fail:

- V's scales written from the second token on;
- K's scales left out;
- V's images not written anew when a beat is added;
- waits not counted from the pass's beginning;
- logits of a batch's first token;
- a host that takes LEVELS for one word more than it gives;
- a program after a stopped one without a reset.
"""

import hashlib
import json
import shutil
import struct

import numpy as np
import pytest

from golden.config import ConfigError
from golden.kllm.isa import Unit
from golden.kllm.layer.layout import Job
from golden.kllm.model.program import pass_program
from hdl.kllm.room import BLOCKS
from senbazuru.talk import command
from senbazuru.talk.__main__ import main
from senbazuru.talk.build import build_host
from senbazuru.talk.contexts import main as contexts
from senbazuru.talk.driver import CommandFailed, Driver, DriverError
from senbazuru.talk.golden import GoldenFailed, KeptTokens
from senbazuru.talk.run import Mismatch, Settings, Talk, made_for
from senbazuru.talk.sampling import Sampling, choose, draw
from senbazuru.talk.session import Session, SessionError, Sizes, alone
from tests.kllm import model_example as example

SMALL = BLOCKS["kllm_accelerator"].configs["small"]
PROMPT = [3, 141, 59, 26, 53, 58]
TOTAL = 9  # of the runs that stop


@pytest.fixture(scope="module")
def native():
    return build_host(SMALL)


@pytest.fixture(scope="module", params=[32, 64])
def pack(request, tmp_path_factory):
    return example.packed(tmp_path_factory.mktemp("pack") / "model", request.param)


@pytest.fixture(scope="module")
def one_pack(tmp_path_factory):
    return example.packed(tmp_path_factory.mktemp("pack") / "model")


@pytest.fixture(scope="module")
def speaking(tmp_path_factory):
    return example.packed(tmp_path_factory.mktemp("pack") / "model", speaks=True)


def settings(pack, native, **others):
    sampling = others.pop("sampling", Sampling())
    return Settings(pack, SMALL, native, sampling, latency=5, **others)


def tokens(made, folder, total, stop=None):
    """Tokens of a session in ``folder``, and the words compared; ends after ``stop`` passes."""
    sizes = Sizes.of(made.pack.layout)
    session = Session.open(folder / "session", made_for(made, PROMPT), PROMPT, sizes)
    compared = 0
    with Talk(made, session, total, folder / "golden") as run:
        for number, each in enumerate(run.passes(), 1):
            compared += each.compared
            if number == stop:
                break
    return session.tokens, compared


@pytest.mark.telling
def test_all_words_are_golden(pack, native, tmp_path):
    """17 tokens and more: V's images get a second beat, which moves the scales and later groups."""
    sampling = Sampling(temperature=1.2, top_p=0.9, seed=4)
    made = settings(pack, native, sampling=sampling, check=True, chunk=2)
    found, compared = tokens(made, tmp_path, 19)
    assert len(found) == 19
    assert found[: len(PROMPT)] == PROMPT
    assert compared > 16 * (256 * 8 + 200)
    passes = json.loads((tmp_path / "session" / "session.json").read_text())["passes"]
    assert [each["tokens"] for each in passes[:4]] == [2, 2, 2, 1]


def test_stopped_runs_go_on(one_pack, native, tmp_path):
    """A stop, in the prompt or after it, changes no token; golden's are kept."""
    made = settings(one_pack, native, sampling=Sampling(temperature=0.8, seed=1))
    whole, compared = tokens(made, tmp_path / "whole", TOTAL)
    assert compared == TOTAL - len(PROMPT)
    for stop in (1, 4):
        folder = tmp_path / f"stop{stop}"
        first, _ = tokens(made, folder, TOTAL, stop)
        assert len(first) < TOTAL
        cache = folder / "session" / "cache.bin"
        cache.write_bytes(cache.read_bytes() + b"killed in the middle of a token")
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


def test_other_cached_words_are_found(one_pack, native, tmp_path):
    """``check`` sees one index of a cached K that differs."""
    made = settings(one_pack, native, check=True)
    sizes = Sizes.of(one_pack.layout)
    session = Session.open(tmp_path, made_for(made, PROMPT), PROMPT, sizes)
    with Talk(made, session, 9, tmp_path / "golden") as run:
        passes = run.passes()
        next(passes)
        (job, slots), *_ = session.slots()
        words = slots[2].copy()
        words[-6] ^= 0x00010000  # K of the last head: an entry of its slot
        run.driver.append(2, job, words)
        with pytest.raises(Mismatch, match=r"part 3: .* words read back differ"):
            next(passes)


def test_faults_have_names_and_end(one_pack, native, tmp_path):
    """A pass that failed is done again; what it had appended before is written again."""
    layout = one_pack.layout
    greedy = Sampling()

    def step(driver, place, token, **others):
        program = pass_program(layout, Job(1, place))
        return list(driver.run_pass(program, [token], greedy, **others))

    with Driver(native.executable, one_pack.folder, layout, 5) as driver:
        right = [step(driver, 0, 3), step(driver, 1, 141)]
        for port, word, name in (
            (1, layout.layers[2].image["down"][0] + 7, "MATMUL"),
            (SMALL.machine.ports.ports, layout.layers[2].place["codebook.h"][0], "LOAD"),
        ):
            driver.set_error(port, word)
            with pytest.raises(CommandFailed, match=rf"part 3: command \d+ \({name}\): BUS_ERROR"):
                step(driver, 1, 141)
            driver.set_error(port, word, False)
            assert same(step(driver, 1, 141), right[1])
        with pytest.raises(CommandFailed, match=r"part 2: command \d+ \(\w+\): ABORTED"):
            step(driver, 1, 141, abort=(2, 900))
        assert same(step(driver, 1, 141), right[1])
        for cycle in (0, 3, 17, 24):  # words are on their way
            with pytest.raises(CommandFailed, match=r"part 0: .*(ABORTED|stopped)"):
                step(driver, 1, 141, abort=(0, cycle))
            assert same(step(driver, 1, 141), right[1])
        words = pass_program(layout, Job(1, 1)).with_tokens([141])[0]
        assert driver.run(words, stop_at=700).failed
        driver.reset()
        assert same(step(driver, 1, 141), right[1])


def test_a_stopped_program_needs_a_reset(one_pack, native):
    """Answers of the stopped program would be taken for those of the next. One line."""
    words = pass_program(one_pack.layout, Job(1)).with_tokens([3])[0]
    with Driver(native.executable, one_pack.folder, one_pack.layout, 5) as driver:
        assert driver.run(words, stop_at=50).failed
        with pytest.raises(DriverError, match="a program was stopped: reset the accelerator first"):
            driver.run(words)


def same(found, wanted):
    """The chosen token, and all words read back."""
    pairs = zip(found[:-1], wanted[:-1], strict=True)
    equal = all(np.array_equal(a.readback, b.readback) for a, b in pairs)
    return equal and found[-1] == wanted[-1]


def test_a_program_that_ends_is_one_line(one_pack, native, tmp_path):
    (tmp_path / "empty").mkdir()
    with (
        Driver(native.executable, tmp_path / "empty", one_pack.layout, 5) as driver,
        pytest.raises(DriverError, match=r"cannot read .*port_00\.bin"),
    ):
        driver.run([])


def test_golden_refuses_in_one_line(one_pack, native, tmp_path, capfd):
    made = settings(one_pack, native, check=True)
    sizes = Sizes.of(one_pack.layout)
    session = Session.open(tmp_path, made_for(made, PROMPT), PROMPT, sizes)
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


def test_sampling():
    """Both ends of the draw; ties go to the lowest token; a small top_p leaves the likeliest."""
    words = np.array([0x3C00, 0x4000, 0x4000, 0xC000], dtype=np.uint16)  # 1, 2, 2, -2
    assert choose(words, Sampling(), 0.9) == 1
    hot = Sampling(temperature=1.0)
    assert choose(words, hot, 0.0) == 1
    assert choose(words, hot, 0.999999) == 3
    assert choose(words, Sampling(temperature=1.0, top_p=0.01), 0.999999) == 1
    with pytest.raises(ValueError, match="not finite"):
        choose(np.array([0x7C00]), hot, 0.5)
    assert 0 <= draw(1, 2) < 1
    assert draw(1, 2) != draw(1, 3) != draw(2, 3)


SIZES = Sizes(vocabulary=150, layers=2, words=3)
MADE = {"image": "x", "prompt": PROMPT, "sampling": {}}


def two_passes(folder):
    """A session of 6 cached tokens, and one more."""
    session = Session.open(folder, MADE, PROMPT, SIZES)
    for job, token in ((Job(2), None), (Job(4, 2), 7)):
        slots = [np.arange(3 * job.tokens, dtype=np.uint32)] * 2
        units = {unit.name: 5 for unit in Unit}
        counts = dict.fromkeys(("logits", "compared", "cycles", "ahead"), 1)
        sizes = {"tokens": job.tokens, "context": job.context}
        session.add(job, slots, token, {**sizes, **counts, "seconds": 0.5, "units": units})
    return session


def test_sessions(tmp_path):
    session = two_passes(tmp_path)
    again = Session.open(tmp_path, MADE, PROMPT, SIZES)
    assert (again.tokens, again.cached) == ([*PROMPT, 7], 6)
    assert [(job, slots.tolist()) for job, slots in again.slots()] == [
        (job, slots.tolist()) for job, slots in session.slots()
    ]
    with pytest.raises(SessionError, match="is of another image: remove"):
        Session.open(tmp_path, MADE | {"image": "y"}, PROMPT, SIZES)
    slots = [np.arange(3, dtype=np.uint32)] * 2
    again.add(Job(1, 6), slots, 9, again.passes[0] | {"tokens": 1, "context": 6})
    assert Session.open(tmp_path, MADE, PROMPT, SIZES).tokens == [*PROMPT, 7, 9]
    assert issubclass(SessionError, ConfigError)


@pytest.mark.parametrize(
    "change",
    [
        lambda whole: whole[:-1],
        lambda whole: struct.pack("<III", 9, 9, 9) + whole[12:],
        lambda whole: struct.pack("<III", 1, 2, 6) + whole[12:],
        lambda whole: struct.pack("<III", 2, 4, 3) + whole[12:],
        lambda whole: whole[:-5] + bytes([whole[-5] ^ 4]) + whole[-4:],
    ],
)
@pytest.mark.parametrize("is_sealed", [False, True])
def test_damaged_caches(change, is_sealed, tmp_path):
    """A cache file that the checksum is not of, and one that it is of but no run writes.

    Shown to fail without the comparison of checksums.
    """
    two_passes(tmp_path)
    cache, state = tmp_path / "cache.bin", tmp_path / "session.json"
    whole = cache.read_bytes()
    found = change(whole)
    cache.write_bytes(found)
    is_flipped = len(found) == len(whole) and found[:12] == whole[:12]
    if is_sealed and not is_flipped:
        made = json.loads(state.read_text()) | {"sha256": hashlib.sha256(found).hexdigest()}
        state.write_text(json.dumps(made))
    with pytest.raises(SessionError, match=r"must have|is damaged"):
        Session.open(tmp_path, MADE, PROMPT, SIZES)
    assert cache.read_bytes() == found


def first_pass(**others):
    """A change of the state: other figures of its first pass."""
    return lambda made: {"passes": [made["passes"][0] | others, *made["passes"][1:]]}


@pytest.mark.parametrize(
    "change",
    [
        lambda _made: {"cached": "6"},
        lambda _made: {"cached": 5},
        lambda _made: {"cached": True},
        lambda _made: {"size": -5},
        lambda _made: {"sha256": None},
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
        Session.open(tmp_path, MADE, PROMPT, SIZES)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}'])
def test_a_state_that_is_none(text, tmp_path):
    two_passes(tmp_path)
    (tmp_path / "session.json").write_text(text)
    with pytest.raises(SessionError, match="is damaged or of another version"):
        Session.open(tmp_path, MADE, PROMPT, SIZES)


@pytest.mark.parametrize("text", ["[]", '{"x": 1}', '{"6": "1"}', "{"])
def test_damaged_tokens_of_golden_are_none(text, tmp_path):
    file = tmp_path / "kept.json"
    file.write_text(text)
    kept = KeptTokens(file)
    assert kept.tokens == {}
    assert kept.get(6, lambda: 3) == 3
    assert KeptTokens(file).tokens == {6: 3}


# Through the command.

SMALL_WORDS = "--config small --set slot.slots=4 --latency 5 --threads 1".split()


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
        (["--top-p", "2"], "top_p must be 0.01..1"),
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
