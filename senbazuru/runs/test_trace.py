"""Requests of a trace on the whole small chip, and what the command refuses."""

import dataclasses
import json

import pytest

from golden.config import ConfigError
from senbazuru.host.build import build_chip
from senbazuru.host.test_host import MACHINE, SHARED, SIZES
from senbazuru.runs import trace
from sim.serving.trace import Request, read_trace, scaled
from tests.kllm import model_example as example

HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
ROWS = ["0,90,40", "0.0001,10,20", "0.0001,300,3", "0.0002,41,130", "0.01,5,5", "0.01,150,60"]
LATENCY = 5


@pytest.fixture
def file(tmp_path):
    made = tmp_path / "small.csv"
    made.write_text(HEAD + "\n".join(ROWS) + "\n")
    return made


def test_lengths_keep_their_ratio():
    """The longest fits exactly, and nothing is 0."""
    requests = [Request(1, 0, 300, 20), Request(2, 1, 4, 1), Request(3, 2, 1, 319)]
    assert trace.lengths_of(requests, 40) == [(37, 2), (1, 1), (1, 39)]
    assert trace.lengths_of(requests, 320, as_is=True) == [(300, 20), (4, 1), (1, 319)]
    assert trace.lengths_of(requests, 640) == [(600, 40), (8, 2), (2, 638)]
    assert trace.lengths_of(requests, 2) == [(1, 1)] * 3
    with pytest.raises(ConfigError, match=r"request 1: .* at most 319 together, not 320"):
        trace.lengths_of(requests, 319, as_is=True)
    with pytest.raises(ConfigError, match="--context must be 2 or more, not 1"):
        trace.lengths_of(requests, 1)


def test_words_are_those_of_the_seed():
    requests = [Request(n, n / 7, 30 * n, n) for n in range(1, 5)]
    first, again, other = (trace.planned(requests, 40, 99, seed) for seed in (1, 1, 2))
    assert first == again != other
    assert all(len(each.words) == each.prompt and max(each.words) < 99 for each in first)
    assert first[0].arrival == round(trace.CLOCK / 7)


def test_a_trace_on_the_chip(file, tmp_path):
    """All requests end, in time; a run that is stopped and goes on gives the same tokens."""
    pack = example.packed(tmp_path / "model", layers=1, **SIZES)
    library = build_chip(SHARED)
    requests = scaled(read_trace(file), 1.0)
    plan = trace.planned(requests, example.CONTEXT, example.VOCABULARY, 1)

    def run(keep=lambda _run: None):
        made = trace.Run({}, [dataclasses.replace(each, words=[*each.words]) for each in plan])
        try:
            trace.serve(made, pack, library, SHARED, LATENCY, keep)
        except KeyboardInterrupt:
            pass
        return made

    whole = run()
    assert whole.is_complete
    for each in whole.requests:
        assert len(each.words) == each.prompt + each.output
        assert each.arrival < each.first <= each.end
    tokens = sum(each.prompt + each.output - 1 for each in whole.requests)
    assert sum(len(each.lengths) for each in whole.steps) == tokens
    assert sum(each.chosen for each in whole.steps) == sum(each.output for each in whole.requests)
    assert max(max(each.lengths) for each in whole.steps) == example.CONTEXT - 1
    # Steps follow each other, and none is before the first arrival that it serves.
    for before, after in zip(whole.steps, whole.steps[1:], strict=False):
        assert after.begin >= before.begin + before.cycles
    assert any(each.begin >= whole.requests[4].arrival for each in whole.steps)
    assert {each.kind for each in whole.steps} >= set(trace.KINDS[1:])
    # The delays are fitted on a larger machine.
    assert max(abs(each.error) for each in whole.steps) < 0.25
    assert abs(sum(s.predicted for s in whole.steps) / sum(s.cycles for s in whole.steps) - 1) < 0.1
    text = trace.table(whole)
    assert "6 of 6 requests ended" in text
    picture = trace.plot(whole)
    assert picture.count("<polyline") == 4
    assert "lanes used" in picture

    kept = tmp_path / "kept.json"

    def stop(now):
        now.save(kept)
        if len(now.steps) == 7:
            raise KeyboardInterrupt

    run(stop)
    going = trace.Run.load(kept)
    assert len(going.steps) == 7
    assert not going.is_complete
    trace.serve(going, pack, library, SHARED, LATENCY)
    assert [each.words for each in going.requests] == [each.words for each in whole.requests]
    assert MACHINE.batch == max(len(each.lengths) for each in going.steps)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (HEAD, "has no requests"),
        ("TIMESTAMP,ContextTokens\n0,1\n", "line 1 lacks the column GeneratedTokens"),
        (HEAD + "0,1,2\n1,x,2\n", "line 3: ContextTokens must be a whole number, not 'x'"),
        (HEAD + "0,1,0\n", "line 2: GeneratedTokens must be 1..16777216, not 0"),
        (HEAD + "0,1,2\n1,2\n", "line 3 must have 3 columns, not 2"),
        (HEAD + "1,1,2\n0,1,2\n", "line 3: TIMESTAMP '0' is before that of the row above"),
    ],
)
def test_files_that_are_no_trace(text, error, tmp_path, capsys):
    file = tmp_path / "bad.csv"
    file.write_text(text)
    assert trace.main(["--trace", str(file)]) == 2
    said = capsys.readouterr().err
    assert error in said
    assert said.count("\n") == 1


def test_other_refusals(file, tmp_path, capsys):
    assert trace.main(["--trace", str(tmp_path / "none.csv")]) == 2
    assert "none.csv: No such file" in capsys.readouterr().err
    assert trace.main(["--trace", str(file), "--as-is", "--context", "100"]) == 2
    assert "request 1: " in capsys.readouterr().err
    with pytest.raises(SystemExit):
        trace.main(["--trace", str(file), "--speed", "0"])
    assert "--speed must be above 0, not 0" in capsys.readouterr().err
    for text in ("{", json.dumps({"version": 0}), json.dumps({"version": 1, "steps": 3})):
        file.write_text(text)
        with pytest.raises(ConfigError, match=r"small\.csv: no run of senbazuru\.runs\.trace"):
            trace.Run.load(file)
