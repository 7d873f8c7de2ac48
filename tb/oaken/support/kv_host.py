"""Inside the simulator: what the benches of oaken_kv_engine expect of its o and its statuses."""

from collections import deque

from golden.paging.format import Op, Status
from hdl.paging.layouts import STATUS_LAYOUT

__all__ = ["Expected", "field", "response"]


def field(layout, word: int, name: str) -> int:
    """One field of a payload."""
    place = layout[name]
    return word >> place.offset & (1 << place.width) - 1


def response(faults, address: int) -> int:
    """What memory answers at ``address``, by the faults of a phase."""
    return max((resp for low, high, resp in faults if low <= address < high), default=0)


class Expected:
    """Statuses and words of ``o`` still to come, of some phases of tb.oaken.support.kv_script."""

    def __init__(self, config, phases):
        self.config = config
        self.statuses: dict[int, deque[int]] = {}
        self.o: deque[tuple[int, bool, bool]] = deque()
        self._is_marked = False  # some beat of the READ now on o had its error set
        for phase in phases:
            for request in phase["requests"]:
                self.statuses.setdefault(request["op"], deque()).append(request["status"])
                last = len(request["o"]) - 1
                self.o += [
                    (word, request["exact"], n == last) for n, word in enumerate(request["o"])
                ]

    def take_status(self, word: int) -> None:
        """Statuses of one op come in order, those of different ops in any."""
        op = field(STATUS_LAYOUT, word, "op")
        queue = self.statuses.get(op)
        assert queue, f"a status of op {op} that nobody waits for: {_status(word)}"
        expected = queue.popleft()
        assert word == expected, f"status {_status(word)}, golden {_status(expected)}"

    def take_o(self, word: int) -> None:
        """Every bit, but for a READ whose memory failed: its tag, last, and an error somewhere."""
        layout = self.config.o_layout
        assert self.o, f"a word of o that nobody waits for: {word:#x}"
        expected, is_exact, is_end = self.o.popleft()
        if is_exact:
            assert word == expected, f"o: {word:#x}, golden {expected:#x}, {len(self.o)} to come"
            return
        for name in ("tag", "last"):
            assert field(layout, word, name) == field(layout, expected, name), name
        self._is_marked |= bool(field(layout, word, "error"))
        if is_end:
            assert self._is_marked, "a READ without sound memory has no error on o"
            self._is_marked = False

    @property
    def is_empty(self) -> bool:
        return not self.o and not any(self.statuses.values())


def _status(word: int) -> str:
    fields = {name: field(STATUS_LAYOUT, word, name) for name, _ in STATUS_LAYOUT}
    name = Status(fields["status"]).name if fields["status"] in list(Status) else "?"
    op = Op(fields["op"]).name if fields["op"] in list(Op) else fields["op"]
    return f"{op} {name} (tag {fields['tag']}, sequence {fields['sequence']})"
