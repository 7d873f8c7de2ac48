"""A model as the accelerator stores it: layers, embedding, head and angles."""

import dataclasses
from collections.abc import Iterator

from torch import Tensor

from golden.kllm.layer.quantized import QuantizedLayer
from golden.kllm.layer.shape import LayerOptions
from golden.kllm.model.layout import ModelShape, angle_names
from golden.kllm.quantize import QuantizedWeight


@dataclasses.dataclass(frozen=True)
class Head:
    """codebook: of the tokens before the final norm; weight: gamma of the norm in it.

    residual: what ``weight`` leaves, quantized with the same codebook; the products are added.
    """

    codebook: Tensor
    weight: QuantizedWeight
    residual: QuantizedWeight


@dataclasses.dataclass(frozen=True)
class QuantizedModel:
    """layers: made one by one, so that not all are in memory at once.

    embedding: (vocabulary, hidden) FP16 words; cos, sin: (context, head_size / 2) FP16 words.
    local: cos and sin of the layers in ``shape.local``, where there are such layers.
    """

    shape: ModelShape
    options: LayerOptions
    layers: Iterator[QuantizedLayer]
    embedding: Tensor
    head: Head
    cos: Tensor
    sin: Tensor
    local: tuple[Tensor, Tensor] | None = None

    def table(self, name: str) -> Tensor:
        """A table of angles by its name in ``ModelLayout.angles``."""
        both = dict(zip(angle_names(local=False), (self.cos, self.sin), strict=True))
        if self.local is not None:
            both |= zip(angle_names(local=True), self.local, strict=True)
        return both[name]
