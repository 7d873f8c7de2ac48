"""hdl.back.yosys: scripts that share a process give what a process of their own gives.

Shown to fail:

- a forked process that uses the pipes of the first;
- a process that is used again after an interrupt;
- an exit status that is dropped;
- a reply longer than a pipe that loses its end to a stopped process, or is taken without it.
"""

import array
import fcntl
import multiprocessing
import os
import signal
import termios
import threading
import time

import pytest
from amaranth._toolchain.yosys import YosysError

import hdl.back.yosys
from hdl.back.verilog import convert
from hdl.back.yosys import RESIDENT, run
from hdl.registry import find
from tb.together import smallest

SCRIPT = """\
read_rtlil <<rtlil
module \\top
  wire width 2 input 1 \\a
  wire width 2 output 2 \\y
  cell $not \\inverter
    parameter \\A_SIGNED 0
    parameter \\A_WIDTH 2
    parameter \\Y_WIDTH 2
    connect \\A \\a
    connect \\Y \\y
  end
end
rtlil
opt_clean
write_verilog
"""


@pytest.fixture(autouse=True)
def own_server(monkeypatch):
    """Each test starts and ends a process of its own."""
    monkeypatch.setattr(hdl.back.yosys, "_server", None)
    monkeypatch.setenv(RESIDENT, "1")
    yield
    hdl.back.yosys._end()


@pytest.mark.parametrize("name", ["stream_fifo", "index_reducer"])
def test_the_same_verilog(name, monkeypatch):
    def verilog():
        return convert(find(name).component(smallest(find(name))), name).verilog

    first = verilog()
    assert verilog() == first
    monkeypatch.delenv(RESIDENT)
    hdl.back.yosys._end()
    assert verilog() == first


def test_a_script_that_fails_leaves_the_next_one_alone():
    run(SCRIPT)
    first = hdl.back.yosys._server
    with pytest.raises(YosysError, match="No such command: proceed"):
        run(SCRIPT + "proceed\n")
    assert run(SCRIPT) == run(SCRIPT)
    assert hdl.back.yosys._server is first


def _expect(text: str) -> None:
    is_forgotten = hdl.back.yosys._server is None
    os._exit(not (is_forgotten and run(SCRIPT) == text))


def test_a_forked_process_has_its_own():
    text = run(SCRIPT)
    child = multiprocessing.get_context("fork").Process(target=_expect, args=(text,))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert run(SCRIPT) == text


def test_a_process_that_ended_is_replaced():
    text = run(SCRIPT)
    hdl.back.yosys._server._process.kill()
    assert run(SCRIPT) == text
    assert run(SCRIPT) == text


def test_an_interrupt_leaves_no_reply(monkeypatch):
    text = run(SCRIPT)

    def interrupted(self, size):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(hdl.back.yosys._Server, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(SCRIPT)
    assert hdl.back.yosys._server is None
    assert run(SCRIPT) == text


class Late:
    """The output of a process, read when the pipe is full and ``before`` has run."""

    def __init__(self, pipe, before):
        self.pipe, self.before, self.close = pipe, before, pipe.close

    def read(self, size: int) -> bytes:
        if self.before:
            have, at_end = array.array("i", [0]), time.monotonic() + 60
            while have[0] < 1 << 16:
                assert time.monotonic() < at_end, "the reply does not fill a pipe"
                time.sleep(0.02)
                fcntl.ioctl(self.pipe, termios.FIONREAD, have)
            self.before()
            self.before = None
        return self.pipe.read(size)


@pytest.mark.parametrize("signals", [(signal.SIGSTOP, signal.SIGCONT), (signal.SIGKILL,)])
def test_a_signal_in_the_middle_of_a_reply(signals, monkeypatch):
    """A stopped process goes on. Nothing is taken of a dead one: another runs the script."""
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    script = SCRIPT + "write_verilog\n" * 1200
    with monkeypatch.context() as alone:
        alone.delenv(RESIDENT)  # a process of its own
        expected = run(script)
    assert len(expected) > 3 << 16
    run(SCRIPT)
    process = hdl.back.yosys._server._process
    process.stdout = Late(process.stdout, lambda: [process.send_signal(each) for each in signals])
    watch = threading.Timer(30, process.kill)
    watch.start()
    alive = process.pid
    assert run(script) == expected
    watch.cancel()
    is_same = hdl.back.yosys._server is not None and hdl.back.yosys._server._process.pid == alive
    assert is_same == (signal.SIGKILL not in signals)
