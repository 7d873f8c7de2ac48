"""The o and the statuses that benches of oaken_kv_engine expect of it, inside the simulator."""

from collections import deque

from golden.paging.format import Op, Status
from golden.words import layout_field
from hdl.paging.layouts import STATUS_LAYOUT
from tb.paging.support.statuses import StatusesToCome


class Expected:
    """Statuses and words of ``o`` to come of some phases of golden.oaken.vectors.kv_script."""

    def __init__(self, config, phases):
        self.config = config
        requests = [request for phase in phases for request in phase["requests"]]
        self.statuses = StatusesToCome(requests, STATUS_LAYOUT, Op, Status)
        self.o: deque[tuple[int, bool, bool]] = deque()
        self._is_marked = False  # some beat of the READ now on o had its error set
        for request in requests:
            last = len(request["o"]) - 1
            self.o += [(word, request["exact"], n == last) for n, word in enumerate(request["o"])]

    def take_o(self, word: int) -> None:
        """Every bit, but for a READ whose memory failed: its tag, last, and an error somewhere."""
        layout = self.config.o_layout
        assert self.o, f"a word of o that nobody waits for: {word:#x}"
        expected, is_exact, is_end = self.o.popleft()
        if is_exact:
            assert word == expected, f"o: {word:#x}, golden {expected:#x}, {len(self.o)} to come"
            return
        for name in ("tag", "last"):
            assert layout_field(layout, word, name) == layout_field(layout, expected, name), name
        self._is_marked |= bool(layout_field(layout, word, "error"))
        if is_end:
            assert self._is_marked, "a READ without sound memory has no error on o"
            self._is_marked = False

    @property
    def is_empty(self) -> bool:
        return not self.o and self.statuses.is_empty
