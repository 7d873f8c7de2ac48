"""Users with one prompt on the whole small chip; the command's own cases are in tests/test_runs.py.

Shown to fail: a child with another own token; ``cached`` without the FORKs; pages that only reads
reach.
"""

import dataclasses

import pytest

from golden.config import ConfigError
from senbazuru.host.build import build_chip
from senbazuru.host.test_shared import MACHINE, SHARED, SIZES
from senbazuru.runs import prefix
from tests.kllm import model_example as example

LATENCY, TOKENS, USERS, OWN, MOST = 5, 24, 8, 2, 3


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    return example.packed(tmp_path_factory.mktemp("pack") / "model", layers=1, **SIZES)


@pytest.fixture(scope="module")
def library():
    return build_chip(SHARED)


@pytest.fixture(scope="module")
def plan():
    prompt = tuple(5 * n % 140 for n in range(TOKENS))
    return prefix.Plan(prompt, tuple((n, 100 + n) for n in range(USERS)), MOST)


def test_users_share_a_prompt(library, packed, plan):
    found = {
        case: prefix.measure(case, plan, packed, library, SHARED, LATENCY) for case in prefix.CASES
    }
    prefix.check(found)
    one, shared, apart = (found[case] for case in prefix.CASES)
    assert [len(each.words) for each in (one, shared, apart)] == [1, USERS, USERS]
    assert all(len(words) == MOST for words in shared.words)
    own = OWN + MOST - 1
    assert one.tokens == TOKENS + own
    assert shared.tokens == TOKENS + USERS * own
    assert apart.tokens == USERS * (TOKENS + own)
    # FORKs take less than a step; a prompt takes all places of each of its steps.
    prompt_steps = TOKENS // MACHINE.batch
    assert one.cached < shared.cached < one.cached * (prompt_steps + 1) / prompt_steps
    assert apart.cached > USERS * 0.8 * one.cached
    # Each stream of a child has a page in which it goes on, or two.
    streams = 2
    assert one.pages + USERS * streams <= shared.pages <= one.pages + 2 * USERS * streams
    # Apart a prompt takes all places, so few users are there at a time.
    assert (one.together, shared.together) == (1, USERS)
    assert 1 < apart.together < USERS
    assert one.pages < apart.pages < apart.together * one.pages + streams
    assert shared.pages < USERS * one.pages
    text = prefix.table([{"page_bytes": 256, "cases": found}])
    assert text.count("\n") == 2 + len(prefix.CASES)
    assert f"| {shared.cached / one.cached:.2f} | {USERS} | {shared.pages} |" in text


def test_what_a_chip_cannot_share(library, packed, plan):
    more = dataclasses.replace(plan, own=plan.own + plan.own[:1])
    with pytest.raises(ConfigError, match="must be 10 or more for 9 users and their prefix, not 9"):
        prefix.measure(prefix.SHARED, more, packed, library, SHARED, LATENCY)


def test_other_tokens_are_refused():
    each = prefix.Measured(1, 1, 1, 1, 1, 1, [[1, 2]])
    prefix.check({prefix.ONE: each, prefix.SHARED: each})
    other = dataclasses.replace(each, words=[[1, 3]])
    with pytest.raises(ConfigError, match=r"user 0 chose \[1, 2\] in the case 'one user'"):
        prefix.check({prefix.ONE: each, prefix.SHARED: other})
