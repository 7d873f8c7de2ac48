"""Ports of a simulated block as integers, at a fraction of the time of cocotb's handles."""

_AT_ONCE = 3  # cocotb's NO_DELAY: vpi_put_value with vpiNoDelay


class Signal:
    """A port: get() and put(), or ``value``.

    ``put`` writes at once. A handle collects writes for one more phase of the step, and makes an
    array of characters of each value. Verilator knows no X, so that an integer says all.
    """

    __slots__ = ("_format", "_handle", "_mask", "get", "put", "width")

    def __init__(self, handle):
        self._handle = handle._handle
        self.width = len(handle)
        self._mask = (1 << self.width) - 1
        self._format = f"0{self.width}b"
        narrow = self.width <= 32
        self.get = self._get_narrow if narrow else self._get_wide
        self.put = self._put_narrow if self.width < 32 else self._put_wide

    value = property(lambda self: self.get(), lambda self, value: self.put(int(value)))

    def __len__(self) -> int:
        return self.width

    def _get_narrow(self) -> int:
        return self._handle.get_signal_val_long() & self._mask

    def _get_wide(self) -> int:
        return int(self._handle.get_signal_val_binstr(), 2)

    def _put_narrow(self, value: int) -> None:
        if not 0 <= value <= self._mask:
            raise ValueError(f"a port of {self.width} bits must be 0..{self._mask}, not {value}")
        self._handle.set_signal_val_int(_AT_ONCE, value)

    def _put_wide(self, value: int) -> None:
        if not 0 <= value <= self._mask:
            raise ValueError(f"a port of {self.width} bits must be 0..{self._mask}, not {value}")
        self._handle.set_signal_val_binstr(_AT_ONCE, format(value, self._format))


def stream_port(dut, name: str) -> tuple[Signal, Signal, Signal]:
    """Payload, valid and ready of the stream ``name``."""
    payload, valid, ready = (dut[f"{name}__{field}"] for field in ("payload", "valid", "ready"))
    return Signal(payload), Signal(valid), Signal(ready)
