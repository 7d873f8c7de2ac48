"""The words of a testbench as files for $readmemh, each with a last line 1: it is whole."""

from collections.abc import Iterable, Iterator, Mapping

from hdl.kit.bench import Bench, BenchStream
from hdl.kit.episodes import Memory

_WHOLE = "1"  # hdl.kit.bench_modules looks for it


def vector_files(bench: Bench) -> dict[str, str]:
    """File's path -> its text."""
    found: dict[str, str] = {}
    for stream in bench.streams:
        found |= _stream_files(bench, stream)
    for port in bench.inputs:
        name, width = port["name"], port["width"]
        values = (_hex(episode.ports[name], width) for episode in bench.episodes)
        found[bench.file(name)] = _lines(values)
    for port in bench.outputs:
        found[bench.file(port["name"])] = _lines(_compared(bench, port))
    for memory in bench.memories:
        found |= _memory_files(bench, memory)
    resets = (str(int(episode.reset)) for episode in bench.episodes)
    return found | {bench.file("resets"): _lines(resets)}


def _hex(value: int, width: int) -> str:
    return f"{value:0{-(-width // 4)}x}"


def _lines(values: Iterable[str]) -> str:
    return "".join(f"{value}\n" for value in (*values, _WHOLE))


def _compared(bench: Bench, port: Mapping) -> Iterator[str]:
    """Value of an output at the end of each episode; the bit above says that it is compared."""
    for episode in bench.episodes:
        value = episode.outputs.get(port["name"])
        yield _hex(0 if value is None else 1 << port["width"] | value, port["width"] + 1)


def _stream_files(bench: Bench, stream: BenchStream) -> dict[str, str]:
    words, masks, ends = [], [], []
    every = (1 << stream.width) - 1
    for episode in bench.episodes:
        moved = episode.words.get(stream.name, ())
        compared = episode.masks.get(stream.name, [every] * len(moved))
        words += [_hex(word, stream.width) for word in moved]
        masks += [_hex(mask & every, stream.width) for mask in compared]
        ends.append(_hex(len(words), 32))
    blank = [_hex(0, stream.width)]
    found = {
        bench.file(stream.name): _lines(words or blank),
        bench.file(f"{stream.name}.ends"): _lines(ends),
    }
    if not stream.is_source:
        found[bench.file(f"{stream.name}.masks")] = _lines(masks or blank)
    return found


def _memory_files(bench: Bench, memory: Memory) -> dict[str, str]:
    bits, numbers = bench.data_bits(memory), []
    for episode in bench.episodes:
        fault = episode.faults.get(memory.bus)
        numbers += [fault.low, fault.high, fault.response] if fault else [0, 0, 0]
    found = {bench.file(f"{memory.bus}.faults"): _lines(_hex(each, 64) for each in numbers)}
    if memory.image:
        lines, after = [], None
        for place, word in sorted(memory.image.items()):
            lines += [f"@{place:x}"] if place != after else []
            lines.append(_hex(word, bits))
            after = place + 1
        lines += [f"@{memory.words:x}"] if memory.words != after else []
        found[bench.file(f"{memory.bus}.image")] = _lines(lines)
    if memory.final:
        final = (_hex(word, bits) for word in memory.final)
        found[bench.file(f"{memory.bus}.final")] = _lines(final)
    return found
