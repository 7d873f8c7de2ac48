"""Is a module that ``hdl.back.write`` gives the same circuit as the one that Yosys writes?

Registers, memories and instances of one name correspond. Yosys turns each register and each
instance into ports. ABC then proves that next states, outputs and the inputs of instances are equal
for all states and inputs. ``equiv_simple`` compares modules with a memory.
"""

import re
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from hdl.back.keywords import KEYWORDS
from hdl.back.module import fresh
from synth.modules import instantiated, stub
from synth.yosys import YosysError, native_abc, run

_READ = """
read_verilog -lib stubs{n}.v
read_verilog old{n}.v
read_verilog new{n}.v
proc -norom old new
memory_collect old new
opt_expr old new
"""
_LOGIC = """
opt_clean old new
expose -shared -evert -evert-dff old new
miter -equiv -flatten old new both
cd both
opt -full
techmap
aigmap
clean
write_aiger both{n}.aig
cd ..
design -reset
"""
_MEMORY = """
equiv_make old new both
cd both
opt_clean
equiv_struct
equiv_simple
tee -q -o status{n} equiv_status
cd ..
design -reset
"""


_NUMBER = r"\d+'s?[bdho][0-9a-fA-FxzXZ?]+"
_RAW_NAME = re.compile(rf"({_NUMBER})|(\$(?:signed|unsigned)\b)|\\(\S+) ?|([A-Za-z_][\w$]*)")


def _raw(match: re.Match) -> str:
    """A name without its backslash, unless it would be a keyword."""
    if match[3] in KEYWORDS:
        return f"\\{match[3]}"
    return match[3] or match[4] or ""


def _plain_names(text: str) -> str:
    """``text`` with names of letters, digits and ``_`` alone."""
    raw = {_raw(match) for match in _RAW_NAME.finditer(text)} - {""}
    taken = {
        name
        for name in raw
        if re.fullmatch(r"[A-Za-z_]\w*", name) and not re.fullmatch(r"_\d+_", name)
    }
    names = {name: name for name in taken}
    for name in sorted(raw - taken):
        number = re.fullmatch(r"\$(\d+)", name)
        stem = re.sub(r"\W+", "_", name.replace(".", "__")).strip("_")
        if number:
            stem = f"_{number[1]}"
        elif stem[:1].isdigit():  # the word that a memory's port has read: ``_0_``
            stem = f"word_{stem}"
        chosen = fresh(stem, taken)
        taken.add(chosen)
        names[name] = chosen

    def plain(match: re.Match) -> str:
        return match[1] or match[2] or names[_raw(match)]

    return _RAW_NAME.sub(plain, text)


def _named(text: str, name: str) -> str:
    return re.sub(r"\Amodule \\?\S+? ?(?=\()", f"module {name} ", text)


def _plain(text: str) -> str:
    """``text`` with the names that ``hdl.back.write`` gives registers: one for one."""
    header, _, body = text.partition(";\n")
    return f"{header};\n{_plain_names(body)}"


def _has_memory(text: str) -> bool:
    return re.search(r"^  reg (?:\[\S+\] )?\S+ +\[\S+\];$", text, re.M) is not None


def different(
    old: Mapping[str, str], new: Mapping[str, str], stubs: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Modules that are not proved the same -> why; ``old`` and ``new`` are texts by module.

    stubs: texts of all their children; default: ``old``.
    """
    assert old.keys() == new.keys()
    names, abc = list(old), native_abc()
    if abc is None:
        raise YosysError("the native ABC is needed: pip install pyosys")
    found = {}
    with tempfile.TemporaryDirectory(prefix="same-logic-") as folder:
        directory = Path(folder)
        script, known = "", stubs or old
        for n, name in enumerate(names):
            children = instantiated(old[name], set(known))
            (directory / f"stubs{n}.v").write_text("".join(stub(known[each]) for each in children))
            (directory / f"old{n}.v").write_text(_named(_plain(old[name]), "old"))
            (directory / f"new{n}.v").write_text(_named(new[name], "new"))
            proof = _MEMORY if _has_memory(old[name]) else _LOGIC
            script += (_READ + proof).format(n=n)
        run(script, directory)
        for n, name in enumerate(names):
            if _has_memory(old[name]):
                status = (directory / f"status{n}").read_text()
                proved = re.search(r"Of those cells \d+ are proven and (\d+) are unproven", status)
                same = proved is not None and not int(proved[1])
            else:
                command = [abc, "-c", f"&read both{n}.aig; &cec -m"]
                result = subprocess.run(command, cwd=directory, capture_output=True, text=True)
                status = result.stdout
                aig = (directory / f"both{n}.aig").read_bytes().split(b"\n", 1)[0].split()
                # A register without a partner would be a latch.
                same = "are equivalent" in status and aig[3] == b"0"
            if not same:
                found[name] = status.strip()[-300:]
    return found
