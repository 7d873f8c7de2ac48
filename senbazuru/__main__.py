"""``senbazuru COMMAND ...``: every command of the installed packages under one name.

A command is the module of the table, run as ``python -m`` runs it: the same options, the same
messages, the same exit status. Its ``--help`` alone names ``senbazuru COMMAND``. Nothing of it is
imported before it is chosen.
"""

import difflib
import importlib.metadata
import runpy
import sys

import senbazuru

# Command -> module and what it does.
COMMANDS = {
    "build": ("hdl.build", "write the Verilog of blocks"),
    "plan": ("hdl.vqllm.plan", "choose a vector-quantized engine within a budget"),
    "report": ("synth.report", "area and longest paths of a block"),
    "fpga": ("synth.fpga", "resources and clock of a block on an FPGA"),
    "compare": ("synth.compare", "areas next to the papers' tables"),
    "eval": ("golden.llm.eval", "perplexity of quantization methods on a model"),
    "calibrate": ("golden.llm.calibrate", "what a method learns offline, as a file"),
    "pack": ("golden.llm.pack", "a checkpoint's layer as images of an accelerator"),
    "assemble": ("golden.kllm.assembler", "a text program as words of the KLLM accelerator"),
    "profile": ("golden.llm.oaken.profile", "thresholds of Oaken for a model"),
    "qet": ("golden.llm.qet", "quantize, restore and report QET files"),
    "explore": ("sim.explore", "chips and schemes for a model, as a table and a page"),
    "sim run": ("sim.run", "time and energy of a model on a chip"),
    "sim compare": ("sim.compare", "chips next to each other"),
    "sim sweep": ("sim.sweep", "every combination of chips, models and sizes"),
    "sim serve": ("sim.serve", "requests of a trace on a chip"),
    "sim claims": ("sim.claims", "the papers' claims about whole chips"),
    "sim questions": ("sim.questions", "answers of the simulator's page"),
    "sim memory": ("sim.memory", "shares and waits of memories, and chips with them"),
    "sim validate": ("sim.validate", "predictions next to measured cycles"),
    "sim vllm": ("sim.validate_vllm", "a published measurement of vLLM next to the simulator"),
}


def _help() -> str:
    lines = ["usage: senbazuru COMMAND ...", "", "commands (each prints its options with --help):"]
    for name, (module, text) in COMMANDS.items():
        lines.append(f"  {name:14} {text} (python -m {module})")
    lines.append("")
    lines.append("Co-simulation, proofs and pages need a checkout: see README.md.")
    return "\n".join(lines)


def _split(words: list[str]) -> tuple[str, list[str]]:
    """The command that ``words`` begin with, and its own arguments; "" if there is none."""
    for count in (2, 1):
        name = " ".join(words[:count])
        if len(words) >= count and name in COMMANDS:
            return name, words[count:]
    return "", words


def _unknown(words: list[str]) -> str:
    """One line for a first word, or two, that are no command."""
    groups = {name.split()[0] for name in COMMANDS if " " in name}
    given = " ".join(words[: 2 if words[0] in groups else 1])
    near = difflib.get_close_matches(given, COMMANDS, n=3, cutoff=0.4)
    hint = f"; nearest: {', '.join(near)}" if near else ""
    return f"senbazuru: no command is called {given!r}{hint} (senbazuru --help lists all)"


def main() -> int:
    """The console script. A command exits as by itself; 2 after one line: there is no such one."""
    words = sys.argv[1:]
    if not words or words[0] in ("-h", "--help"):
        print(_help())
        return 0
    if words[0] == "--version":
        print(importlib.metadata.version("senbazuru"))
        return 0
    name, arguments = _split(words)
    if not name:
        print(_unknown(words), file=sys.stderr)
        return 2
    for package in ("golden", "hdl", "sim", "synth"):
        reason = senbazuru.foreign(package)
        if reason is not None:
            print(f"senbazuru: {reason}", file=sys.stderr)
            return 2
    from golden import command  # no sooner: it may be another project's

    for typed, (module, _) in COMMANDS.items():
        command.TYPED[f"python -m {module}"] = f"senbazuru {typed}"
    command.hear_early(COMMANDS[name][0])
    sys.argv[1:] = arguments
    runpy.run_module(COMMANDS[name][0], run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
