"""The statuses that an engine on the paged memory still has to give, inside the simulator."""

import enum
from collections import deque
from collections.abc import Iterable

from golden.words import layout_field


class StatusesToCome:
    """Those of one op come in order, those of different ops in any.

    requests: mappings with the ``op`` and the ``status`` word that must come; layout: of the word,
    with the fields tag, op, status and sequence; ops, statuses: the names of their values
    """

    def __init__(
        self,
        requests: Iterable,
        layout,
        ops: type[enum.IntEnum],
        statuses: type[enum.IntEnum],
    ):
        self.layout, self.ops, self.names = layout, ops, statuses
        self.waiting: dict[int, deque[int]] = {}
        for request in requests:
            self.waiting.setdefault(request["op"], deque()).append(request["status"])

    def take(self, word: int) -> None:
        waiting = self.waiting.get(layout_field(self.layout, word, "op"))
        assert waiting, f"a status that nobody waits for: {self.text(word)}"
        expected = waiting.popleft()
        assert word == expected, f"status {self.text(word)}, golden {self.text(expected)}"

    def text(self, word: int) -> str:
        fields = {name: layout_field(self.layout, word, name) for name, _ in self.layout}
        op, status = fields["op"], fields["status"]
        name = self.names(status).name if status in list(self.names) else "?"
        op = self.ops(op).name if op in list(self.ops) else op
        return f"{op} {name} (tag {fields['tag']}, sequence {fields['sequence']})"

    @property
    def is_empty(self) -> bool:
        return not any(self.waiting.values())
