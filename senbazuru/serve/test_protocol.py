"""Fields of the API: those that are taken, and the error of each that is refused.

Shown to fail: the faults of ``protocol.py`` in docs/decisions/0341-an-api-before-the-chip.md.
"""

import json
import re
from pathlib import Path

import pytest

from senbazuru.serve import protocol
from senbazuru.serve.protocol import Answer, ApiError, Chat, Completion, Usage

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "serve.md"
TURN = {"role": "user", "content": "Hi"}


def parsed(kind, **fields):
    first = {"prompt": "a"} if kind is Completion else {"messages": [TURN]}
    return protocol.parse(kind, json.dumps({"model": "m", **first, **fields}).encode())


def refused(kind, **fields):
    with pytest.raises(ApiError) as caught:
        parsed(kind, **fields)
    assert caught.value.status == 400
    error = caught.value.body["error"]
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    return error["param"], error["code"]


BOTH = {
    "max_tokens": (1, 4096), "temperature": (0, 0.5, 2), "top_k": (1, 64), "seed": (0, 2**32 - 1),
    "stop": ("a", ["a", "b", "c", "d"], []), "stream": (True, False), "user": ("u",),
    "metadata": ({"a": "b"},), "service_tier": ("auto", "default"), "top_p": (1, 1.0), "n": (1,),
    "frequency_penalty": (0, 0.0), "presence_penalty": (0,), "logit_bias": ({},),
}  # fmt: skip
TAKEN = {
    Completion: BOTH | {
        "prompt": ("", "a", [1, 2], ["a"], [[1, 2]]), "best_of": (1,), "echo": (False,),
        "logprobs": (), "suffix": (),
    },
    Chat: BOTH | {
        "max_completion_tokens": (5,), "prompt_cache_key": ("k",), "safety_identifier": ("s",),
        "store": (False,), "logprobs": (False,), "top_logprobs": (0,),
        "response_format": ({"type": "text"},), "modalities": (["text"],), "tools": ([],),
        "tool_choice": ("none",), "functions": ([],), "function_call": ("none",),
        "parallel_tool_calls": (False,),
        "messages": ([TURN], [{"role": "user", "content": [{"type": "text", "text": "a"}]}]),
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", [Completion, Chat])
def test_fields_that_are_taken(kind):
    for name, values in TAKEN[kind].items():
        for value in (*values, *([] if name in ("prompt", "messages") else [None])):
            parsed(kind, **{name: value})
    assert {*TAKEN[kind], "model", "stream_options"} == set(kind.model_fields)
    assert parsed(kind, stream=True, stream_options={"include_usage": True}).includes_usage


def test_what_is_read():
    assert parsed(Completion, stop="a").stop == ["a"]
    assert parsed(Completion).stop == []
    assert parsed(Completion, prompt=[[3, 4]]).prompt == [3, 4]
    assert parsed(Completion, prompt=["x"]).prompt == "x"
    assert parsed(Completion, max_tokens=3).most == 3
    assert parsed(Chat, max_completion_tokens=4, max_tokens=9).most == 4
    assert parsed(Chat, max_tokens=9).most == 9
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert parsed(Chat, messages=[{"role": "user", "content": parts}]).messages[0].words == "ab"


WRONG = {
    "model": (None, 1, ["m"]), "max_tokens": (0, -1, "5", 1.5, True, [1]), "top_k": (0, -1, "4"),
    "temperature": (-0.1, 2.1, "1", True, [1]), "seed": (-1, 2**32, 1.5, "1", True),
    "stop": (5, [1], "", ["a", ""], list("abcde"), "x" * 257, {}), "stream": ("true", 1),
    "user": (5,), "metadata": ([], {"a": 1}), "stream_options": ({"include_usage": 1}, True),
}  # fmt: skip
UNSUPPORTED = {
    "top_p": (0.9, 0, True, "1"), "n": (2, 0, True, 1.5), "frequency_penalty": (0.5, False),
    "presence_penalty": (-1,), "logit_bias": ({"5": 1},), "service_tier": ("flex",),
}  # fmt: skip
OF_KIND = {
    Completion: {
        "best_of": (2,), "echo": (True, 0), "logprobs": (0, 5, False), "suffix": ("", "x"),
    },
    Chat: {
        "store": (True,), "logprobs": (True, 0), "top_logprobs": (3,), "tools": ([{}],),
        "response_format": ({"type": "json_object"},), "modalities": (["audio"],),
        "tool_choice": ("auto",), "functions": ([{}],), "function_call": ("auto",),
        "parallel_tool_calls": (True,),
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", [Completion, Chat])
def test_fields_that_are_refused(kind):
    for name, values in WRONG.items():
        for value in values:
            assert refused(kind, **{name: value}) == (name, "invalid_value")
    for name, values in (UNSUPPORTED | OF_KIND[kind]).items():
        for value in values:
            assert refused(kind, **{name: value}) == (name, "unsupported_value")
    for name in ("min_p", "best_off", "x" * 5000):
        assert refused(kind, **{name: None}) == (name[:100], "unknown_parameter")
    assert refused(kind, stream_options={"include_usage": True}) == (
        "stream_options", "invalid_value",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("prompt", "code"),
    [(5, "invalid_value"), (None, "invalid_value"), ({}, "invalid_value"),
     ([1, 2.5], "invalid_value"), ([True], "invalid_value"), ([[1], [2]], "unsupported_value"),
     (["a", "b"], "unsupported_value"), ([1, "a"], "unsupported_value")],
)  # fmt: skip
def test_prompts_that_are_refused(prompt, code):
    assert refused(Completion, prompt=prompt) == ("prompt", code)


@pytest.mark.parametrize(
    "messages",
    [None, "Hi", [], ["Hi"], [{"role": "user"}], [{"role": "tool", "content": "a"}],
     [TURN | {"name": "x"}], [TURN | {"content": 5}], [TURN | {"content": [{"type": "text"}]}],
     [TURN | {"content": [{"type": "image_url", "image_url": {"url": "x"}}]}], [TURN] * 1025],
)  # fmt: skip
def test_messages_that_are_refused(messages):
    assert refused(Chat, messages=messages)[0] == "messages"


@pytest.mark.parametrize(
    "body",
    [b"", b"hello", b"[]", b'"a"', b"{", b"[" * 100_000, b'{"model": NaN}', b"\xff", b"null",
     b'{"model": "\\ud800"}'],
)  # fmt: skip
@pytest.mark.parametrize("kind", [Completion, Chat])
def test_bodies_that_are_no_objects(kind, body):
    with pytest.raises(ApiError) as caught:
        protocol.parse(kind, body)
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")


def test_a_missing_field_is_named():
    for kind, name in ((Completion, "prompt"), (Chat, "messages")):
        with pytest.raises(ApiError) as caught:
            protocol.parse(kind, b'{"model": "m"}')
        assert (caught.value.param, caught.value.code) == (name, "missing_required_parameter")


def test_kinds_of_errors():
    kinds = {400: "invalid_request_error", 404: "not_found_error", 413: "invalid_request_error",
             429: "rate_limit_error", 500: "server_error", 503: "server_error"}  # fmt: skip
    for status, kind in kinds.items():
        assert ApiError(status, "why").body == {
            "error": {"message": "why", "type": kind, "param": None, "code": None}
        }
    assert ApiError(429, "why", retry_after=3).headers == {"Retry-After": "3"}


@pytest.mark.parametrize("kind", [Completion, Chat])
def test_the_page_lists_every_field(kind):
    listed = set(re.findall(r"`(\w+)`", PAGE.read_text()))
    assert set(kind.model_fields) <= listed


def test_usage_of_a_stream():
    """A client that wants it gets null in each chunk, then a last one without choices."""
    answer = Answer("i", 1, "m", "f", is_chat=True, includes_usage=True)
    (first,), last = answer.begin(), answer.end("stop", Usage(3, 5))
    assert first["usage"] is None
    assert [each["choices"] for each in last[1:]] == [[]]
    assert last[-1]["usage"] == {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}
    assert last[0]["choices"][0]["finish_reason"] == "stop"
