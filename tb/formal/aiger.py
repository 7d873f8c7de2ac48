"""Binary AIGER files with inputs made constant."""


class Aiger:
    """An and-inverter graph in AIGER's binary format, version 1.9.

    Source: Biere, Heljanko, Wieringa, AIGER 1.9 And Beyond, 2011.
    """

    def __init__(self, text: bytes):
        head, at = self._line(text, 0)
        fields = head.split()
        if fields[0] != b"aig":
            raise ValueError("not a binary AIGER file")
        self.counts = [int(field) for field in fields[1:]]
        _, inputs, latches, outputs, ands, *more = self.counts
        self.inputs = inputs
        self.constraints = more[1] if len(more) > 1 else 0
        rows = []
        for _ in range(latches + outputs + sum(more)):
            row, at = self._line(text, at)
            rows.append([int(word) for word in row.split()])
        self.latches, self.outputs = rows[:latches], rows[latches:]
        if any(more[2:]):
            raise ValueError("justice and fairness are not supported")
        self.ands = []
        for k in range(ands):
            left = 2 * (inputs + latches + 1 + k)
            delta, at = self._number(text, at)
            first = left - delta
            delta, at = self._number(text, at)
            self.ands.append((first, first - delta))

    def substitute(self, constants: dict[int, int]) -> bytes:
        """The same graph with ``constants`` in place of some inputs, which stay but are unused."""
        value = {2 * (index + 1): bit for index, bit in constants.items()}

        def literal(number: int) -> int:
            bit = value.get(number & ~1)
            return number if bit is None else bit ^ (number & 1)

        lines = ["aig " + " ".join(map(str, self.counts))]
        for row in self.latches:
            # A latch's own number as its initial value means any value: it is never replaced.
            lines.append(" ".join(map(str, [literal(row[0]), *row[1:]])))
        lines += [str(literal(row[0])) for row in self.outputs]
        out = bytearray(("\n".join(lines) + "\n").encode())
        base = 2 * (self.inputs + len(self.latches) + 1)
        for k, pair in enumerate(self.ands):
            first, second = sorted(map(literal, pair), reverse=True)
            for delta in (base + 2 * k - first, first - second):
                while delta >= 128:
                    out.append(delta & 127 | 128)
                    delta >>= 7
                out.append(delta)
        return bytes(out)

    @staticmethod
    def _line(text: bytes, at: int) -> tuple[bytes, int]:
        end = text.index(b"\n", at)
        return text[at:end], end + 1

    @staticmethod
    def _number(text: bytes, at: int) -> tuple[int, int]:
        number, shift = 0, 0
        while True:
            byte = text[at]
            at += 1
            number |= (byte & 127) << shift
            if byte < 128:
                return number, at
            shift += 7
