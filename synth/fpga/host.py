"""The host's side of a board, as a program: ``python host.py NAME.json PORT source=WORD ...``.

It sends words, in hexadecimal or decimal, and prints what comes. It needs pyserial. ``host_text``
has all that it needs in one file, for a machine without this project.
"""

import json
import re
import sys
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from synth.fpga.link import BAUD, Link, ends_of


def exchange(
    link: Link, words: Sequence[tuple[str, int]], line: Any, say: Callable[[str, int], None]
) -> bool:
    """Sends ``words`` of inputs by name, and says what sinks give, until nothing more comes.

    Each source has one word in flight: its next one goes when the block has taken it. So a block
    that takes words of two sources together gets both. Values of plain inputs go first. False: a
    word was not taken.

    line : ``write(bytes)``, and ``read(1)``, which gives nothing after a time
    """
    streams = {end.name for end in link.ends.inputs if end.is_stream}
    queues: dict[str, deque[int]] = {name: deque() for name in streams}
    for name, word in words:
        if name in streams:
            queues[name].append(word)
        else:
            line.write(link.frame(name, word))
    free = set(streams)
    while True:
        for name in sorted(free):
            if queues[name]:
                free.discard(name)
                line.write(link.frame(name, queues[name].popleft()))
        data = line.read(1)
        if not data:
            return free == streams and not any(queues.values())
        for kind, name, word in link.feed(data):
            if kind == "accepted":
                free.add(name)
            elif kind == "word":
                say(name, word)


def host(arguments: Sequence[str]) -> int:
    """Sends words and prints what comes. 2 after one line: what is wrong with an argument."""
    try:
        file, port, *given = arguments
        link = Link(ends_of(json.loads(Path(file).read_text())))
        words = [(name, int(word, 0)) for name, _, word in (each.partition("=") for each in given)]
        for name, word in words:
            link.frame(name, word)
    except (ValueError, KeyError, OverflowError, OSError) as error:
        print(f"host: NAME.json PORT source=WORD ...: {error}", file=sys.stderr)
        return 2
    try:
        import serial
    except ImportError:
        packages = "pyserial, or 'senbazuru[fpga]'"
        print(f"host: pyserial is missing: pip install {packages}", file=sys.stderr)
        return 2
    try:
        with serial.Serial(port, BAUD, timeout=1) as line:
            is_sent = exchange(link, words, line, lambda name, word: print(f"{name} {word:#x}"))
    except (OSError, serial.SerialException) as error:
        print(f"host: {port}: {error}", file=sys.stderr)
        return 2
    if not is_sent:
        print("host: the block has not taken all words for a second", file=sys.stderr)
    return 0 if is_sent else 1


def host_text() -> str:
    """The program: ``synth.fpga.link``, ``exchange`` and ``host``."""
    folder = Path(__file__).parent
    own = (folder / "host.py").read_text()
    head, function = re.split(r"(?=^def exchange)", own, maxsplit=1, flags=re.M)
    imports = "\n".join(re.findall(r"^(?:import|from (?!synth)).*", head, re.M))
    function = function.split("\n\n\ndef host_text")[0]
    link = (folder / "link.py").read_text()
    return f"{link}\n\n{imports}\n\n\n{function}\n\n\nsys.exit(host(sys.argv[1:]))\n"
