"""The memories of a model."""

import dataclasses
from typing import Any

import numpy as np
import torch
from torch import Tensor

from golden.index.nearest import midpoints
from golden.kllm.config import MachineConfig
from golden.kllm.isa import ROW_ELEMENTS
from golden.kllm.layer.compiler import (
    check_layer_widths,
    constants,
    write_image,
    write_vectors,
    write_weights,
)
from golden.kllm.model.layout import ModelLayout
from golden.kllm.model.quantized import QuantizedModel
from golden.kllm.vectors.requests import codebook_packet


@dataclasses.dataclass(frozen=True)
class ModelImage:
    """Bytes of the data memory and of each port's memory.

    thresholds: (layers, 2, 4) FP16 words of the pages.
    """

    layout: ModelLayout
    data: np.ndarray
    ports: list[np.ndarray]
    thresholds: Tensor


def compile_model(model: QuantizedModel, layout: ModelLayout) -> ModelImage:
    """The memories. Uses up ``model.layers``.

    ConfigError: a layer of other widths than the machine; a codebook that half packets refuse.
    """
    config: MachineConfig = layout.config
    rows = np.zeros((layout.rows, ROW_ELEMENTS), dtype="<u2")
    ports = [
        np.zeros(layout.words * config.port_bits // 8, np.uint8) for _ in range(config.ports.ports)
    ]
    thresholds: list[Tensor] = []
    for memory, layer in zip(layout.layers, model.layers, strict=True):
        check_layer_widths(layer, config)
        thresholds.append(layer.thresholds)
        write_vectors(rows, memory.place, constants(layer, config))
        write_weights(ports, config, memory.image, layer)
    head = model.head
    assert layout.head.residual is not None
    for address, weight in (
        (layout.head.weights, head.weight), (layout.head.residual, head.residual)
    ):  # fmt: skip
        write_image(ports, config, address, weight.index, weight.scale)
    packet = codebook_packet(
        head.codebook, head.weight.codebook, config.product, config.antisymmetric
    )
    place = {
        "codebook": (layout.head.codebook, 2),
        "packet": (layout.head.packet, -(-config.kmeans_words // ROW_ELEMENTS)),
    }
    made: dict[str, list[Any]] = {
        "codebook": [head.codebook, midpoints(head.codebook)],
        "packet": [packet],
    }
    write_vectors(rows, place, made)
    tables = {layout.embedding: model.embedding}
    tables |= {first: model.table(name) for name, (first, _rows) in layout.angles.items()}
    for first, table in tables.items():
        count, length = table.shape
        stride = -(-length // ROW_ELEMENTS)
        flat = rows[first : first + count * stride].reshape(count, -1)
        flat[:, :length] = table.numpy()
    return ModelImage(layout, rows.reshape(-1).view(np.uint8), ports, torch.stack(thresholds))
