"""Text of tokens in pieces, stop strings and chats, next to plain functions of the whole text.

Shown to fail: the faults of ``text.py`` in docs/decisions/0341-an-api-before-the-chip.md.
"""

import random

import pytest

from senbazuru.serve.text import Chat, ChatError, Until, Written
from tests.kllm import model_example as example

DAMAGED = "\N{REPLACEMENT CHARACTER}"
SPOKEN = "Zwölf Kraniche, 折り鶴 🕊️, fliegen…"


def decode(tokens):
    return bytes(tokens).decode(errors="replace")


def cut(text, stops):
    """The text before the stop that is complete first; the longest of several."""
    for end in range(len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end - max(map(len, found))]
    return text


def in_pieces(rng, text):
    places = sorted(rng.choices(range(len(text) + 1), k=rng.randrange(6)))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


def test_stops_are_found_across_pieces(seed):
    """Texts and stops of three letters, so that they begin and overlap often."""
    rng, found = random.Random(seed), 0
    for _ in range(3000):
        text = "".join(rng.choices("abc", k=rng.randrange(14)))
        stops = ["".join(rng.choices("abc", k=rng.randint(1, 4))) for _ in range(rng.randrange(4))]
        until = Until(stops)
        shown = [until.add(piece) for piece in in_pieces(rng, text)]
        wanted = cut(text, stops)
        assert wanted.startswith("".join(shown))
        assert "".join([*shown, until.end()]) == wanted
        assert until.is_over == (wanted != text)
        found += until.is_over
    assert found > 500


def test_nothing_waits_that_no_stop_begins_with():
    until = Until(["END.", "nd"])
    assert [until.add(each) for each in ("a E", "N", "x", "n")] == ["a ", "", "ENx", ""]
    assert until.add("d") == ""
    assert until.is_over
    assert until.add("more") == until.end() == ""


@pytest.mark.parametrize("tokenizer", [False, True], ids=["bytes", "tokenizers"])
def test_pieces_end_between_characters(tokenizer):
    written = Written(example.tokenizer().decode if tokenizer else decode)
    pieces = [written.add(byte) for byte in SPOKEN.encode()]
    assert "".join(pieces) == SPOKEN
    assert written.end() == ""
    assert all(len(piece) <= 1 for piece in pieces)
    assert DAMAGED not in "".join(pieces)


def test_bytes_that_are_no_character_come_too(seed):
    """Random bytes: all pieces together are the text of all tokens."""
    rng = random.Random(seed)
    for _ in range(300):
        tokens = [rng.choice([65, 0x80, 0xC3, 0xE2, 0xF0, 0x9F, 0xA4]) for _ in range(12)]
        written = Written(example.tokenizer().decode)
        shown = ""
        for count, token in enumerate(tokens, 1):
            shown += written.add(token)
            assert example.tokenizer().decode(tokens[:count]).startswith(shown)
        assert shown + written.end() == example.tokenizer().decode(tokens)


def test_an_end_has_no_text():
    written = Written(decode, ends=[7])
    assert [written.add(each) for each in (65, 7)] == ["A", ""]
    assert written.end() == ""
    assert not written.is_stopped


def test_a_stop_within_a_character_and_at_the_end():
    """The stop's last byte completes it. A text that ends before it is shown whole."""
    stopped, whole = (Written(decode, ["鶴!", "xx"]) for _ in range(2))
    given = "a 鶴!b".encode()
    assert "".join(stopped.add(byte) for byte in given) == "a "
    assert stopped.is_stopped
    assert "".join(whole.add(byte) for byte in "a 鶴".encode()) == "a "
    assert whole.end() == "鶴"


BEFORE = "<|im_start|>system\nBe kind<|im_end|>\n<|im_start|>user\n"
AFTER = "<|im_end|>\n<|im_start|>assistant\n"


def test_chats_of_chatml():
    chat = Chat.of([BEFORE, AFTER])
    assert chat.prompt([("user", "Hi")]) == f"{BEFORE}Hi{AFTER}"
    assert chat.prompt([("user", "Hi"), ("assistant", "Yes?"), ("user", "No")]) == (
        f"{BEFORE}Hi<|im_end|>\n<|im_start|>assistant\nYes?<|im_end|>\n<|im_start|>user\nNo{AFTER}"
    )
    assert chat.prompt([("system", "Be brief"), ("user", "Hi")]) == (
        f"<|im_start|>system\nBe brief<|im_end|>\n<|im_start|>user\nHi{AFTER}"
    )


def test_chats_are_those_of_the_checkpoint():
    """The template of SmolLM2 itself, which the image has two pieces of."""
    transformers = pytest.importorskip("transformers")
    from golden.llm.checkpoint import CheckpointError, smollm2_path
    from golden.llm.kllm.pack import _chat

    try:
        path = smollm2_path()
        tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    except (CheckpointError, OSError) as error:
        pytest.skip(f"no checkpoint: {error}")
    chat = Chat.of(_chat(tokenizer))
    talks = (
        [("user", "Fold a crane.")],
        [("system", "Be brief."), ("user", "Hi")],
        [("user", "Hi"), ("assistant", "Yes?"), ("user", "Fold.")],
    )
    for turns in talks:
        said = [{"role": role, "content": words} for role, words in turns]
        wanted = tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
        assert chat.prompt(turns) == wanted


def test_chats_of_other_templates():
    other = Chat.of(["[INST] ", " [/INST]"])
    assert other.prompt([("user", "Hi")]) == "[INST] Hi [/INST]"
    for turns in ([("system", "a"), ("user", "b")], [("assistant", "a")], [("user", "a")] * 2):
        with pytest.raises(ChatError, match="one message, of the role user"):
            other.prompt(turns)
    assert Chat.of(None).prompt([("user", "Hi")]) == "user: Hi\nassistant:"
