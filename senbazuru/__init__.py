"""The installed project: its command ``senbazuru``, and the check that its packages are ours.

Other distributions have packages called ``golden``, ``hdl``, ``sim``, ``synth`` and ``tb`` too. Of
two packages of one name, Python imports the first that it finds.
"""

import importlib.util
import re
import sys
from pathlib import Path

__all__ = ["foreign", "require"]

__distribution__ = "senbazuru"

_FOLDER = Path(__file__).resolve().parent.parent
_MARK = re.compile(r'^__distribution__ = "senbazuru"$', re.M)


def foreign(name: str) -> str | None:
    """Why the package that ``import name`` finds is not this project's; None: it is."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        return f"the package {name} of senbazuru is missing"
    file = Path(spec.origin).resolve()
    if file == _FOLDER / name / "__init__.py" and _MARK.search(file.read_text()):
        return None
    return (
        f"the package {name} in {file.parent} is not that of senbazuru: "
        "uninstall it, or use an environment of its own"
    )


def require(*names: str) -> None:
    """ImportError, in one line, unless the packages ``names`` are this project's.

    Under ``python -m`` the line goes to stderr and the exit status is 2.
    """
    for name in names:
        reason = foreign(name)
        if reason is not None:
            if sys.argv[:1] == ["-m"]:  # Python's sign that it still looks for the module to run
                print(f"senbazuru: {reason}", file=sys.stderr)
                raise SystemExit(2)
            raise ImportError(f"senbazuru: {reason}")
        importlib.import_module(name)
