"""Faults planted in the MMU, each of which the soak must find."""

import dataclasses
import sys
import unittest.mock

from hdl.block import Block
from hdl.paging.mmu import PagingMmu
from hdl.paging.mmu_channel import PagingMmuChannel
from hdl.paging.mmu_control import PagingMmuControl
from hdl.paging.mmu_copier import PagingMmuCopier
from hdl.paging.mmu_reader import PagingMmuReader
from hdl.paging.mmu_writer import PagingMmuWriter
from hdl.paging.page_forks import Forks
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
    forks: bool = True  # the MMU has forks

    def block(self) -> PagingMmu:
        return _faulty(self)(soak_config(self.forks))


def _faulty(fault: Fault) -> type:
    part = plant(fault.part, fault.method, fault.old, fault.new)
    if fault.part is PagingMmu:
        return part
    user = _with_part(fault.user, fault.part, part)
    return user if fault.user is PagingMmu else _with_part(PagingMmu, fault.user, user)


def _with_part(parent: type, part: type, other: type) -> type:
    """``parent`` with ``other`` wherever it makes a ``part``."""

    class Faulty(parent):
        def elaborate(self, platform):
            # ``Forks`` is made where it is defined.
            name = parent.__module__ if issubclass(part, Block) else part.__module__
            with unittest.mock.patch.object(sys.modules[name], part.__name__, other):
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
        forks=False,
    ),
    "free_in_haste": Fault(
        "FREE, TRIM and FORK do not wait for READs and APPENDs of their sequence",
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
    "last_but_one": Fault(
        "a page goes back while one other sequence has it",
        Forks,
        "let_go",
        "with m.If(others == 0):",
        "with m.If(others < 2):",
        PagingPageTable,
    ),
    "never_back": Fault(
        "a page that was shared never goes back",
        Forks,
        "let_go",
        "t.put(t.rams.sharers, page, others - 1)",
        "t.put(t.rams.sharers, page, others)",
        PagingPageTable,
    ),
    "one_not_counted": Fault(
        "the last page that a child shares is not counted",
        Forks,
        "fork_stream",
        "with m.If(self.to_share != 0):",
        "with m.If(self.to_share > 1):",
        PagingPageTable,
    ),
    "partial_shared": Fault(
        "a page that is not full is shared too",
        Forks,
        "fork_stream",
        "self.to_share.eq(entry.pages - is_partial),",
        "self.to_share.eq(entry.pages),",
        PagingPageTable,
    ),
    "parents_link": Fault(
        "a child changes the link that its parent follows",
        Forks,
        "commit",
        "return (entry.pages != 0) & ~is_at_tip",
        "return entry.pages != 0",
        PagingPageTable,
    ),
    "no_tip": Fault(
        "a child follows the parent's link after the last page in common",
        Forks,
        "follower",
        "return Mux(entry.has_tip & (page == entry.tip), entry.own, link)",
        "return link",
        PagingPageTable,
    ),
    "child_forever": Fault(
        "OPEN gives a sequence that was a child before, and is one still",
        PagingPageTable,
        "_decode_sequence",
        "m.d.sync += t.forks.children[lowest].eq(0)",
        "pass",
    ),
    "fork_not_undone": Fault(
        "a child stays after its FORK has failed",
        PagingMmuControl,
        "_fork",
        "m.d.sync += [work.op.eq(PageOp.CLOSE), fork.is_undone.eq(1)]",
        "m.next = 'STATUS'",
    ),
    "fork_unsettled": Fault(
        "a FORK does not wait for its copies",
        PagingMmuControl,
        "_fork",
        "with m.If(self.is_copied):",
        "with m.If(1):",
    ),
    "copy_read_error_lost": Fault(
        "a FORK's status knows no errors of the reads of its copies",
        PagingMmuCopier,
        "_elaborate_end",
        "worst.eq((worst | read | written) & (~self.forget).replicate(2)),",
        "worst.eq((worst | written) & (~self.forget).replicate(2)),",
    ),
    "copy_error_kept": Fault(
        "a FORK's status has errors of the FORK before",
        PagingMmuCopier,
        "_elaborate_end",
        "worst.eq((worst | read | written) & (~self.forget).replicate(2)),",
        "worst.eq(worst | read | written),",
    ),
    "copy_to_source": Fault(
        "a copy is written over the page that it is of",
        PagingMmuCopier,
        "elaborate",
        "self.command.p.address.eq(self.base + target.target * self.config.channel.page_bytes),",
        "self.command.p.address.eq(self.base + target.source * self.config.channel.page_bytes),",
    ),
    "parent_goes_on": Fault(
        "READs and APPENDs of a parent do not wait for its FORK",
        PagingMmu,
        "_elaborate_targets",
        "ring.is_live.eq(is_good & (op != Op.FREE)),",
        "ring.is_live.eq(is_good & (op != Op.FREE) & (op != Op.FORK)),",
    ),
}
