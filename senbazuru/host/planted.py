"""Faults planted in the whole chip, each of which ``owners.Owners`` must find.

A fault changes the text of one method of one block. The blocks around it are made anew, so that no
module of the right chip is taken in its place.
"""

import dataclasses
import sys
import unittest.mock
from collections.abc import Callable
from typing import Any

from hdl.block import Block
from hdl.kllm.accelerator import KllmAccelerator, KllmAcceleratorConfig
from hdl.oaken.attention import OakenAttention
from hdl.oaken.attention_reads import OakenAttentionReads
from hdl.oaken.kv_engine import OakenKvEngine
from hdl.paging.mmu import PagingMmu
from hdl.paging.mmu_writer import PagingMmuWriter
from hdl.paging.page_forks import Forks
from hdl.paging.page_table import PagingPageTable
from tb.faults.plant import plant

_ATTENTION: tuple[type[Block], ...] = (KllmAccelerator, OakenAttention)
_PAGES = (*_ATTENTION, OakenKvEngine, PagingMmu)


@dataclasses.dataclass(frozen=True)
class Planted:
    """``old`` becomes ``new`` in a method of ``part``; users: who has it, the accelerator first."""

    meaning: str
    users: tuple[type[Block], ...]
    part: type[Any]  # a block; or ``Forks``, which is made where it is defined
    method: str
    old: str
    new: str

    def accelerator(self) -> Callable[[KllmAcceleratorConfig], Block]:
        made: Any = plant(self.part, self.method, self.old, self.new)
        part: type[Any] = self.part
        for user in reversed(self.users):
            made, part = _with_part(user, part, made), user
        return made


def _with_part(user: type[Any], part: type[Any], other: type[Any]) -> Any:
    """``user`` with ``other`` wherever it makes a ``part``."""

    def elaborate(self: Any, platform: Any) -> Any:
        name = user.__module__ if issubclass(part, Block) else part.__module__
        with unittest.mock.patch.object(sys.modules[name], part.__name__, other):
            return user.elaborate(self, platform)

    return type(f"Faulty{user.__name__}", (user,), {"elaborate": elaborate})


PLANTED = {
    "rest": Planted(
        "the rest of a record goes to the page where it began",
        _PAGES, PagingMmuWriter, "_elaborate_write",
        "self.base + Mux(rest, answer.page2, answer.page) * page_bytes",
        "self.base + Mux(rest, answer.page, answer.page) * page_bytes",
    ),
    "sequence": Planted(
        "V is read of the sequence whose K is read next",
        _ATTENTION, OakenAttentionReads, "_ask",
        "*(request.p[name].eq(Mux(of_value, waiting[name], now[name])) for name in _JOB.members),",
        "*(request.p[name].eq(Mux(of_value, (now if name == 'sequence' else waiting)[name], "
        "now[name])) for name in _JOB.members),",
    ),
}  # fmt: skip

PLANTED_FORKS = {
    "tip": Planted(
        "a child follows the parent's link after the last page in common",
        (*_PAGES, PagingPageTable), Forks, "follower",
        "return Mux(entry.has_tip & (page == entry.tip), entry.own, link)",
        "return link",
    ),
}  # fmt: skip
