"""Commands as an engine's ``command`` stream carries them, and rows of the vector memory."""

from golden.kllm.isa import FIRST_OPERAND_WORD, Codebook, CommandStatus, MatmulMode
from golden.words import join


def command_payload(words) -> int:
    """The opcode and the operand words of a command of golden.kllm.isa."""
    return join((words[0] & 0xFF, 8), *((word, 32) for word in words[FIRST_OPERAND_WORD:]))


def row_of(words) -> int:
    """A row of FP16 words as one integer; ValueError: a word beyond 16 bits."""
    return join(*((word, 16) for word in words))


def weights_requested(fault: int, mode: int, bad: Codebook | None) -> tuple[bool, bool]:
    """Whether a MATMUL of golden's status ``fault`` requests weights, and whether for nothing.

    bad: the kind of the latest packet, if a word of it was bad. A MATMUL of that kind requests its
    weights before the end of the packet shows the word. BUS_ERROR: of a machine without weights.
    """
    needed = Codebook.INTEGER if mode == MatmulMode.INTEGER else Codebook.KMEANS
    late = fault == CommandStatus.CODEBOOK_MISSING and bad == needed
    known = fault in (0, CommandStatus.BUS_ERROR, CommandStatus.SLOT_MISMATCH)
    return late or known, late
