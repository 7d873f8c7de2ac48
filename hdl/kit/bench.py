"""The block and the vectors of one testbench, as both its text and its files see them."""

from collections.abc import Mapping, Sequence

from hdl.kit.episodes import Episode, Memory, Vectors


class BenchStream:
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


class Bench:
    """The words that the testbench drives and compares.

    ``channels`` are the streams of the buses that a memory answers, ``streams`` all others.
    ``inputs`` and ``outputs`` are ports without a handshake.

    ValueError: an episode names what the block lacks, or leaves out an input.
    """

    def __init__(self, description: Mapping, vectors: Vectors):
        self.block = description["name"]
        self.name = f"{self.block}_tb"
        self.vectors = vectors
        self.ports = {port["name"]: port for port in description["ports"]}
        widths = {name: port["width"] for name, port in self.ports.items()}
        streams = [BenchStream(each, widths) for each in description["streams"]]
        buses = {memory.bus for memory in vectors.memories}
        self.channels = {
            each.name: each for each in streams if each.name.rpartition("__")[0] in buses
        }
        self.streams = [each for each in streams if each.name not in self.channels]
        self.sources = [each for each in self.streams if each.is_source]
        self.sinks = [each for each in self.streams if not each.is_source]
        others = {port for each in streams for port, _ in each.ports()}
        plain = [
            port
            for port in description["ports"]
            if port["name"] not in others and port["role"] not in ("clock", "reset")
        ]
        self.inputs = [port for port in plain if port["direction"] == "input"]
        self.outputs = [port for port in plain if port["direction"] == "output"]
        self._check()

    @property
    def episodes(self) -> Sequence[Episode]:
        return self.vectors.episodes

    @property
    def memories(self) -> Sequence[Memory]:
        return self.vectors.memories

    @property
    def all_streams(self) -> list[BenchStream]:
        return [*self.streams, *self.channels.values()]

    def file(self, name: str) -> str:
        """Path of a file of vectors, from the folder of the kit."""
        return f"vectors/{self.name}.{name}.hex"

    def fields(self, channel: str) -> dict[str, tuple[int, int]]:
        """Name of each field of a channel's payload -> (offset, width)."""
        port = self.ports[self.channels[channel].payload]
        return {each["name"]: (each["offset"], each["width"]) for each in port["fields"]}

    def data_bits(self, memory: Memory) -> int:
        """Bits of a word of the memory. ValueError: its bus moves no data."""
        for channel in (f"{memory.bus}__r", f"{memory.bus}__w"):
            if channel in self.channels:
                return self.fields(channel)["data"][1]
        raise ValueError(f"{self.block}: {memory.bus} is no AXI4 manager")

    def _check(self) -> None:
        known = {
            "words": {each.name for each in self.streams},
            "masks": {each.name for each in self.sinks},
            "ports": {port["name"] for port in self.inputs},
            "outputs": {port["name"] for port in self.outputs},
            "faults": {memory.bus for memory in self.memories},
        }
        for episode in self.episodes:
            for field, names in known.items():
                wrong = sorted(set(getattr(episode, field)) - names)
                if wrong:
                    raise ValueError(f"{self.block}: {field} of {episode.name}: {wrong}")
            missing = sorted(known["ports"] - set(episode.ports))
            if missing:
                raise ValueError(f"{self.block}: ports of {episode.name} lack {missing}")
            for name, masks in episode.masks.items():
                if len(masks) != len(episode.words.get(name, ())):
                    raise ValueError(f"{self.block}: {episode.name}: {len(masks)} masks of {name}")
