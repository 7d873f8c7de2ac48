"""``golden.command.run``: how a command ends.

Seen to fail with each of:

- no handler of SIGINT;
- ``end_children`` without SIGKILL;
- the handler's thread without its loop;
- no ``_adopt_orphans``;
- no check of ``happened`` for foreign errors;
- no check of the owner in the handler.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BEGIN = "import os, subprocess, sys, time\nfrom golden import command\n"


def hear_interrupt() -> None:
    """Restores SIGINT in a child: tests in a script's background, and their children, ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextlib.contextmanager
def start(tmp_path, body, end="command.run('thing', main)"):
    """A command in a process group of its own, once it has written the file ``ready``."""
    script = tmp_path / "thing.py"
    script.write_text(f"{BEGIN}{body}\n{end}\n")
    command = subprocess.Popen(
        [sys.executable, script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=hear_interrupt,
    )
    try:
        yield command
    finally:
        command.kill()
        if (tmp_path / "ready").exists():
            for each in (tmp_path / "ready").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(each), signal.SIGKILL)
        for stream in (command.stdout, command.stderr):
            stream.close()
        command.wait()


def wait_for(path):
    for _ in range(1000):
        if path.exists() and path.read_text().strip():
            return path.read_text().split()
        time.sleep(0.02)
    raise AssertionError(f"{path.name} was not written")


