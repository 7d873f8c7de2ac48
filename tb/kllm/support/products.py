"""Square products as tb_layer takes them: data, weights and programs. Before the simulation."""

import numpy as np
import torch

from golden.fp16.ops import bits_from_float
from golden.index.nearest import midpoints
from golden.kllm.config import MachineConfig
from golden.kllm.image import weight_image
from golden.kllm.machine import Machine
from golden.kllm.product import ProductCase, product_program
from golden.kllm.vectors.requests import codebook_packet

Cases = list[tuple[int, int, str]]  # tokens; tokens at a time; online or offline


def _rows(words: np.ndarray) -> bytes:
    padded = np.zeros(-(-len(words) // 16) * 16, dtype="<u2")
    padded[: len(words)] = words
    return padded.tobytes()


def product_parts(
    machine_config: MachineConfig, size: int, cases: Cases, norm: bool = False, part: int = 1
):
    """Data memory, weight memories, and programs for tb_layer: ``size`` x ``size`` products.

    The programs are golden.kllm.product's. norm: with RMS folded into the scales. part: only
    1/part of the outputs.
    """
    rng = np.random.default_rng(1)
    bits_a, bits_b = machine_config.bits_a, machine_config.bits_b
    books = [
        bits_from_float(torch.from_numpy(np.sort(rng.uniform(-1, 1, 1 << bits)))).numpy()
        for bits in (bits_a, bits_b)
    ]
    packet = codebook_packet(books[0], books[1])
    most = max(tokens for tokens, _, _ in cases)
    x = bits_from_float(torch.from_numpy(rng.standard_normal((most, size)))).numpy()
    outputs = size // part
    index = rng.integers(0, 1 << bits_b, (size, outputs))
    scale = bits_from_float(torch.from_numpy(rng.uniform(0.01, 0.02, outputs))).numpy()
    weights = weight_image(index, scale, machine_config.layout)
    data = b"".join(
        (_rows(books[0]), _rows(midpoints(torch.from_numpy(books[0])).numpy()), _rows(packet))
    )
    data += b"".join(_rows(token) for token in x)

    words = product_program(
        machine_config, size, outputs,
        [
            ProductCase(tokens=tokens, at_a_time=at_a_time, online=mode == "online", norm=norm)
            for tokens, at_a_time, mode in cases
        ],
    )  # fmt: skip
    machine = Machine(machine_config, np.frombuffer(data, dtype=np.uint8), weights)
    parts = []
    for program in words:
        results = machine.run(program)
        parts.append(
            {
                "words": program,
                "readback": machine.readback,
                "results": [(r.tag, int(r.unit), int(r.status)) for r in results],
            }
        )
    return data, [port.tobytes() for port in weights], parts
