"""A model on an accelerator without a unit CACHE: the host has K and V, and attends.

A pass takes one token. In each layer the accelerator gives v, and k and q rotated. There a part of
the program ends. The host attends and writes the result into the data memory. Then the next part
begins. All other arithmetic of the model is the accelerator's.
"""

import dataclasses

import numpy as np
import torch
from torch import Tensor

from golden.kllm.isa import ROW_BYTES, ROW_ELEMENTS, Unit, row_count
from golden.kllm.layer.host import run_commands
from golden.kllm.layer.layout import Job
from golden.kllm.layer.shape import LayerShape
from golden.kllm.machine import Result
from golden.kllm.model.compiler import ModelImage
from golden.kllm.model.host import ModelMachine, logits_of
from golden.kllm.model.program import PassProgram, pass_program


def attend(shape: LayerShape, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of one token in float64, each element rounded once to FP16.

    q : (heads, head_size) with the scaling of scores; k, v : (T, kv_heads, head_size), the token's
        own last; all FP16. Result: (heads, head_size) FP16
    """
    of_head = torch.arange(shape.heads) // shape.group
    scores = torch.einsum("hd,thd->ht", q.double(), k[:, of_head].double())
    if shape.window:
        scores = scores[:, -shape.window :]
        v = v[-shape.window :]
    if shape.cap:
        scores = shape.cap * torch.tanh(scores / shape.cap)
    given = torch.einsum("ht,thd->hd", scores.softmax(dim=-1), v[:, of_head].double())
    return given.half()


@dataclasses.dataclass(frozen=True)
class HostedPass:
    """A pass as the accelerator sees it: a program, and a data memory that does not change.

    program : its words; data : with what the host writes in this pass, each layer's in its rows
    results, readback : of all parts; logits : (vocabulary,) FP16 words
    """

    program: PassProgram
    words: list[int]
    data: np.ndarray
    results: list[Result]
    readback: list[int]
    logits: Tensor


class HostedModel:
    """The golden machine with a model's memories, and the host's K and V of one sequence."""

    def __init__(self, image: ModelImage) -> None:
        self.layout = image.layout
        if not self.layout.options.by_host:
            raise ValueError("attention must be host for a model without a unit CACHE")
        shape = self.layout.shape
        self.machine = ModelMachine(self.layout.config, np.array(image.data), image.ports)
        self.keys: list[list[Tensor]] = [[] for _ in range(shape.layers)]
        self.values: list[list[Tensor]] = [[] for _ in range(shape.layers)]

    @property
    def context(self) -> int:
        """Tokens of the sequence so far."""
        return len(self.keys[0])

    def step(self, token: int) -> HostedPass:
        """One more token. ArithmeticError: a command failed, named with its status."""
        program = pass_program(self.layout, Job(1, self.context))
        words, machine = program.with_tokens([token]), self.machine
        machine.issued = dict.fromkeys(Unit, 0)
        results: list[Result] = []
        readback: list[int] = []
        begin = 0
        for number, end in enumerate(program.ends):
            results += run_commands(machine, words[begin:end])
            readback += machine.readback
            if number < len(program.ends) - 1:
                self._attended(number, machine.readback)
            begin = end
        logits = logits_of(program, machine.readback)[0]
        data = np.array(machine.data.data)
        return HostedPass(program, words, data, results, readback, logits)

    def _attended(self, layer: int, found: list[int]) -> None:
        """Keeps v and k of a layer, attends with q, and writes the result into the layer's rows."""
        shape = self.layout.shape.layer_of(layer)
        pairs = np.asarray(found, dtype=np.uint32).view("<u2").view(np.float16)
        size, at, parts = shape.head_size, 0, []
        for heads in (shape.kv_heads, shape.kv_heads, shape.heads):
            count = heads * size
            parts.append(torch.tensor(pairs[at : at + count].reshape(heads, size)))
            at += row_count(count) * ROW_ELEMENTS
        v, k, q = parts
        self.keys[layer].append(k)
        self.values[layer].append(v)
        given = attend(shape, q, torch.stack(self.keys[layer]), torch.stack(self.values[layer]))
        first, rows = self.layout.layers[layer].place["attention"]
        flat = np.zeros(rows * ROW_ELEMENTS, dtype="<u2")
        flat[: given.numel()] = given.flatten().numpy().view(np.uint16)
        memory = self.machine.data.data
        memory[first * ROW_BYTES : (first + rows) * ROW_BYTES] = flat.view(np.uint8)
