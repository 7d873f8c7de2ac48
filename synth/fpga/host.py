"""The host's side of a board, as a program: ``python host.py NAME.json PORT source=WORD ...``.

It sends words, in hexadecimal or decimal, and prints what comes. It needs pyserial. ``host_text``
has all that it needs in one file, for a machine without this project.
"""

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from synth.fpga.link import BAUD, Link, ends_of


def host(arguments: Sequence[str]) -> int:
    """Sends words and prints what comes. 2 after one line: what is wrong with an argument."""
    try:
        file, port, *given = arguments
        link = Link(ends_of(json.loads(Path(file).read_text())))
        words = [(name, int(word, 0)) for name, _, word in (each.partition("=") for each in given)]
        frames = [link.frame(name, word) for name, word in words]
    except (ValueError, KeyError, OverflowError, OSError) as error:
        print(f"host: NAME.json PORT source=WORD ...: {error}", file=sys.stderr)
        return 2
    import serial

    with serial.Serial(port, BAUD, timeout=1) as line:
        for frame in frames:
            line.write(frame)
            accepted = False
            while not accepted:
                data = line.read(1)
                if not data:
                    print("host: no answer for a second", file=sys.stderr)
                    return 1
                for kind, name, word in link.feed(data):
                    accepted |= kind == "accepted"
                    if kind == "word":
                        print(f"{name} {word:#x}")
        while data := line.read(1):
            for kind, name, word in link.feed(data):
                if kind == "word":
                    print(f"{name} {word:#x}")
    return 0


def host_text() -> str:
    """The program: ``synth.fpga.link``, and ``host`` of this file."""
    folder = Path(__file__).parent
    own = (folder / "host.py").read_text()
    head, function = re.split(r"(?=^def host)", own, maxsplit=1, flags=re.M)
    imports = "\n".join(re.findall(r"^(?:import|from (?!synth)).*", head, re.M))
    function = function.split("\n\n\ndef ")[0]
    link = (folder / "link.py").read_text()
    return f"{link}\n\n{imports}\n\n\n{function}\n\n\nsys.exit(host(sys.argv[1:]))\n"
