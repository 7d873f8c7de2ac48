"""Faults of which a bench that has sent every operand proves that they never show.

An operator is a pipeline without feedback. Take a fault in the logic between two registers that
reaches no ``valid`` and no ``ready``. Each result is still a function of its own word. The bench
``tb.fp16.check_operator`` compares the result of each word. So a fault that it does not find
changes none, if its vectors hold every word of the one operand.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np

from hdl.block import Block
from synth.yosys import run

_OPERAND_BITS = 16  # most bits of an operand of which a bench sends all words


def _is_complete(block: Block, member: int, vectors: dict[str, Any]) -> bool:
    """Whether the vectors of operator ``member`` hold every word of its one operand."""
    config = block.config.members[member]
    if len(config.operands) != 1:
        return False
    (name,) = config.operands
    field = config.i_layout[name]
    if field.width > _OPERAND_BITS:
        return False
    rows = np.asarray(vectors[f"i{member}"]).tolist()
    mask = (1 << field.width) - 1
    found = {int.from_bytes(row, "little") >> field.offset & mask for row in rows}
    return len(found) == mask + 1


def sends_every_word(
    block: Block, vectors: dict[str, Any], command: str, directory: Path, stem: str
) -> bool:
    """Whether ``vectors`` hold every word of the operator into which ``command`` puts a fault.

    command: of Yosys; ``base.il`` in ``directory`` has the design. block, vectors: of a run of
    ``tb.fp16.check_operator`` that does not find the fault. False too where the fault is in a
    register, or reaches more than the result.
    """
    from tb.fp16.support.bank import Bank  # imports torch

    cell = re.search(r"-cell \$flatten\\(operator_(\d+)\.\$\w+\$design\.v:\S+)", command)
    if not isinstance(block, Bank) or cell is None:
        return False
    member = int(cell[2])
    if not _is_complete(block, member, vectors):
        return False
    run(
        f"read_rtlil base.il\nselect -write {stem}.txt c:*{cell[1]} %co* o:* %i\n",
        directory,
        stem=stem,
    )
    reached = {line.split("/")[-1] for line in (directory / f"{stem}.txt").read_text().split()}
    return reached == {f"o{member}__payload"}
