"""Faults planted in the MMU, each of which the soak must find."""

import dataclasses
import sys
import unittest.mock

from hdl.paging.mmu import PagingMmu
from hdl.paging.mmu_channel import PagingMmuChannel
from hdl.paging.mmu_control import PagingMmuControl
from hdl.paging.mmu_reader import PagingMmuReader
from hdl.paging.mmu_writer import PagingMmuWriter
from hdl.paging.page_table import PagingPageTable
from senbazuru.runs.soak.run import soak_config
from tb.faults.plant import plant


@dataclasses.dataclass(frozen=True)
class Fault:
    """``old`` becomes ``new`` in a method of one part of the MMU."""

    meaning: str
    part: type
    method: str
    old: str
    new: str
    user: type = PagingMmu  # the part's parent: the MMU or a part of it

    def block(self) -> PagingMmu:
        return _faulty(self)(soak_config())


def _faulty(fault: Fault) -> type:
    part = plant(fault.part, fault.method, fault.old, fault.new)
    user = _with_part(fault.user, fault.part, part)
    return user if fault.user is PagingMmu else _with_part(PagingMmu, fault.user, user)


def _with_part(parent: type, part: type, other: type) -> type:
    """``parent`` with ``other`` wherever it makes a ``part``."""

    class Faulty(parent):
        def elaborate(self, platform):
            module = sys.modules[parent.__module__]
            with unittest.mock.patch.object(module, part.__name__, other):
                return super().elaborate(platform)

    return Faulty


FAULTS = {
    "abort_leaks": Fault(
        "an abort forgets the page of slot 0",
        PagingPageTable,
        "_abort",
        "with m.If(logged.taken): release(logged.page)",
        "with m.If(logged.taken & (slot != 0)):\n    release(logged.page)",
    ),
    "straddle_page": Fault(
        "the rest of a record that straddles goes to the page where it began",
        PagingMmuWriter,
        "_elaborate_write",
        "self.base + Mux(rest, answer.page2, answer.page) * page_bytes",
        "self.base + Mux(rest, answer.page, answer.page) * page_bytes",
    ),
    "write_error_lost": Fault(
        "only the last answer to an APPEND's writes counts",
        PagingMmuWriter,
        "_elaborate_answers",
        "m.d.sync += worst.eq(worst | port.done.p.resp)  # 2 | 3 is 3",
        "m.d.sync += worst.eq(port.done.p.resp)",
    ),
    "early_commit": Fault(
        "COMMIT does not wait for the answers to the writes",
        PagingMmuWriter,
        "_end",
        "with m.If((owed == 0) & ~verdicts.o.valid):",
        "with m.If(~verdicts.o.valid):",
    ),
    "trim_too_many": Fault(
        "a trim releases a page whose last record still counts",
        PagingPageTable,
        "_trim_stream",
        "with m.If(info.first_token > command.token):",
        "with m.If(info.first_token > command.token + 1):",
    ),
    "free_not_spliced": Fault(
        "a chain goes back without the pages that were free before",
        PagingPageTable,
        "_free_stream",
        "put(chain, entry.last, free_head)",
        "put(chain, entry.first, free_head)",
    ),
    "free_in_haste": Fault(
        "FREE and TRIM do not wait for READs and APPENDs of their sequence",
        PagingMmuControl,
        "_start",
        "with m.Elif(~self.is_busy):",
        "with m.Elif(1):",
    ),
    "read_error_lost": Fault(
        "a READ's status knows the errors of its last transfer alone",
        PagingMmuChannel,
        "_elaborate_queue",
        "done.i.p.error.eq(total | self.o.p.error),",
        "done.i.p.error.eq(self.o.p.error),",
        PagingMmuReader,
    ),
}
