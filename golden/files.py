"""Files that other processes, and a run that resumes, find whole or not at all."""

import contextlib
import fcntl
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from golden.config import ConfigError


@contextlib.contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """Give a path of this process next to ``file``, and move what is written there to ``file``.

    Two processes may make the same file. After an exception ``file`` is as it was, and what was
    written is removed. An OSError names ``file``, that of a full disk too. The file has the mode of
    the umask, whatever library writes it.
    """
    part = file.with_name(f"{file.name}.{os.getpid()}.part")
    try:
        part.touch()
        mode = stat.S_IMODE(part.stat().st_mode)
        yield part
        part.chmod(mode)
        part.replace(file)
    except BaseException as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None:
            if error.filename is None or str(error.filename) == str(part):
                raise OSError(error.errno, error.strerror, str(file)) from None
        raise


def _held(path: Path, flags: int, wait: bool) -> int:
    """A handle of ``path`` with its lock. BlockingIOError: another handle has it.

    Where locks do not work, as on some network disks, the handle holds nothing.
    """
    while True:
        handle = os.open(path, flags, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(handle)
            raise
        except OSError:
            return handle
        # The last owner may have removed the path between the two calls.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), path.stat()):
                return handle
        os.close(handle)


@contextlib.contextmanager
def _locked(file: Path, wait: bool = False) -> Iterator[None]:
    lock = file.with_name(f".{file.name}.lock")
    handle = _held(lock, os.O_RDWR | os.O_CREAT, wait)
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        os.close(handle)


@contextlib.contextmanager
def in_turn(file: Path) -> Iterator[None]:
    """One process at a time reads ``file`` and writes it anew; the others wait."""
    with _locked(file, wait=True):
        yield


@contextlib.contextmanager
def claimed(*files: Path | None) -> Iterator[None]:
    """Within it no other command writes ``files``; a command claims them before its work.

    ConfigError: one cannot be written, two are the same, or another run has claimed it.
    """
    given = [file for file in files if file is not None]
    with contextlib.ExitStack() as held:
        for number, file in enumerate(given):
            check_output(file)
            if any(file.resolve() == other.resolve() for other in given[:number]):
                raise ConfigError(f"two outputs are the file {file}")
            try:
                held.enter_context(_locked(file))
            except BlockingIOError:
                raise ConfigError(f"another run writes {file}: wait until it ends") from None
            except OSError as error:  # such as a name that is too long for the lock
                raise ConfigError(f"{file}: {error.strerror}") from None
        yield


@contextlib.contextmanager
def made_folder(folder: Path) -> Iterator[None]:
    """Make ``folder`` and its parents; those that are empty at the end are removed again.

    ConfigError: it is a file, or it cannot be made or written.
    """
    made: list[Path] = []
    try:
        for each in (*reversed(folder.parents), folder):
            try:
                if each.is_dir():
                    continue
                if os.path.lexists(each):
                    raise ConfigError(f"output must be a folder, not the file {each}")
                each.mkdir(exist_ok=True)  # another run may make it at this moment
            except OSError as error:
                raise ConfigError(f"no folder {each}: {error.strerror}") from None
            made.append(each)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise ConfigError(f"the folder {folder} is not writable")
        yield
    finally:
        with contextlib.suppress(OSError):  # one that is not empty
            for each in reversed(made):
                each.rmdir()


@contextlib.contextmanager
def claimed_folder(folder: Path) -> Iterator[None]:
    """``made_folder``, and within it no other command that claims ``folder`` writes there.

    ConfigError: what ``made_folder`` refuses, or another run has claimed it.
    """
    with made_folder(folder):
        try:
            handle = _held(folder, os.O_RDONLY, wait=False)
        except BlockingIOError:
            raise ConfigError(f"another run writes into {folder}: wait until it ends") from None
        try:
            yield
        finally:
            os.close(handle)


@contextlib.contextmanager
def made_aside(directory: Path) -> Iterator[Path]:
    """Give an empty folder in ``directory``, and move what is made there up to ``directory``.

    For a caller that holds the lock of ``directory``, and marks it complete afterwards. A maker
    that is killed with -9 leaves its folder, and may leave compilers that still write there. So
    every maker has a folder of its own, and those of earlier makers are removed. After an exception
    the folder stays, with its logs, until the next maker comes.
    """
    for left in directory.glob("part-*"):
        shutil.rmtree(left, ignore_errors=True)  # a compiler may write there at this moment
    part = Path(tempfile.mkdtemp(prefix="part-", dir=directory))
    yield part
    for made in list(part.iterdir()):
        target = directory / made.name
        if target.is_dir():
            shutil.rmtree(target)
        made.replace(target)
    part.rmdir()


def kept_json(file: Path) -> Any:
    """Returns the value that a cache keeps in ``file``; None: it is missing or cannot be read."""
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError, RecursionError):
        return None


def check_output(file: Path) -> None:
    """ConfigError: ``file`` is a folder or a device, or its folder is missing or not writable."""
    try:
        is_folder = file.is_dir()
    except OSError as error:  # such as a name that is too long
        raise ConfigError(f"{file}: {error.strerror}") from None
    if is_folder:
        raise ConfigError(f"output must be a file, not the folder {file}")
    if file.exists() and not file.is_file():  # renaming would replace the device
        raise ConfigError(f"output must be a file, not the device {file}")
    if not file.parent.is_dir():
        raise ConfigError(f"no folder {file.parent} to write to")
    if not os.access(file.parent, os.W_OK):
        raise ConfigError(f"the folder {file.parent} is not writable")
