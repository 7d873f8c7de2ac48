"""Kits of the AXI room: golden in plain Python, so they need no torch."""

import random

from golden.axi.format import CACHE_REGISTERS, REGISTERS, RESP_OKAY, RESP_SLVERR
from golden.axi.reference import RegisterModel, command_words, read_words, write_packet
from golden.words import join, layout_word
from hdl.axi.signature import axi_lite
from hdl.kit.episodes import Episode, Fault, Memory, Vectors
from hdl.kit.words import SEED, Kit, plain

_LOW, _BYTES = 0x10_0000, 0x4000  # the memory of the testbench: four pages of 4 KiB


def _image(config, rng: random.Random) -> list[int]:
    return [rng.getrandbits(config.data_bits) for _ in range(_BYTES // config.word_bytes)]


def _area(rng: random.Random, most: int) -> tuple[int, int]:
    """(address, bytes), 1..``most`` bytes in the memory."""
    count = rng.choice([1, most, rng.randint(1, most)])
    return _LOW + rng.randrange(_BYTES - count), count


def _read_port(config) -> Vectors:
    rng = random.Random(f"{SEED} read port")
    image, size = _image(config, rng), config.word_bytes
    fault = Fault(low=_LOW + 0x800, high=_LOW + 0x1800, response=RESP_SLVERR)
    episodes: list[Episode] = []
    for covers, faults in (("reads", {}), ("fault: SLVERR of some words", {"axi": fault})):

        def fetch(address: int, faults=faults) -> tuple[int, int]:
            refused = faults and fault.low <= address < fault.high
            return image[(address - _LOW) // size], RESP_SLVERR if refused else RESP_OKAY

        commands, words = [(0, 0)], []  # the first reads nothing
        for _ in range(40):
            address, count = _area(rng, min(60, (1 << config.length_bits) - 1) * size)
            commands.append((address, max(1, count // size)))
        for address, count in commands:
            for data, error, last in read_words(
                fetch, address, count, config.data_bits, config.address_bits
            ):
                answer = error << 1 if config.responses else error
                width = 2 if config.responses else 1
                words.append(join((data, config.data_bits), (answer, width), (last, 1)))
        layout = config.command_layout
        asked = [layout_word(layout, address=address, words=count) for address, count in commands]
        episodes.append(plain(covers, {"command": asked, "o": words}, faults=faults))
    memory = Memory(bus="axi", low=_LOW, words=len(image), image=dict(enumerate(image)))
    return Vectors(episodes=episodes, memories=[memory])


def _packet(config, rng: random.Random) -> list[tuple[int, int]]:
    """Commands (address, bytes) of one packet: all but the last end at a word."""
    size = config.word_bytes
    packet = []
    for _ in range(rng.choice([0, 0, 1, 2])):
        address, count = _area(rng, 20 * size)
        count += -(address + count) % size
        if address + count <= _LOW + _BYTES:
            packet.append((address, count))
    return [*packet, _area(rng, 40 * size)]


def _write_port(config) -> Vectors:
    rng = random.Random(f"{SEED} write port")
    size = config.word_bytes
    image = _image(config, rng)
    content = bytearray(b"".join(word.to_bytes(size, "little") for word in image))
    fault = Fault(low=_LOW + 0x800, high=_LOW + 0x1800, response=RESP_SLVERR)
    episodes = []
    for covers, faults in (("writes", {}), ("fault: SLVERR of some words", {"axi": fault})):
        words: dict[str, list[int]] = {"command": [], "i": [], "done": []}
        for _ in range(25):
            packet = _packet(config, rng)
            total = sum(count for _, count in packet)
            data = [rng.getrandbits(config.data_bits) for _ in range(-(-total // size))]
            written, _ = write_packet(packet, data, config.data_bits, config.address_bits)
            refused = [False] * len(packet)
            for n, ((address, count), pairs) in enumerate(zip(packet, written, strict=True)):
                address -= address % size if n else 0
                places = range(command_words(address, count, size))
                beats = [address - address % size + size * k for k in places]
                refused[n] = bool(faults) and any(fault.low <= b < fault.high for b in beats)
                for where, byte in pairs:
                    if not (faults and fault.low <= where - where % size < fault.high):
                        content[where - _LOW] = byte
            layout = config.command_layout
            words["command"] += [
                layout_word(layout, address=address, bytes=count, more=n != len(packet) - 1)
                for n, (address, count) in enumerate(packet)
            ]
            words["i"] += [
                layout_word(config.i_layout, data=word, last=n == len(data) - 1)
                for n, word in enumerate(data)
            ]
            words["done"] += [RESP_SLVERR if each else RESP_OKAY for each in refused]
        episodes.append(plain(covers, words, faults=faults))
    final = [int.from_bytes(content[n : n + size], "little") for n in range(0, len(content), size)]
    memory = Memory(
        bus="axi", low=_LOW, words=len(image), image=dict(enumerate(image)), final=final
    )
    return Vectors(episodes=episodes, memories=[memory])


def _lite_registers(config) -> Vectors:
    """One access after another: what is in the queues is then known."""
    rng = random.Random(f"{SEED} registers")
    model = RegisterModel(config.version, config.command_depth, config.cache_depth)
    is_cache = bool(config.cache_depth)
    known = {**REGISTERS, **(CACHE_REGISTERS if is_cache else {})}
    written = ("command", "request", "batch", "run") if is_cache else ("command",)
    pushed = {name: getattr(model, name) for name in written}
    popped = {"status": config.status_depth, "readback": config.readback_depth}
    popped |= dict.fromkeys(("answer", "result"), config.cache_depth) if is_cache else {}
    channels = {
        name: member.signature.members["payload"].shape
        for name, member in axi_lite(config.address_bits).members.items()
    }
    offsets = [register.offset for register in known.values()]
    episodes = []

    def step(covers: str, words: dict[str, list[int]]) -> None:
        ports = {"idle": model.idle}
        if is_cache:
            ports["counter"] = join(*((word, 32) for word in model.counter))
        episodes.append(plain(covers, words, ports=ports))

    def write(address: int, word: int, strobes: int = 0xF) -> None:
        answer = model.write(address, word, strobes)
        words = {
            "axil__aw": [layout_word(channels["aw"], addr=address)],
            "axil__w": [layout_word(channels["w"], data=[*word.to_bytes(4, "little")],
                                    strb=strobes)],
            "axil__b": [layout_word(channels["b"], resp=answer)],
            **{name: list(queue) for name, queue in pushed.items()},
        }  # fmt: skip
        for queue in pushed.values():
            queue.clear()  # the testbench has taken them
        step("a write" if answer == RESP_OKAY else "fault: a write that is refused", words)

    def read(address: int) -> None:
        word, answer = model.read(address)
        found = layout_word(channels["r"], data=[*word.to_bytes(4, "little")], resp=answer)
        words = {"axil__ar": [layout_word(channels["ar"], addr=address)], "axil__r": [found]}
        step("a read" if answer == RESP_OKAY else "fault: a read that is refused", words)

    for turn in range(3):
        model.idle = turn % 2
        model.counter = [rng.getrandbits(32) for _ in model.counter]
        for queue, depth in popped.items():
            words = [rng.getrandbits(32) for _ in range(min(depth, 1 + turn))]
            getattr(model, queue).extend(words)
            step(f"words for {queue.upper()}", {queue: words})
        for offset in (*offsets, *offsets, 4 * len(offsets)):
            read(offset | rng.getrandbits(2))
        for offset in (*offsets, 4 * len(offsets)):
            write(offset, rng.getrandbits(32))
        write(REGISTERS["COMMAND"].offset, rng.getrandbits(32), 0b0111)
    return Vectors(episodes=episodes)


KITS = {
    "axi_read_port": Kit(vectors=_read_port, shown="small"),
    "axi_write_port": Kit(vectors=_write_port, shown="small"),
    "axi_lite_registers": Kit(vectors=_lite_registers, shown="small"),
}
