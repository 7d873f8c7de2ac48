"""Tokens as text: pieces that end between characters, stop strings, and chats as prompts."""

import dataclasses
from collections.abc import Callable, Collection, Sequence

Decode = Callable[[Sequence[int]], str]

_DAMAGED = "\N{REPLACEMENT CHARACTER}"
_OPEN_BYTES = 3  # of a character that is not complete


class Until:
    """Text up to the first of some strings, whatever pieces it comes in.

    The first one is the one that is complete first. Of several that end with the same character,
    it is the longest.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """stops: none is empty."""
        self._stops = sorted(stops, key=len, reverse=True)
        self._held = ""  # the beginning of a stop, perhaps
        self.is_over = False

    def add(self, piece: str) -> str:
        """The text that belongs to no stop, whatever follows."""
        if self.is_over:
            return ""
        for character in piece:
            self._held += character
            for stop in self._stops:
                if self._held.endswith(stop):
                    self.is_over = True
                    return self._take(len(self._held) - len(stop))
        return self._take(len(self._held) - self._open())

    def end(self) -> str:
        """The remaining text, as nothing follows."""
        return "" if self.is_over else self._take(len(self._held))

    def _take(self, count: int) -> str:
        taken, self._held = self._held[:count], self._held[count:]
        return taken

    def _open(self) -> int:
        """Characters at the end that may be the beginning of a stop."""
        counts = [
            count
            for stop in self._stops
            for count in range(1, min(len(self._held), len(stop) - 1) + 1)
            if self._held.endswith(stop[:count])
        ]
        return max(counts, default=0)


class Written:
    """The text of chosen tokens while they come: all pieces together are that of all tokens."""

    def __init__(
        self, decode: Decode, stops: Sequence[str] = (), ends: Collection[int] = ()
    ) -> None:
        """ends: tokens that end a text, and have none."""
        self._decode, self._ends = decode, ends
        self._until = Until(stops)
        self._tokens: list[int] = []
        self._text = ""  # of the tokens, without characters that are not complete

    @property
    def is_stopped(self) -> bool:
        """Whether a stop string has come."""
        return self._until.is_over

    def add(self, token: int) -> str:
        """The text that is certain after one more token."""
        if token in self._ends:
            return ""
        self._tokens.append(token)
        text = self._decode(self._tokens)
        return self._until.add(self._new(_settled(text)))

    def end(self) -> str:
        """The remaining text, as no token follows."""
        return self._until.add(self._new(self._decode(self._tokens))) + self._until.end()

    def _new(self, text: str) -> str:
        # A decoder may change its last characters, such as those of a byte that has no meaning.
        if not text.startswith(self._text):
            return ""
        new, self._text = text[len(self._text) :], text
        return new


def _settled(text: str) -> str:
    """The text without what the bytes of the next token may change."""
    for _ in range(_OPEN_BYTES):
        text = text.removesuffix(_DAMAGED)
    return text


class ChatError(ValueError):
    """A conversation that the model has no form for; one line."""


_ROLE, _END = "<|im_start|>", "<|im_end|>\n"
_USER, _ASSISTANT = f"{_ROLE}user\n", f"{_END}{_ROLE}assistant\n"


@dataclasses.dataclass(frozen=True)
class Chat:
    """The form of a model's conversations, from what a packed image has of its template.

    around : text before and after a user's words; None: the model has no template

    A template of the form ChatML takes any conversation, any other one only a user's words. A model
    without a template gets lines such as "user: Hello", and "assistant:" at the end.
    """

    around: tuple[str, str] | None

    @classmethod
    def of(cls, around: Sequence[str] | None) -> "Chat":
        return cls((around[0], around[1]) if around else None)

    def prompt(self, messages: Sequence[tuple[str, str]]) -> str:
        """messages: role and words of each. ChatError: there is no form for them."""
        if self.around is None:
            lines = [f"{role}: {words}\n" for role, words in messages]
            return "".join([*lines, "assistant:"])
        before, after = self.around
        if before.endswith(_USER) and after == _ASSISTANT:
            start = "" if messages[0][0] == "system" else before.removesuffix(_USER)
            turns = [f"{_ROLE}{role}\n{words}{_END}" for role, words in messages]
            return "".join([start, *turns, f"{_ROLE}assistant\n"])
        if [role for role, _ in messages] != ["user"]:
            raise ChatError("the template of this model takes one message, of the role user")
        return before + messages[0][1] + after
