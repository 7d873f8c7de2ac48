"""``python -m tb.due``: rooms of benches whose every case is due, for ``make test-all ROOMS=...``.

``make test`` runs the cases of each bench that tell most. The others of a room are due

- if a change can reach a bench of the room: the bench imports the changed module, or a module that
  imports it. A file that every test uses, such as conftest.py, reaches all rooms;
- in turn: of the other rooms a third, which the commit decides. Three in a row cover all.

The changes are those since ``--since``, by default the newest commit that is half a day older than
HEAD; without one, all rooms are due. Only rooms with benches that leave out cases are listed, and
``formal``, the long proofs. The reason of each room goes to the error output. Exit status: 0, or 2
without git.
"""

import subprocess
import sys
from pathlib import Path

from golden import command
from tb.faults.telling import marked
from tb.simulate.sources import imported_files

ROOT = Path(__file__).resolve().parent.parent
_OF_ALL = ("conftest.py", "pyproject.toml", "constraints.txt")
_HALF_A_DAY = 12 * 3600
FORMAL = "formal"


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def changed(since: str | None) -> list[str] | None:
    """Files that differ from commit ``since``, in the tree as it is; None: there is no such one."""
    if since is None:
        begin = int(_git("log", "-1", "--format=%ct")) - _HALF_A_DAY
        since = _git("rev-list", "-1", f"--before={begin}", "HEAD")
    return _git("diff", "--name-only", since).splitlines() if since else None


def reach(file: Path) -> set[Path]:
    """``file``, and all that it imports by any way."""
    found, waiting = set[Path](), [file]
    while waiting:
        each = waiting.pop()
        if each not in found:
            found.add(each)
            waiting += imported_files(each, ROOT)
    return found


def _room(bench: str) -> str:
    """The room of ``bench`` for ``make test-all``: its folder; itself, where that is all of tb."""
    folder = str(Path(bench).parent)
    return FORMAL if folder == "tb/formal" else bench if folder == "tb" else folder


def due(changes: list[str] | None, commit: str, benches: list[str]) -> dict[str, str]:
    """Room -> why, for benches by their paths; changes: None if they are unknown."""
    rooms = sorted(set(map(_room, benches)))
    reasons: dict[str, str] = {}
    if changes is None or set(changes) & set(_OF_ALL):
        why = "the changes are unknown" if changes is None else "a change reaches every test"
        reasons = dict.fromkeys([FORMAL, *rooms], why)
    else:
        files = {ROOT / name for name in changes}
        for bench in ["tb/formal/__main__.py", *benches]:
            hit = sorted(reach(ROOT / bench) & files)
            if hit and _room(bench) not in reasons:
                reasons[_room(bench)] = f"{bench} reaches {hit[0].relative_to(ROOT)}"
    left = [room for room in [FORMAL, *rooms] if room not in reasons]
    turn = int(commit[:8], 16) % 3
    return reasons | dict.fromkeys(left[turn::3], f"its turn ({turn + 1} of 3)")


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m tb.due", description=__doc__.split("\n")[0])
    parser.add_argument("--since", metavar="COMMIT", help="changes since then (half a day ago)")
    options = parser.parse_args(arguments)
    try:
        found = due(changed(options.since), _git("rev-parse", "HEAD"), marked())
    except (OSError, subprocess.CalledProcessError) as error:
        reason = (getattr(error, "stderr", "") or str(error)).strip().splitlines()[-1]
        print(f"tb.due: git gives no changes: {reason}", file=sys.stderr)
        return 2
    for room, why in found.items():
        print(room, flush=True)
        print(f"{room}: {why}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    command.run("tb.due", main)
