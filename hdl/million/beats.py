"""Beats of several keys: which slots and codes count."""

from amaranth import Const
from amaranth.hdl import Value

from hdl.bits import any_of


def is_dead(slot: int, final: Value, last_slot: Value) -> Value:
    """Whether a slot of a beat lies beyond the keys of the job; the first never does."""
    return final & (last_slot < slot) if slot else Const(0, 1)


def any_beyond(codes, entries: Value) -> Value:
    """Whether a code of a key lies beyond the entries."""
    return any_of(code >= entries for code in codes)
