"""Bytes of transfers from which a block reads some each cycle, from the oldest on."""

import dataclasses
from typing import Protocol

from amaranth import Module, Mux, Signal
from amaranth.hdl import Value

from hdl.bits import let


@dataclasses.dataclass(frozen=True)
class Window:
    """``level`` bytes of one transfer from byte 0 on, zeros above."""

    bytes: Signal
    level: Signal
    ended: Signal  # the transfer's last byte is there
    clean: Signal  # bytes from here on came with an error, if ``dirty``
    dirty: Signal

    @classmethod
    def of(cls, size: int) -> "Window":
        return cls(
            bytes=Signal(8 * size, name="window"),
            level=Signal(range(size + 1), name="level"),
            ended=Signal(name="ended"),
            clean=Signal(range(size + 1), name="clean"),
            dirty=Signal(name="dirty"),
        )


class Reading(Protocol):
    """The moves of a block in its window in this cycle."""

    read: Signal  # bytes that leave the window
    kept: Signal  # bytes that stay


def follow_errors(m: Module, window: Window, enters, move: Reading, done) -> Value:
    """Whether a byte read so far for this request came with an error.

    enters: a chunk with an error enters the window after the bytes that are kept.
    """
    error = Signal()
    touched = let(m, "touched", window.dirty & (move.read > window.clean))
    now_error = let(m, "now_error", error | touched)
    m.d.sync += [
        error.eq(now_error),
        window.clean.eq(Mux(move.read > window.clean, 0, window.clean - move.read)),
    ]
    with m.If(done):
        m.d.sync += [error.eq(0), window.dirty.eq(0)]
    with m.If(enters & (~window.dirty | done)):
        m.d.sync += [window.dirty.eq(1), window.clean.eq(move.kept)]
    return now_error
