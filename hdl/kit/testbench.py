"""NAME_tb.v and its vectors: a self-checking testbench in Verilog-2005, without Python.

The testbench runs every episode (``hdl.kit.episodes``) at each of ``hdl.kit.sequencer.FLOWS``: at
full rate, and with pseudo-random idle and stall cycles. It prints one line ``PASS NAME: ...`` and
ends. Or it prints ``FAIL NAME: ...`` after the reasons and stops, which gives simulators an exit
status.
"""

from collections.abc import Iterator, Mapping, Sequence

from hdl.back.licence import LICENCE
from hdl.kit.bench import Bench, BenchStream
from hdl.kit.bench_modules import HOLD, MEMORY, SINK, SOURCE
from hdl.kit.episodes import Memory, Vectors
from hdl.kit.sequencer import is_equal, sequencer, state
from hdl.kit.vector_files import vector_files


def bench_files(
    description: Mapping, vectors: Vectors, names: Mapping[str, str] | None = None
) -> dict[str, str]:
    """File's name -> its text: the testbench of the block, and its words.

    names: port -> its name in the module, where that is another.
    ValueError: vectors that do not fit the block.
    """
    bench = Bench(description, vectors)
    return {f"{bench.name}.v": "\n".join([*_text(bench, names or {}), ""])} | vector_files(bench)


def _seed(name: str) -> int:
    """A number other than 0 that depends on the name alone (FNV-1a)."""
    value = 2166136261
    for letter in name.encode():
        value = (value ^ letter) * 16777619 & 0xFFFFFFFF
    return value or 1


def _text(bench: Bench, names: Mapping[str, str]) -> Iterator[str]:
    yield f"// {LICENCE}"
    yield f"// {bench.name}: testbench of {bench.block}. The expected words are those of"
    yield f"// {bench.vectors.golden}. It reads them from the folder vectors."
    yield "/* verilator lint_off WIDTH */"
    yield "/* verilator lint_off DECLFILENAME */"
    yield "/* verilator lint_off UNSIGNED */"
    yield f"module {bench.name};"
    yield from _declarations(bench)
    yield ""
    yield from _block(bench, names)
    for stream in bench.sources:
        yield from _source(bench, stream)
    for stream in bench.sinks:
        yield from _sink(bench, stream)
    for stream in _driven(bench):
        yield from _hold(bench, stream)
    for memory in bench.memories:
        yield from _memory(bench, memory)
    yield ""
    yield from sequencer(bench, _parts(bench))
    yield "endmodule"
    for module in (SOURCE, SINK, HOLD, *([MEMORY] if bench.memories else [])):
        yield ""
        yield module.replace("module @", f"module {bench.name}").rstrip()


def _parts(bench: Bench) -> list[str]:
    """Names of what moves words: streams and memories."""
    names = [stream.name for stream in bench.streams]
    return names + [f"{memory.bus}_memory" for memory in bench.memories]


def _driven(bench: Bench) -> list[BenchStream]:
    """Streams of which the block drives valid."""
    return [each for each in bench.all_streams if not each.is_source and each.valid]


def _declarations(bench: Bench) -> Iterator[str]:
    yield state(bench)
    for stream in bench.all_streams:
        yield f"  wire [{stream.width - 1}:0] {stream.name}_payload;"
        yield f"  wire {stream.name}_valid, {stream.name}_ready;"
    for part in _parts(bench):
        yield f"  wire {part}_complete, {part}_failed;"
        yield f"  wire [31:0] {part}_moved;"
    for stream in _driven(bench):
        yield f"  wire {stream.name}_broken;"
    for kind, ports, above in (("reg", bench.inputs, 1), ("wire", bench.outputs, 0)):
        for port in ports:
            yield f"  {kind} [{port['width'] - 1}:0] port_{port['name']};"
            yield f"  reg [{port['width'] - above}:0] values_{port['name']}[0:EPISODES];"
    complete = [f"{name}_complete" for name in _parts(bench)]
    broken = ["unread", *(f"{name}_failed" for name in _parts(bench))]
    broken += [f"{stream.name}_broken" for stream in _driven(bench)]
    yield f"  wire all_complete = {' && '.join(complete) or 1};"
    equal = [f"({is_equal(port['name'], port['width'])})" for port in bench.outputs]
    if equal:
        yield f"  wire all_equal = {' && '.join(equal)};"
    yield f"  wire any_failed = {' || '.join(broken)};"


def _block(bench: Bench, names: Mapping[str, str]) -> Iterator[str]:
    """The block, and the ends of handshakes that it lacks."""
    connections = [(name, name) for name in ("clk", "rst") if name in bench.ports]
    for stream in bench.all_streams:
        connections += stream.ports()
    plain = (*bench.inputs, *bench.outputs)
    connections += [(port["name"], f"port_{port['name']}") for port in plain]
    yield f"  {bench.block} dut("
    yield ",\n".join(f"      .{names.get(port, port)}({signal})" for port, signal in connections)
    yield "  );"
    for stream in bench.all_streams:
        if stream.is_source and not stream.ready:
            yield f"  assign {stream.name}_ready = 1'b1;"
        if not stream.is_source and not stream.valid:
            yield f"  assign {stream.name}_valid = 1'b1;"
        if not stream.is_source and not stream.payload:
            yield f"  assign {stream.name}_payload = 1'b0;"


