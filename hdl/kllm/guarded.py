"""Requests of an engine, past a guard."""

from amaranth import Module

from hdl.children import add
from hdl.kllm.row_guard import KllmRowGuard, KllmRowGuardConfig
from hdl.stream.link import link


def guarded(m: Module, name: str, request, front, writes: bool = False):
    """The stream of ``request``, of which requests for rows of ``front`` wait.

    writes: requests to write a row, not to read it
    """
    guard = add(m, name, KllmRowGuard(KllmRowGuardConfig(writes=writes)))
    m.d.comb += guard.front.eq(front)
    link(m, request, guard.i)
    return guard.o
