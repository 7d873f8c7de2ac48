"""Inside the simulator: what the benches of million_attention expect of its outputs."""

from collections import deque

from golden.million.format import Op, Status
from hdl.million.layouts import STATUS_LAYOUT
from tb.paging.support.statuses import StatusesToCome

__all__ = ["Expected"]


class Expected:
    """Statuses and words of ``o`` still to come of a phase of tb.million.support.script."""

    def __init__(self, phase):
        self.o = deque(phase["o"])
        self.statuses = StatusesToCome(phase["requests"], STATUS_LAYOUT, Op, Status)

    def take(self, flow) -> None:
        """The words of a run."""
        for word in flow.words["status"]:
            self.statuses.take(word)
        for word in flow.words["o"]:
            self.take_o(word)

    def take_o(self, word: int) -> None:
        assert self.o, f"a word of o that nobody waits for: {word:#x}"
        expected = self.o.popleft()
        assert word == expected, f"o: {word:#x}, golden {expected:#x}, {len(self.o)} to come"

    @property
    def is_empty(self) -> bool:
        return not self.o and self.statuses.is_empty
