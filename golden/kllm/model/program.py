"""The commands that take some tokens through a whole model. Pure Python."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping

from golden.config import ConfigError
from golden.kllm.assembler import Assembler, AssemblyError, Vector
from golden.kllm.isa import COMMAND_WORDS, PROGRAM_MAX, Index, row_count
from golden.kllm.layer.layout import Job
from golden.kllm.layer.program import (
    Group,
    HeadResults,
    LayerCommands,
    check_layer,
    head_commands,
    head_step,
)
from golden.kllm.model.layout import HEAD_SHARE, ModelLayout, angle_names
from golden.kllm.model.order import group_sizes, stage_order

_ADDRESS_WORD = 4  # of LOAD


@dataclasses.dataclass(frozen=True)
class PassProgram:
    """words : of the commands, counted from the state after reset

    logits : of the last tokens whose logits are read
    ends : words up to the end of each part; before the next one the host attends
    The first ``job.tokens`` commands are the LOADs of the tokens.
    """

    layout: ModelLayout
    job: Job
    words: list[int]
    logits: int
    ends: tuple[int, ...] = ()

    def with_tokens(self, tokens: list[int]) -> list[int]:
        """The words, the LOADs with the addresses of these tokens."""
        if len(tokens) != self.job.tokens:
            raise ValueError(f"{self.job.tokens} tokens needed, not {len(tokens)}")
        words = list(self.words)
        for t, token in enumerate(tokens):
            words[t * COMMAND_WORDS + _ADDRESS_WORD] = self.layout.row_of_token(token)
        return words


def pass_program(
    layout: ModelLayout, job: Job, logits: int = 1, chooses: bool = False
) -> PassProgram:
    """``job`` of one sequence; ``logits`` of its last tokens are read.

    chooses: the accelerator chooses an id for each of them too, which follows the logits.

    ConfigError: a layer that the machine has no room for, a context that the memories have no room
    for; AssemblyError: no rows or slots left.
    """
    shape, config = layout.shape, layout.config
    if not 0 <= logits <= job.tokens:
        raise ConfigError(f"logits must be 0..{job.tokens} of one sequence, not {logits}")
    if job.attended > shape.context:
        raise ConfigError(f"context must be at most {shape.context}, not {job.attended}")
    check_layer(shape.widest, layout.options, config, job)
    asm = Assembler(config)
    x = asm.vector(shape.layer.hidden, job.tokens)
    for t in range(job.tokens):
        asm.load(address=layout.embedding, dst=x.token(t))
    for number in range(shape.layers):
        memory = layout.of_layer(number, job)
        group = Group(job.tokens)
        own = shape.layer_of(number)
        commands = LayerCommands(own, layout.options, group, memory, asm, number)
        commands.layer(x, chained=True)
    if logits:
        last = Vector(x.row + (job.tokens - logits) * x.stride, x.length, logits, x.stride)
        results = HeadResults(place=job.tokens - logits if chooses else None)
        head_commands(asm, shape.layer, layout.head, logits, HEAD_SHARE, last, results)
    ends = tuple(itertools.accumulate(map(len, asm.parts)))
    return PassProgram(layout, job, asm.words(), logits, ends)


@dataclasses.dataclass(frozen=True)
class StepProgram:
    """The words of one step: each place of the batch gets the next token of its sequence.

    The words name no token and no position, so every step of a model has the same.
    tokens : places 0 and on of the batch; logits : of them, those that get a token, the last ones
    """

    layout: ModelLayout
    tokens: int
    logits: int
    words: list[int]


def step_program(layout: ModelLayout, tokens: int = 1, logits: int | None = None) -> StepProgram:
    """logits: None: all. A prompt's tokens are places of one sequence, and one of them chooses.

    ConfigError: a machine that has no room for a layer or for ``tokens`` places; more commands than
    a program may have. AssemblyError: no rows or slots left.
    """
    shape, config = layout.shape, layout.config
    logits = tokens if logits is None else logits
    if not 1 <= tokens <= shape.context or not 0 <= logits <= tokens:
        raise ConfigError(f"logits must be 0..{tokens} of 1..{shape.context} tokens, not {logits}")
    job = Job(tokens, shape.context - tokens)  # the longest: no command depends on the context
    check_layer(shape.widest, layout.options, config, job)
    asm = Assembler(config)
    x = asm.vector(shape.layer.hidden, tokens)
    asm.load_at(
        address=layout.embedding, rows=row_count(shape.layer.hidden), index=Index.TOKEN,
        limit=shape.vocabulary, dst=x,
    )  # fmt: skip
    tables = {name: asm.vector(shape.layer.head_size // 2, tokens) for name in layout.angles}
    for name, (first, rows) in layout.angles.items():
        asm.load_at(
            address=first, rows=rows, index=Index.POSITION, limit=shape.context, dst=tables[name]
        )
    _layers(layout, job, asm, x, tables)
    asm.free(*tables.values())
    if logits:
        last = Vector(x.row + (tokens - logits) * x.stride, x.length, logits, x.stride)
        results = HeadResults(logits=False, place=tokens - logits)
        head_commands(asm, shape.layer, layout.head, logits, HEAD_SHARE, last, results)
    words = asm.words()
    if len(words) > PROGRAM_MAX * COMMAND_WORDS:  # experts take commands for each token
        raise ConfigError(
            f"a step of {tokens} tokens must have at most {PROGRAM_MAX} commands, "
            f"not {len(words) // COMMAND_WORDS}"
        )
    return StepProgram(layout, tokens, logits, words)


def _layers(
    layout: ModelLayout, job: Job, asm: Assembler, x: Vector, tables: Mapping[str, Vector]
) -> None:
    """The commands of all layers, in which the groups of tokens take turns.

    tables: the angles of all tokens, by the names of ``layout.angles``.
    """
    shape, sizes = layout.shape, group_sizes(job.tokens)

    def stages(group: int) -> Iterator[None]:
        count, first = sizes[group], sum(sizes[:group])
        own = Vector(x.row + first * x.stride, x.length, count, x.stride)
        for number in range(shape.layers):
            memory = layout.of_layer(number, job)
            one = shape.layer_of(number)
            cos, sin = (tables[name] for name in angle_names(number in shape.local))
            angles = [(cos.token(t), sin.token(t)) for t in range(first, first + count)]
            together = Group(count, first, angles)
            commands = LayerCommands(one, layout.options, together, memory, asm, number)
            yield from commands.stages(own)

    groups = [stages(group) for group in range(len(sizes))]
    for group in stage_order(shape, layout.config, sizes):
        next(groups[group])


def pieces(layout: ModelLayout, logits: int) -> list[int]:
    """Outputs of each piece of the head, of which READ gives ``logits`` vectors one by one."""
    vocabulary = layout.shape.vocabulary
    step = head_step(layout.config, layout.shape.layer.hidden, layout.head, logits)
    return [min(step, vocabulary - first) for first in range(0, vocabulary, step)]


def check_model(layout: ModelLayout) -> None:
    """ConfigError: what of the model does not fit the machine. Tries the longest context."""
    try:
        pass_program(layout, Job(context=layout.shape.context - 1))
    except AssemblyError as error:
        raise ConfigError(f"the model does not fit: {error}") from None


def largest_chunk(layout: ModelLayout, most: int, context: int, steps: bool = False) -> int:
    """Most new tokens, up to ``most``, that one pass takes after ``context`` cached ones.

    steps: that one step takes.
    """
    for tokens in range(min(most, layout.shape.context - context), 1, -1):
        try:
            if steps:
                step_program(layout, tokens, 1)
            else:
                pass_program(layout, Job(tokens, context))
        except (ConfigError, AssemblyError):
            continue
        return tokens
    return 1
