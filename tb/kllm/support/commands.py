"""Commands as an engine's ``command`` stream carries them, and rows of the vector memory."""

from golden.kllm.isa import FIRST_OPERAND_WORD
from tb.words import join

__all__ = ["command_payload", "row_of"]


def command_payload(words) -> int:
    """The opcode and the operand words of a command of golden.kllm.isa."""
    return join((words[0] & 0xFF, 8), *((word, 32) for word in words[FIRST_OPERAND_WORD:]))


def row_of(words) -> int:
    """A row of FP16 words as one integer; ValueError: a word beyond 16 bits."""
    return join(*((word, 16) for word in words))
