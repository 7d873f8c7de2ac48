"""The folders in which simulators keep bytecode: one per state of the sources, one for libraries.

Python takes bytecode for that of a source with the same size and the same second of change. So a
source that is written twice within a second would run its former text.
"""

import contextlib
import functools
import hashlib
import shutil
import sysconfig
from pathlib import Path

from tb.simulate.sources import source_files

_PLACES = ("golden", "hdl", "synth", "tb", "senbazuru", "tests")
_KEPT = 4  # folders of earlier states


def bytecode_folder(root: Path, folder: Path) -> Path:
    """PYTHONPYCACHEPREFIX for a process that starts now and imports the packages of ``root``.

    Its name is a hash of path, size, inode and times of each source, to the nanosecond. The times
    include that of the inode, which nobody can set back. The standard library and site-packages
    change by installation alone: one folder serves them in every state. Folders of earlier states
    are removed, but for the newest ones.
    """
    digest = hashlib.sha256()
    for file in source_files(root, _PLACES):
        try:
            found = file.stat()
        except FileNotFoundError:  # an editor's file is gone again
            continue
        times = found.st_mtime_ns, found.st_ctime_ns
        digest.update(f"{file}\0{found.st_size}\0{found.st_ino}\0{times}\0".encode())
    return _made(folder, digest.hexdigest()[:20])


@functools.cache
def _made(folder: Path, key: str) -> Path:
    made = folder / key
    is_new = not made.exists()
    paths = sysconfig.get_paths()
    linked: list[Path] = []
    for library in sorted({Path(paths[name]) for name in ("stdlib", "purelib", "platlib")}):
        if any(library.is_relative_to(each) for each in linked):
            continue
        linked.append(library)
        shared = folder / "library" / library.relative_to("/")
        link = made / library.relative_to("/")
        shared.mkdir(parents=True, exist_ok=True)
        link.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):  # another process was first
            link.symlink_to(shared.resolve(), target_is_directory=True)
    if is_new:
        _prune(folder, made)
    return made


def _prune(folder: Path, made: Path) -> None:
    """Python goes on without a folder that another process still uses."""
    ages = {}
    for each in folder.iterdir():
        with contextlib.suppress(OSError):
            if each.name != "library" and each != made:
                ages[each] = each.stat().st_mtime
    for each in sorted(ages, key=ages.__getitem__)[: -_KEPT or None]:
        shutil.rmtree(each, ignore_errors=True)