def is_alive(process):
    stat = Path(f"/proc/{process}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def interrupt(command, tmp_path):
    """SIGINT to the command alone; its status, its lines on stderr, and its living children."""
    children = wait_for(tmp_path / "ready")
    command.send_signal(signal.SIGINT)
    _, errors = command.communicate(timeout=60)
    return command.returncode, errors.splitlines(), [each for each in children if is_alive(each)]


CHILD = "sh -c 'sleep 1000 & echo $! $$ > part; mv part ready; wait'"
CASES = {
    "a child that waits": f'def main():\n    subprocess.run("exec " + """{CHILD}""", shell=True)',
    "a child in a session of its own": f"""
def main():
    child = subprocess.Popen("exec " + \"\"\"{CHILD}\"\"\", shell=True, start_new_session=True)
    time.sleep(1000)""",
    "a child that ignores SIGTERM": """
def main():
    text = "trap '' TERM INT; echo $$ > part; mv part ready; while :; do sleep 0.1; done"
    subprocess.Popen(["sh", "-c", text])
    time.sleep(1000)""",
    "an orphan": """
def main():
    subprocess.run(["sh", "-c", "sleep 1000 & echo $! > part; mv part ready"])
    time.sleep(1000)""",
    "a pool with jobs that wait": """
from concurrent.futures import ThreadPoolExecutor
def job(number):
    time.sleep(0.3)
    subprocess.run(["sh", "-c", f"echo $$ > part{number}; mv part{number} ready; exec sleep 1000"])
def main():
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(job, number) for number in range(6)]
        time.sleep(1000)""",
    "another error": """
def main():
    child = subprocess.Popen(["sh", "-c", "echo $$ > part; mv part ready; exec sleep 1000"])
    try:
        time.sleep(1000)
    except KeyboardInterrupt:
        raise ValueError("the child has ended") from None""",
}


@pytest.mark.parametrize("case", CASES)
def test_ctrl_c_ends_the_children_in_one_line(tmp_path, case):
    with start(tmp_path, CASES[case]) as command:
        assert interrupt(command, tmp_path) == (130, ["thing: interrupted"], [])


def test_ctrl_c_with_a_line_of_the_command(tmp_path):
    body = """
def main():
    try:
        open("ready", "w").write(str(os.getpid()))
        time.sleep(1000)
    except KeyboardInterrupt:
        print("3 rows are kept", file=sys.stderr)
        return 0"""
    with start(tmp_path, body) as command:
        status, lines, _ = interrupt(command, tmp_path)
    assert (status, lines) == (130, ["3 rows are kept"])


def test_ctrl_c_in_a_forked_worker(tmp_path):
    """A terminal sends the interrupt to all processes of the group, and so does this test."""
    body = """
import multiprocessing
def job():
    open("ready", "w").write(str(os.getpid()))
    time.sleep(1000)
def main():
    worker = multiprocessing.get_context("fork").Process(target=job)
    worker.start()
    worker.join()"""
    with start(tmp_path, body) as command:
        wait_for(tmp_path / "ready")
        os.killpg(command.pid, signal.SIGINT)
        _, errors = command.communicate(timeout=60)
    assert (command.returncode, errors.splitlines()) == (130, ["thing: interrupted"])


def test_second_ctrl_c_ends_at_once(tmp_path):
    body = """
def main():
    try:
        open("ready", "w").write(str(os.getpid()))
        time.sleep(1000)
    except KeyboardInterrupt:
        open("again", "w").write("1")
        time.sleep(1000)"""
    with start(tmp_path, body) as command:
        wait_for(tmp_path / "ready")
        command.send_signal(signal.SIGINT)
        wait_for(tmp_path / "again")
        command.send_signal(signal.SIGINT)
        _, errors = command.communicate(timeout=60)
        assert (command.returncode, errors) == (130, "")


def test_status_and_errors_without_ctrl_c(tmp_path):
    for body, status, errors in (
        ("def main(): return 2", 2, ""),
        ("def main(): print('x')", 0, ""),
        ("def main(): raise SystemExit(3)", 3, ""),
        ("def main(): raise ValueError('wrong')", 1, "ValueError: wrong"),
    ):
        with start(tmp_path, body) as command:
            _, found = command.communicate(timeout=60)
        assert command.returncode == status, body
        assert (found.splitlines() or [""])[-1] == errors


def test_closed_pipe_is_silent(tmp_path):
    body = "def main():\n    while True: print('x' * 1000)"
    with start(tmp_path, body) as command:
        command.stdout.readline()
        command.stdout.close()
        assert command.stderr.read() == ""
        assert command.wait(timeout=60) == 1


@pytest.mark.parametrize(
    ("command", "status", "lines"),
    [
        ("print('x')", 1, ["thing: stdout: No space left on device"]),
        ("print('x' * 100000)", 1, ["thing: stdout: No space left on device"]),
        ("print('x'); sys.exit(0)", 1, ["thing: stdout: No space left on device"]),
        ("open('/dev/full', 'wb', 0).write(b'x')", 1, ["thing: stdout: No space left on device"]),
        ("open('nosuch')", 1, None),
    ],
)
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_one_line(tmp_path, command, status, lines):
    """Any other OSError stays a traceback. Seen to fail without the flush after SystemExit."""
    (tmp_path / "thing.py").write_text(
        f"{BEGIN}def main():\n    {command}\ncommand.run('thing', main)\n"
    )
    with Path("/dev/full").open("w") as full:
        found = subprocess.run(
            [sys.executable, "thing.py"],
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False, timeout=60,
            stdout=full, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    errors = found.stderr.splitlines()
    assert found.returncode == status
    assert errors == lines if lines else errors[0].startswith("Traceback")


def test_closed_stdout_is_no_fault(tmp_path):
    (tmp_path / "thing.py").write_text(
        f"{BEGIN}def main():\n    print('x')\ncommand.run('thing', main)\n"
    )
    found = subprocess.run(
        ["sh", "-c", 'exec "$0" thing.py >&-', sys.executable],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False, timeout=60,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert (found.returncode, found.stderr) == (0, "")


COMMAND = ROOT / "golden" / "command.py"
_MAIN = '\nif __name__ == "__main__":\n'


def commands():
    """Files that ``python -m`` runs, but for ``senbazuru`` itself, which runs one of these."""
    found = []
    for package in ("golden", "hdl", "sim", "synth", "tb", "senbazuru"):
        for path in sorted((ROOT / package).rglob("*.py")):
            is_command = path.name == "__main__.py" or _MAIN in path.read_text()
            if is_command and path not in (COMMAND, ROOT / "senbazuru" / "__main__.py"):
                found.append(path)
    return found


def module_of(path):
    """The name after ``python -m``."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__main__" else parts)


@pytest.mark.parametrize("path", commands(), ids=module_of)
def test_commands_end_so(path):
    name = module_of(path)
    last = path.read_text().strip().splitlines()[-1].strip()
    assert re.fullmatch(rf'(command\.)?run\("{re.escape(name)}", main\)', last), last


def test_a_message_names_its_command():
    """Seen to fail: ``tb.talk: `` from senbazuru.talk, whose name it had been."""
    for path in sorted((ROOT / "senbazuru").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for name in re.findall(r'print\(\s*f"(?:\\n)?(\w+(?:\.\w+)+): ', path.read_text()):
            assert f"{module}.".startswith(f"{name}."), f"{module} prints {name}: "


IMPORTS = {
    "hdl.build": "amaranth", "hdl.vqllm.plan": "numpy", "golden.llm.pack": "numpy",
    "synth.report": "rich", "golden.kllm.assembler": "numpy",
}  # fmt: skip


@pytest.mark.parametrize("name", IMPORTS)
def test_ctrl_c_while_a_command_is_imported(tmp_path, name):
    """It was a traceback of up to 37 lines: the imports take seconds."""
    package = tmp_path / IMPORTS[name]
    package.mkdir()
    ready = tmp_path / "ready"
    text = f"import os, time\nopen({str(ready)!r}, 'w').write(str(os.getpid()))\ntime.sleep(1000)\n"
    (package / "__init__.py").write_text(text)
    command = subprocess.Popen(
        [sys.executable, "-m", name],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=hear_interrupt,
    )
    assert interrupt(command, tmp_path) == (130, [f"{name}: interrupted"], [])


def test_ctrl_c_in_a_text_that_is_executed(tmp_path):
    """Python ended by SIGINT after our line, at random: a dataclass is such a text."""
    body = """
def main():
    exec("open('ready', 'w').write(str(os.getpid())); time.sleep(1000)", globals())"""
    with start(tmp_path, body) as command:
        assert interrupt(command, tmp_path) == (130, ["thing: interrupted"], [])


def test_other_programs_keep_their_handler():
    """A program that imports golden, as this one does, is no command."""
    code = "import golden, signal; print(signal.getsignal(signal.SIGINT).__name__)"
    found = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=True, preexec_fn=hear_interrupt,
    )  # fmt: skip
    assert found.stdout == "default_int_handler\n"
