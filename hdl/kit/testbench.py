"""NAME_tb.v and its vectors: a self-checking testbench in Verilog-2005, without Python.

The testbench runs every episode (``hdl.kit.episodes``) at each of FLOWS: at full rate, and with
pseudo-random idle and stall cycles. It prints one line ``PASS NAME: ...`` and ends, or it prints
``FAIL NAME: ...`` after the reasons and stops, which gives simulators an exit status.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

from hdl.kit.bench_modules import HOLD, MEMORY, SINK, SOURCE
from hdl.kit.episodes import Episode, Memory, Vectors

__all__ = ["FLOWS", "testbench"]

# Chances of an idle and of a stall cycle out of 256; whether a sink is ready only after valid.
FLOWS = ((0, 0, 0), (96, 96, 0), (32, 192, 1), (192, 32, 0))
SILENCE = 20_000  # cycles without a transfer that are a hang; the longest computation takes 8,192
LIVELOCK = 5_000_000  # cycles of one episode
SETTLE = 40  # cycles after the last word in which nothing may come


class _Stream:
    """A stream of the block, with the names of its ports; a missing port is constant."""

    def __init__(self, stream: Mapping, widths: Mapping[str, int]):
        self.name = stream["name"]
        self.is_source = stream["direction"] == "input"
        self.payload, self.valid = stream.get("payload"), stream.get("valid")
        self.ready = stream.get("ready")
        self.width = widths[self.payload] if self.payload else 1

    def ports(self) -> list[tuple[str, str]]:
        """(port of the block, signal of the testbench)."""
        named = {"payload": self.payload, "valid": self.valid, "ready": self.ready}
        return [(port, f"{self.name}_{end}") for end, port in named.items() if port]


def _hex(value: int, width: int) -> str:
    return f"{value:0{-(-width // 4)}x}"


def _seed(name: str, salt: int = 1) -> int:
    """A number other than 0 that depends on the name alone."""
    value = 2166136261 ^ salt
    for letter in name.encode():
        value = (value ^ letter) * 16777619 & 0xFFFFFFFF
    return value or 1


class _Bench:
    """One testbench: the description of the block, and its vectors."""

    def __init__(self, description: Mapping, vectors: Vectors):
        self.block = description["name"]
        self.name = f"{self.block}_tb"
        self.vectors = vectors
        self.ports = {port["name"]: port for port in description["ports"]}
        widths = {name: port["width"] for name, port in self.ports.items()}
        self.memories = list(vectors.memories)
        buses = tuple(f"{memory.bus}__" for memory in self.memories)
        streams = [_Stream(each, widths) for each in description["streams"]]
        self.channels = {each.name: each for each in streams if each.name.startswith(buses)}
        if not buses:
            self.channels = {}
        self.streams = [each for each in streams if each.name not in self.channels]
        of_streams = {port for each in streams for port, _ in each.ports()}
        plain = [port for name, port in self.ports.items() if name not in of_streams]
        plain = [port for port in plain if port["role"] not in ("clock", "reset")]
        self.inputs = [port for port in plain if port["direction"] == "input"]
        self.outputs = [port for port in plain if port["direction"] == "output"]
        self._check()

    @property
    def episodes(self) -> Sequence[Episode]:
        return self.vectors.episodes

    def _check(self) -> None:
        """ValueError: an episode names what the block lacks, or leaves out an input."""
        known = {
            "words": {each.name for each in self.streams},
            "masks": {each.name for each in self.streams if not each.is_source},
            "ports": {port["name"] for port in self.inputs},
            "outputs": {port["name"] for port in self.outputs},
            "faults": {memory.bus for memory in self.memories},
        }
        for episode in self.episodes:
            for field, names in known.items():
                wrong = set(getattr(episode, field)) - names
                if wrong:
                    raise ValueError(f"{self.block}: {field} of {episode.name}: {sorted(wrong)}")
            missing = known["ports"] - set(episode.ports)
            if missing:
                raise ValueError(f"{self.block}: ports of {episode.name} lack {sorted(missing)}")

    # -- files ------------------------------------------------------------------------------
    def files(self) -> dict[str, str]:
        found = {f"{self.name}.v": "\n".join([*self._text(), ""])}
        for stream in self.streams:
            found |= self._stream_files(stream)
        for port in self.inputs:
            found[self._file(port["name"])] = self._lines(
                _hex(episode.ports[port["name"]], port["width"]) for episode in self.episodes
            )
        for port in self.outputs:
            found[self._file(port["name"])] = self._lines(self._expected(port))
        for memory in self.memories:
            found |= self._memory_files(memory)
        found[self._file("resets")] = self._lines(
            str(int(episode.reset)) for episode in self.episodes
        )
        return found

    def _file(self, name: str) -> str:
        return f"vectors/{self.name}.{name}.hex"

    @staticmethod
    def _lines(values) -> str:
        return "".join(f"{value}\n" for value in values)

    def _expected(self, port: Mapping) -> Iterator[str]:
        """Value at the end of each episode; the bit above it says that it is compared."""
        for episode in self.episodes:
            value = episode.outputs.get(port["name"])
            check = 0 if value is None else 1 << port["width"] | value
            yield _hex(check, port["width"] + 1)

    def _stream_files(self, stream: _Stream) -> dict[str, str]:
        words, masks, ends = [], [], []
        for episode in self.episodes:
            sent = episode.words.get(stream.name, ())
            words += [_hex(word, stream.width) for word in sent]
            every = (1 << stream.width) - 1
            masks += [
                _hex(mask & every, stream.width)
                for mask in episode.masks.get(stream.name, [every] * len(sent))
            ]
            ends.append(_hex(len(words), 32))
        if len(masks) != len(words):
            raise ValueError(f"{self.block}: {len(words)} words and {len(masks)} masks")
        blank = [_hex(0, stream.width)]
        found = {
            self._file(stream.name): self._lines(words or blank),
            self._file(f"{stream.name}.ends"): self._lines(ends),
        }
        if not stream.is_source:
            found[self._file(f"{stream.name}.masks")] = self._lines(masks or blank)
        return found

    def _memory_files(self, memory: Memory) -> dict[str, str]:
        faults = [episode.faults.get(memory.bus) for episode in self.episodes]
        numbers = [
            (fault.low, fault.high, fault.response) if fault else (0, 0, 0) for fault in faults
        ]
        found = {
            self._file(f"{memory.bus}.faults"): self._lines(
                _hex(each, 64) for numbers_of in numbers for each in numbers_of
            )
        }
        if memory.image:
            bits = self._data_bits(memory)
            lines, after = [], None
            for place, word in sorted(memory.image.items()):
                lines += [f"@{place:x}"] if place != after else []
                lines.append(_hex(word, bits))
                after = place + 1
            found[self._file(f"{memory.bus}.image")] = self._lines(lines)
        if memory.final:
            bits = self._data_bits(memory)
            words = self._lines(_hex(word, bits) for word in memory.final)
            found[self._file(f"{memory.bus}.final")] = words
        return found

    # -- text -------------------------------------------------------------------------------
    def _text(self) -> Iterator[str]:
        yield f"// {self.name}: testbench of {self.block}. The expected words are those of"
        yield f"// {self.vectors.golden}. It reads them from the folder vectors."
        yield "/* verilator lint_off WIDTH */"
        yield "/* verilator lint_off DECLFILENAME */"
        yield f"module {self.name};"
        yield from self._declarations()
        yield from self._instances()
        yield from self._sequencer()
        yield "endmodule"
        modules = [SOURCE, SINK, HOLD, *([MEMORY] if self.memories else [])]
        for module in modules:
            yield ""
            yield module.replace("module @", f"module {self.name}").rstrip()

    def _sources(self) -> list[_Stream]:
        return [stream for stream in self.streams if stream.is_source]

    def _sinks(self) -> list[_Stream]:
        return [stream for stream in self.streams if not stream.is_source]

    def _parts(self) -> list[str]:
        """Names of what moves words: streams and memories."""
        names = [stream.name for stream in self.streams]
        return names + [f"{memory.bus}_memory" for memory in self.memories]

    def _declarations(self) -> Iterator[str]:
        count = len(self.episodes)
        yield f"  localparam EPISODES = {count};"
        yield f"  localparam FLOWS = {len(FLOWS)};"
        yield f"  localparam SETTLE = {SETTLE};  // cycles in which nothing more may come"
        yield f"  localparam SILENCE = {SILENCE};  // cycles without a transfer: a hang"
        yield f"  localparam LIVELOCK = {LIVELOCK};  // cycles of an episode"
        yield "  reg clk, rst, restart, scramble, running, late, ended, compare;"
        yield "  reg [31:0] episode, idle, stall, flow, moved, first, earlier, quiet, silent, cycles, total;"
        yield "  reg resets[0:EPISODES-1];"
        yield "  integer n;"
        for stream in (*self.streams, *self.channels.values()):
            yield f"  wire [{stream.width - 1}:0] {stream.name}_payload;"
            yield f"  wire {stream.name}_valid, {stream.name}_ready;"
        for part in self._parts():
            yield f"  wire {part}_complete, {part}_failed;"
            yield f"  wire [31:0] {part}_moved;"
        for name in self._holding():
            yield f"  wire {name}_broken;"
        for port in self.inputs:
            yield f"  reg [{port['width'] - 1}:0] port_{port['name']};"
            yield f"  reg [{port['width'] - 1}:0] values_{port['name']}[0:EPISODES-1];"
        for port in self.outputs:
            yield f"  wire [{port['width'] - 1}:0] port_{port['name']};"
            yield f"  reg [{port['width']}:0] values_{port['name']}[0:EPISODES-1];"
        yield f"  wire all_complete = {' && '.join(f'{n}_complete' for n in self._parts()) or 1};"
        broken = [f"{name}_failed" for name in self._parts()]
        broken += [f"{name}_broken" for name in self._holding()]
        yield f"  wire any_failed = {' || '.join(broken) or 0};"

    def _holding(self) -> list[str]:
        """Streams of which the block drives valid."""
        streams = [*self._sinks(), *self.channels.values()]
        return [each.name for each in streams if not each.is_source and each.valid]

    def _instances(self) -> Iterator[str]:
        yield ""
        yield f"  {self.block} dut("
        connections = [(name, name[:3]) for name in ("clk", "rst") if name in self.ports]
        for stream in (*self.streams, *self.channels.values()):
            connections += stream.ports()
        connections += [
            (port["name"], f"port_{port['name']}") for port in (*self.inputs, *self.outputs)
        ]
        yield ",\n".join(f"      .{port}({signal})" for port, signal in connections)
        yield "  );"
        for stream in (*self.streams, *self.channels.values()):
            yield from self._constants(stream)
        for stream in self._sources():
            yield from self._source(stream)
        for stream in self._sinks():
            yield from self._sink(stream)
        for name in self._holding():
            stream = next(s for s in (*self.streams, *self.channels.values()) if s.name == name)
            yield f"  {self.name}_hold #("
            yield f'      .WIDTH({stream.width}), .NAME("{name}")'
            yield f"  ) {name}_hold("
            yield f"      .clk(clk), .reset(rst), .valid({name}_valid), .ready({name}_ready),"
            yield f"      .payload({name}_payload), .failed({name}_broken)"
            yield "  );"
        for memory in self.memories:
            yield from self._memory(memory)

    @staticmethod
    def _constants(stream: _Stream) -> Iterator[str]:
        """The ends of a handshake that the block lacks."""
        if stream.is_source and not stream.ready:
            yield f"  assign {stream.name}_ready = 1'b1;"
        if not stream.is_source and not stream.valid:
            yield f"  assign {stream.name}_valid = 1'b1;"
        if not stream.is_source and not stream.payload:
            yield f"  assign {stream.name}_payload = 1'b0;"

    def _parameters(self, name: str, width: int, masks: bool) -> str:
        words = sum(len(episode.words.get(name, ())) for episode in self.episodes)
        lines = [
            f"      .WIDTH({width}), .WORDS({max(words, 1)}), .EPISODES(EPISODES),",
            f"      .SEED(32'h{_seed(name):08x}),",
            f'      .FILE("{self._file(name)}"),',
            *([f'      .MASKS("{self._file(f"{name}.masks")}"),'] if masks else []),
            f'      .ENDS("{self._file(f"{name}.ends")}"), .NAME("{name}")',
        ]
        return "\n".join(lines)

    def _source(self, stream: _Stream) -> Iterator[str]:
        name = stream.name
        yield f"  {self.name}_source #("
        yield self._parameters(name, stream.width, masks=False)
        yield f"  ) {name}_source("
        yield "      .clk(clk), .restart(restart), .scramble(scramble), .running(running),"
        yield f"      .episode(episode), .idle(idle), .ready({name}_ready), .valid({name}_valid),"
        yield f"      .payload({name}_payload), .complete({name}_complete), .moved({name}_moved),"
        yield f"      .failed({name}_failed)"
        yield "  );"

    def _sink(self, stream: _Stream) -> Iterator[str]:
        name = stream.name
        stall, late = ("stall", "late") if stream.ready else ("32'd0", "1'b0")
        yield f"  {self.name}_sink #("
        yield self._parameters(name, stream.width, masks=True)
        yield f"  ) {name}_sink("
        yield "      .clk(clk), .restart(restart), .scramble(scramble), .running(running),"
        yield f"      .episode(episode), .stall({stall}), .late({late}), .valid({name}_valid),"
        yield f"      .payload({name}_payload), .ready({name}_ready), .complete({name}_complete),"
        yield f"      .moved({name}_moved), .failed({name}_failed)"
        yield "  );"

    # -- memories ---------------------------------------------------------------------------
    def _fields(self, channel: str) -> dict[str, tuple[int, int]]:
        port = self.ports[self.channels[channel].payload]
        return {each["name"]: (each["offset"], each["width"]) for each in port["fields"]}

    def _data_bits(self, memory: Memory) -> int:
        for channel, field in (("r", "data"), ("w", "data")):
            if f"{memory.bus}__{channel}" in self.channels:
                return self._fields(f"{memory.bus}__{channel}")[field][1]
        raise ValueError(f"{self.block}: {memory.bus} is no AXI4 manager")

    def _channel(self, bus: str, channel: str, names: Sequence[str]) -> Iterator[str]:
        """Connections of one channel of a memory; a channel that the block lacks is quiet."""
        stream = f"{bus}__{channel}"
        is_there, quiet = stream in self.channels, "1'b0"
        driven = "valid" if channel in ("ar", "aw", "w") else "ready"
        other = "ready" if driven == "valid" else "valid"
        yield f".{channel}_{driven}({f'{stream}_{driven}' if is_there else quiet})"
        yield f".{channel}_{other}({f'{stream}_{other}' if is_there else ''})"
        fields = self._fields(stream) if is_there else {}
        for name in names:
            place = ""
            if is_there:
                offset, width = fields[name]
                place = f"{stream}_payload[{offset}+:{width}]"
            yield f".{channel}_{name}({place})"

    def _memory(self, memory: Memory) -> Iterator[str]:
        bus, bits = memory.bus, self._data_bits(memory)
        part = f"{bus}_memory"
        first = next(name for name in ("ar", "aw") if f"{bus}__{name}" in self.channels)
        fields = self._fields(f"{bus}__{first}")
        image = self._file(f"{bus}.image") if memory.image else ""
        final = self._file(f"{bus}.final") if memory.final else ""
        yield f"  {self.name}_memory #("
        yield f"      .ADDRESS({fields['addr'][1]}), .DATA({bits}), .IDS({fields['id'][1]}),"
        yield f"      .SHIFT({int(math.log2(bits // 8))}), .WORDS({memory.words}),"
        yield f"      .LOW(64'h{memory.low:x}), .EPISODES(EPISODES),"
        yield f'      .SEED(32\'h{_seed(bus):08x}), .IMAGE("{image}"),'
        yield f'      .FINAL("{final}"),'
        yield f'      .FAULTS("{self._file(f"{bus}.faults")}"), .NAME("{bus}")'
        yield f"  ) {part}("
        yield "      .clk(clk), .restart(restart), .scramble(scramble), .reset(rst),"
        yield "      .compare(compare), .episode(episode), .idle(idle), .stall(stall),"
        address = ("addr", "len", "size", "burst", "id")
        connections = [
            *self._channel(bus, "ar", address),
            *self._channel(bus, "r", ("data", "resp", "last", "id")),
            *self._channel(bus, "aw", address),
            *self._channel(bus, "w", ("data", "strb", "last")),
            *self._channel(bus, "b", ("resp", "id")),
        ]
        yield "".join(f"      {each},\n" for each in connections).rstrip()
        yield f"      .complete({part}_complete), .moved({part}_moved), .failed({part}_failed)"
        yield "  );"

    # -- sequencer --------------------------------------------------------------------------
    def _sequencer(self) -> Iterator[str]:
        for lines in (self._run(), self._tasks()):
            yield ""
            yield from lines

    def _run(self) -> Iterator[str]:
        flows = [f"{n}: begin idle = {i}; stall = {s}; late = {late}; end"
                 for n, (i, s, late) in enumerate(FLOWS)]  # fmt: skip
        yield "  always #5 clk = !clk;"
        yield ""
        yield "  initial begin"
        yield f'    $readmemh("{self._file("resets")}", resets);'
        for port in (*self.inputs, *self.outputs):
            yield f'    $readmemh("{self._file(port["name"])}", values_{port["name"]});'
        yield "    clk = 1'b0; rst = 1'b1; restart = 1'b1; scramble = 1'b1; running = 1'b0;"
        yield "    late = 1'b0; ended = 1'b0; compare = 1'b0; episode = 0; idle = 0; stall = 0; total = 0;"
        yield "    first = 0; earlier = 0; moved = 0; quiet = 0; silent = 0; cycles = 0;"
        for port in self.inputs:
            yield f"    port_{port['name']} = values_{port['name']}[0];"
        yield "  end"
        yield ""
        yield "  // A block of its own: Verilator takes a value across the waits of one block."
        yield "  initial begin"
        yield "    #1;"
        yield "    for (flow = 0; flow < FLOWS && !ended; flow = flow + 1) begin"
        yield "      case (flow)"
        yield from (f"        {line}" for line in flows)
        yield "      endcase"
        yield "      for (episode = 0; episode < EPISODES && !ended; episode = episode + 1) begin"
        for port in self.inputs:
            yield f"        port_{port['name']} = values_{port['name']}[episode];"
        yield "        restart = episode == 0;"
        yield "        if (restart || resets[episode]) reset_block;"
        yield "        run_episode;"
        yield "      end"
        if any(memory.final for memory in self.memories):
            yield "      compare = 1'b1;"
            yield "      @(negedge clk); #1;"
            yield "      compare = 1'b0;"
            yield "      if (any_failed && !ended) give_up;"
        yield "    end"
        yield f'    if (!ended) $display("PASS {self.block}: %0d episodes at %0d flows, %0d transfers",'
        yield "                         EPISODES, FLOWS, total);"
        yield "    $finish;"
        yield "  end"

    def _tasks(self) -> Iterator[str]:
        transfers = " + ".join(f"{name}_moved" for name in self._parts()) or "0"
        yield "  // Junk on every input during the reset; the inputs are quiet in its last cycle."
        yield "  task reset_block;"
        yield "    begin"
        yield "      @(negedge clk); #1 rst = 1'b1; scramble = 1'b1;"
        yield "      repeat (3) @(negedge clk);"
        yield "      #1 scramble = 1'b0;"
        yield "      repeat (2) @(negedge clk);"
        yield "      #1 rst = 1'b0; restart = 1'b0;"
        yield "    end"
        yield "  endtask"
        yield ""
        yield "  task run_episode;"
        yield "    begin"
        yield "      running = 1'b1; quiet = 0; silent = 0; cycles = 0;"
        yield f"      first = {transfers};"
        yield "      earlier = first;"
        yield "      while (quiet < SETTLE && !ended) begin"
        yield "        @(negedge clk); #1;"
        yield f"        moved = {transfers};"
        yield "        silent = moved == earlier ? silent + 1 : 0;"
        yield "        earlier = moved;"
        yield "        cycles = cycles + 1;"
        yield "        quiet = all_complete ? quiet + 1 : 0;"
        yield "        if (any_failed) give_up;"
        yield "        else if (silent > SILENCE || cycles > LIVELOCK) begin"
        yield '          $display("%0t: no end", $time);'
        for stream in self.streams:
            yield f'          if (!{stream.name}_complete) $display("{stream.name}: %0d words moved", {stream.name}_moved);'
        yield "          give_up;"
        yield "        end"
        yield "      end"
        yield "      total = total + moved - first;"
        for port in self.outputs:
            name, width = port["name"], port["width"]
            yield f"      if (!ended && values_{name}[episode][{width}] &&"
            yield f"          port_{name} !== values_{name}[episode][{width - 1}:0]) begin"
            yield f'        $display("%0t: {name} is %h, golden %h", $time, port_{name},'
            yield f"                 values_{name}[episode][{width - 1}:0]);"
            yield "        give_up;"
            yield "      end"
        yield "      running = 1'b0;"
        yield "    end"
        yield "  endtask"
        yield ""
        yield "  task give_up;"
        yield "    begin"
        yield "      ended = 1'b1;"
        yield f'      $display("FAIL {self.block}: flow %0d, episode %0d, cycle %0d", flow, episode, cycles);'
        yield "      $stop;  // with vvp -N and in Verilator: an exit status"
        yield "    end"
        yield "  endtask"


def testbench(description: Mapping, vectors: Vectors) -> dict[str, str]:
    """File's name -> its text: the testbench of the block, and its words.

    ValueError: vectors that do not fit the block.
    """
    return _Bench(description, vectors).files()
