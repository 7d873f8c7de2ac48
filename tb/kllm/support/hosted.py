"""A token of a small model whose host attends, as one program."""

from golden.kllm.config import MachineConfig
from golden.kllm.model.hosted import HostedModel
from golden.kllm.programs import Program
from golden.llm.kllm.example import hosted_model


def hosted_program(config: MachineConfig, tokens: list[int], layers: int = 2) -> Program:
    """The last of ``tokens``: golden's words, and the memories with what the host has written."""
    _, image = hosted_model(config, layers)
    model = HostedModel(image)
    for token in tokens:
        made = model.step(token)
    return Program(
        words=made.words, data=made.data, weights=[port.copy() for port in image.ports],
        data_faults=set(), weight_faults=[set() for _ in image.ports], results=made.results,
        readback=made.readback, vector=model.machine.vector,
    )  # fmt: skip
