"""Names of the ports of a delivered top: ``--separator`` of ``python -m hdl.build``.

Within a design, ``__`` joins the parts of a name (``hdl.back.emit.Port``). VHDL has no such
identifier, and the ``--lib-create`` of Verilator 5.030 does not take it. With ``_`` the top alone
has other names: the modules inside keep theirs, and the testbench of a kit drives the renamed top.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from golden.config import ConfigError
from hdl.back.keywords import KEYWORDS, VHDL_KEYWORDS

SEPARATORS = ("__", "_")  # the first is what a design has inside
_NAME = re.compile(r"[A-Za-z]\w*")


def _fault(name: str) -> str:
    """Why ``name`` is no identifier of Verilog, SystemVerilog and VHDL; empty if it is one."""
    if name in KEYWORDS:
        return "a keyword of Verilog or SystemVerilog"
    if name.lower() in VHDL_KEYWORDS:
        return "a keyword of VHDL"
    if not re.fullmatch(r"[A-Za-z](_?[A-Za-z0-9])*", name):
        return "no identifier of VHDL"
    return ""


def check_name(option: str, name: str, separator: str) -> None:
    """ConfigError: the top's name does not suit the tools that want the separator ``_``."""
    if separator != SEPARATORS[0] and (fault := _fault(name)):
        raise ConfigError(
            f"{option} must be a name that VHDL takes with --separator {separator}, "
            f"not {name!r}, {fault}"
        )


def delivered_names(
    ports: Iterable[str], separator: str, streams: Iterable[str] = ()
) -> dict[str, str]:
    """Each port and each stream of a block whose name changes, and its name at the delivered top.

    ConfigError: two of a kind get one name, in VHDL's eyes too, or a port gets no identifier.
    """
    if separator not in SEPARATORS:
        raise ConfigError(f"--separator must be {' or '.join(SEPARATORS)}, not {separator!r}")
    if separator == SEPARATORS[0]:
        return {}
    found: dict[str, str] = {}
    ports = list(ports)
    for names in (ports, list(streams)):
        made = {name: re.sub("__+", separator, name) for name in names}
        owners: dict[str, str] = {}
        for name, new in made.items():
            other = owners.setdefault(new.lower(), name)
            if other != name:
                raise ConfigError(
                    f"--separator {separator} makes one name of {other} and {name}, {new!r}; "
                    "use --wrap axi"
                )
            if names is ports and (fault := _fault(new)):
                raise ConfigError(
                    f"--separator {separator} makes {name} {new!r}, {fault}; use --wrap axi"
                )
        found |= {name: new for name, new in made.items() if new != name}
    return found


def renamed(value: Any, names: Mapping[str, str]) -> Any:
    """``value``, text or parts of a description, with each whole word of ``names`` replaced."""
    if isinstance(value, str):
        return _NAME.sub(lambda word: names.get(word[0], word[0]), value)
    if isinstance(value, dict):
        return {renamed(key, names): renamed(each, names) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [renamed(each, names) for each in value]
    return value
