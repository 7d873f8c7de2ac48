"""Jobs of KllmWeightSupply, and its words on every stream and in every memory."""

import dataclasses

from golden.kllm.format import beats, groups
from golden.kllm.image import supply, weight_image
from golden.words import join, layout_word


@dataclasses.dataclass
class Job:
    length: int
    outputs: int
    tokens: int
    fold: bool
    address: int = 0
    faulty: tuple[int, ...] = ()  # ports whose final word comes with an error
    refused: bool = False


def supply_words(config, jobs, rng):
    """Words of every stream but the ports', and per port the requests' words and the memory."""
    layout = config.ports.layout(config.lane)
    word_bytes = config.ports.bits // 8
    words: dict[str, list] = {
        f"{name}_{lane}": [] for name in ("w", "s_b") for lane in range(config.lane.lanes)
    }
    words |= {f"read_{port}": [] for port in range(config.ports.ports)}
    words |= {"job": [], "rms": [], "done": []}
    words["counts"] = []  # of each job: words of each port
    memory: list[dict] = [{} for _ in range(config.ports.ports)]
    for job in jobs:
        count, group_count = (
            beats(job.length, config.lane.elements),
            groups(job.outputs, config.lane.group_outputs),
        )
        word = join(
            (job.address, config.address_bits), (count, config.length_bits), (group_count, 16),
            (job.tokens, 8), (int(job.fold), 1),
        )  # fmt: skip
        words["job"].append(word)
        rms = rng.integers(0x3D000000, 0x41000000, job.tokens)
        if job.fold:
            words["rms"] += rms.tolist()
        if job.refused:
            words["done"].append(0b10)
            words["counts"].append([0] * config.ports.ports)
            continue
        index = rng.integers(0, 1 << config.lane.bits_b, (job.length, job.outputs))
        scale = rng.integers(0, 1 << 16, job.outputs)
        image = weight_image(index, scale, layout)
        words["counts"].append([held.size // word_bytes for held in image])
        any_error = False
        for port, held in enumerate(image):
            own = [int.from_bytes(row.tobytes(), "little") for row in held.reshape(-1, word_bytes)]
            for n, value in enumerate(own):
                error = port in job.faulty and n == len(own) - 1
                any_error |= error
                memory[port][job.address + n] = value, error
            if own:
                words[f"read_{port}"].append(
                    layout_word(config.read_layout, address=job.address, words=len(own))
                )
        words["done"].append(int(any_error))
        given = supply(
            image, job.length, job.outputs, layout, job.tokens, rms if job.fold else None
        )
        for lane, (weight_beats, scales) in enumerate(given):
            top = config.buffer_config.beat_bits
            words[f"w_{lane}"] += [join((beat, top), (last, 1)) for beat, last in weight_beats]
            words[f"s_b_{lane}"] += scales.tolist()
    return words, memory
