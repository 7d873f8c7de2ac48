"""The checks of the matmul engine before a command runs, and the work that it then starts."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Protocol

from golden.kllm.collect import Ticket
from golden.kllm.config import MachineConfig
from golden.kllm.format import beats, groups, packet_fits
from golden.kllm.isa import Codebook, CommandStatus, MatmulMode, row_count
from golden.kllm.walks import MatmulWork, RowWork

_NO_FAULT = CommandStatus(0)


class SlotLike(Protocol):
    """The fields of a slot that the checks read."""

    @property
    def length(self) -> int: ...

    @property
    def integer(self) -> bool: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Issued:
    """A MATMUL that runs: a job of the weight supply, a ticket, and the work of the walks.

    supply : address, beats, groups, tokens, fold
    rows : words of the tokens, for DIRECT; else None
    """

    supply: dict[str, int]
    ticket: Ticket
    work: MatmulWork
    rows: RowWork | None


def codebook_rows(config: MachineConfig, src: int, kind: int) -> RowWork:
    """The rows of a packet of LANE_CODEBOOK."""
    words = config.kmeans_words if kind == Codebook.KMEANS else config.integer_words
    return RowWork(src=src, stride=0, groups=1, tokens=1, rows=row_count(words), words=words)


def codebook_fault(config: MachineConfig, rows: RowWork, words: Sequence[int]) -> CommandStatus:
    """RANGE: the packet ends outside the vector memory, or a word of it is above 1."""
    if rows.src + rows.rows > config.vector_rows:
        return CommandStatus.RANGE
    fits = packet_fits(words, config.bits_a, config.packet_bits_b, config.product)
    return CommandStatus(0) if fits else CommandStatus.RANGE


def is_outside(config: MachineConfig, o: Mapping[str, int]) -> bool:
    """Whether some operand of a MATMUL is out of range."""
    mode, tokens, length = o["mode"], o["tokens"], o["length"]
    direct = mode == MatmulMode.DIRECT
    longest = min(config.slot_elements, config.outliers_max if direct else config.slot_elements)

    def is_beyond(row: int, stride: int, elements: int) -> bool:
        return row + stride * (tokens - 1) + row_count(elements) > config.vector_rows

    if mode not in tuple(MatmulMode) or not tokens or not 1 <= length <= longest:
        return True
    if o["based"] and not config.experts:
        return True
    if not o["outputs"] or is_beyond(o["dst"], o["stride"], o["outputs"]):
        return True
    if tokens > 1 and beats(length, config.elements) > config.replay_beats:
        return True
    if direct:
        return bool(o["fold_norm"]) or is_beyond(o["src"], o["src_stride"], length)
    return o["slot"] + tokens > config.slots


def matmul_fault(
    config: MachineConfig,
    o: Mapping[str, int],
    loaded: Codebook | None,
    slots: Sequence[SlotLike | None],
) -> CommandStatus:
    """The first fault of a MATMUL that does not lie in its data.

    o: the operands; loaded: the kind of codebook that the lanes hold. The engine requests the
    weights before it looks for SLOT_MISMATCH (``issue``). After a packet of the needed kind with a
    bad word, it does so before CODEBOOK_MISSING too.
    """
    if is_outside(config, o):
        return CommandStatus.RANGE
    mode, tokens, length = o["mode"], o["tokens"], o["length"]
    integer = mode == MatmulMode.INTEGER
    needed = Codebook.INTEGER if integer else Codebook.KMEANS
    if loaded != needed:
        return CommandStatus.CODEBOOK_MISSING
    if mode != MatmulMode.DIRECT:
        for slot in slots[o["slot"] : o["slot"] + tokens]:
            if slot is None or slot.length != length or bool(slot.integer) != integer:
                return CommandStatus.SLOT_MISMATCH
    return CommandStatus(0)


def weight_address(o: Mapping[str, int], base: int) -> int:
    """First word of the weights of a MATMUL, modulo 2**32; base: that of WEIGHT_BASE."""
    return (o["weights"] + base * o["based"]) % (1 << 32)


def base_rows(src: int) -> RowWork:
    """The row of WEIGHT_BASE."""
    return RowWork(src=src, stride=0, groups=1, tokens=1, rows=1, words=2)


def issue(
    config: MachineConfig, o: Mapping[str, int], fault: CommandStatus = _NO_FAULT, base: int = 0
) -> Issued:
    """Gives the work that a MATMUL starts; base: that of WEIGHT_BASE.

    fault: SLOT_MISMATCH, ABORTED or CODEBOOK_MISSING of one that ends after its weights were
    requested. Its ticket and its work are void.
    """
    void = int(bool(fault))
    direct = o["mode"] == MatmulMode.DIRECT
    sizes = {"groups": groups(o["outputs"], config.group_outputs), "tokens": o["tokens"]}
    count, rows = beats(o["length"], config.elements), row_count(o["length"])
    read = None
    if direct and not void:
        read = RowWork(src=o["src"], stride=o["src_stride"], rows=rows, words=o["length"], **sizes)
    return Issued(
        supply={
            "address": weight_address(o, base), "beats": count, "fold": o["fold_norm"], **sizes
        },
        ticket=Ticket(
            fault=int(fault), dst=o["dst"], stride=o["stride"], outputs=o["outputs"], void=void,
            **sizes,
        ),
        work=MatmulWork(
            slot=o["slot"], length=o["length"], rows=rows, beats=count, direct=int(direct),
            integer=int(o["mode"] == MatmulMode.INTEGER), void=void, **sizes,
        ),
        rows=read,
    )  # fmt: skip
