"""Is a module that ``hdl.back.rewrite`` gives the same circuit as the one that Yosys has written?

Registers, memories and instances of one name correspond. Yosys turns each register and each
instance into ports. ABC then proves that next states, outputs and the inputs of instances are equal
for all states and inputs. ``equiv_simple`` compares modules with a memory.
"""

import re
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from hdl.back.rewrite import plain_names
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


def _named(text: str, name: str) -> str:
    return re.sub(r"\Amodule \\?\S+? ?(?=\()", f"module {name} ", text)


def _plain(text: str) -> str:
    """``text`` with the names that ``rewrite`` gives registers: one for one."""
    header, _, body = text.partition(";\n")
    return f"{header};\n{plain_names(body)[0]}"


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