def _instance(module: str, name: str, parameters: Mapping, ports: Mapping) -> Iterator[str]:
    yield f"  {module} #("
    yield ",\n".join(f"      .{each}({value})" for each, value in parameters.items())
    yield f"  ) {name}("
    yield ",\n".join(f"      .{each}({value})" for each, value in ports.items())
    yield "  );"


_CONTROL = {name: name for name in ("clk", "restart", "scramble", "running", "episode")}


def _common(bench: Bench, stream: BenchStream) -> tuple[dict, dict]:
    """(parameters, ports) that a source and a sink have."""
    name = stream.name
    words = sum(len(episode.words.get(name, ())) for episode in bench.episodes)
    parameters = {
        "WIDTH": stream.width,
        "WORDS": max(words, 1),
        "EPISODES": "EPISODES",
        "SEED": f"32'h{_seed(name):08x}",
        "FILE": f'"{bench.file(name)}"',
        "ENDS": f'"{bench.file(f"{name}.ends")}"',
        "NAME": f'"{name}"',
    }
    ends = ("valid", "ready", "payload", "complete", "moved", "failed")
    return parameters, _CONTROL | {end: f"{name}_{end}" for end in ends}


def _source(bench: Bench, stream: BenchStream) -> Iterator[str]:
    parameters, ports = _common(bench, stream)
    ports["idle"] = "idle"
    yield from _instance(f"{bench.name}_source", f"{stream.name}_source", parameters, ports)


def _sink(bench: Bench, stream: BenchStream) -> Iterator[str]:
    parameters, ports = _common(bench, stream)
    parameters["MASKS"] = f'"{bench.file(f"{stream.name}.masks")}"'
    ports |= {"stall": "stall", "late": "late"} if stream.ready else {"stall": 0, "late": "1'b0"}
    yield from _instance(f"{bench.name}_sink", f"{stream.name}_sink", parameters, ports)


def _hold(bench: Bench, stream: BenchStream) -> Iterator[str]:
    parameters = {"WIDTH": stream.width, "NAME": f'"{stream.name}"'}
    ports = {"clk": "clk", "reset": "rst", "failed": f"{stream.name}_broken"}
    ports |= {end: f"{stream.name}_{end}" for end in ("valid", "ready", "payload")}
    yield from _instance(f"{bench.name}_hold", f"{stream.name}_hold", parameters, ports)


_ADDRESS = ("addr", "len", "size", "burst", "id")
_CHANNELS = {  # of AXI4 -> fields that the memory reads or drives
    "ar": _ADDRESS,
    "r": ("data", "resp", "last", "id"),
    "aw": _ADDRESS,
    "w": ("data", "strb", "last"),
    "b": ("resp", "id"),
}


def _channel(bench: Bench, bus: str, channel: str, fields: Sequence[str]) -> dict[str, str]:
    """Connections of one channel of a memory; a channel that the block lacks is quiet."""
    stream = f"{bus}__{channel}"
    if stream not in bench.channels:
        end = "valid" if channel in ("ar", "aw", "w") else "ready"
        other = "ready" if end == "valid" else "valid"
        names = [other, *fields]
        return {f"{channel}_{end}": "1'b0"} | {f"{channel}_{name}": "" for name in names}
    found = {f"{channel}_{end}": f"{stream}_{end}" for end in ("valid", "ready")}
    places = bench.fields(stream)
    for name in fields:
        offset, width = places[name]
        found[f"{channel}_{name}"] = f"{stream}_payload[{offset}+:{width}]"
    return found


def _memory(bench: Bench, memory: Memory) -> Iterator[str]:
    bus, bits = memory.bus, bench.data_bits(memory)
    address = next(name for name in ("ar", "aw") if f"{bus}__{name}" in bench.channels)
    fields = bench.fields(f"{bus}__{address}")

    def file(name: str, is_there: bool) -> str:
        return f'"{bench.file(f"{bus}.{name}") if is_there else ""}"'

    parameters = {
        "ADDRESS": fields["addr"][1],
        "DATA": bits,
        "IDS": fields["id"][1],
        "SHIFT": (bits // 8).bit_length() - 1,
        "WORDS": memory.words,
        "LOW": f"64'h{memory.low:x}",
        "EPISODES": "EPISODES",
        "SEED": f"32'h{_seed(bus):08x}",
        "IMAGE": file("image", bool(memory.image)),
        "FINAL": file("final", bool(memory.final)),
        "FAULTS": file("faults", True),
        "NAME": f'"{bus}"',
    }
    ports = {name: name for name in ("clk", "restart", "scramble", "compare", "episode")}
    ports |= {"reset": "rst", "idle": "idle", "stall": "stall"}
    for channel, names in _CHANNELS.items():
        ports |= _channel(bench, bus, channel, names)
    ports |= {end: f"{bus}_memory_{end}" for end in ("complete", "moved", "failed")}
    yield from _instance(f"{bench.name}_memory", f"{bus}_memory", parameters, ports)
