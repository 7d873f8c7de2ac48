"""The text that methods learn from: one that is named, or one of ours that is long enough."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from golden.config import ConfigError
from golden.llm import text as own_text
from golden.llm.checkpoint import Checkpoint, longest, read_text, windows
from golden.llm.eval.method import Method

_FEW = 3, 128  # windows, tokens of each
_SEQ = 2048


@dataclasses.dataclass(frozen=True)
class CalibrationText:
    """name: of a file or of our text; content: all of it."""

    name: str
    content: str


def calibration_text(path: Path | None, methods: Sequence[Method]) -> CalibrationText:
    """The text of a file; without one ours, the long one where a method had better have that."""
    content = read_text(path)
    if path is not None and content is not None:
        return CalibrationText(path.name, content)
    if any(each.calibration_tokens for each in methods):
        return CalibrationText("golden.llm.text.sample", own_text.sample())
    return CalibrationText("golden.llm.text.CALIBRATION", own_text.CALIBRATION)


def calibration_size(
    checkpoint: Checkpoint,
    methods: Sequence[Method],
    count: int | None = None,
    tokens: int | None = None,
) -> tuple[int, int]:
    """Windows and tokens of each: as given, else what the methods had better have."""
    wanted = max((each.calibration_tokens for each in methods), default=0)
    if tokens is None:
        tokens = min(_SEQ, longest(checkpoint)) if wanted else _FEW[1]
    if count is None:
        count = -(-wanted // max(1, tokens)) if wanted else _FEW[0]
    return count, tokens


def calibration_windows(
    checkpoint: Checkpoint, text: str | None, count: int, tokens: int, skip: int = 0
) -> list[Tensor]:
    """``golden.llm.checkpoint.windows`` of a length that the model takes; ConfigError otherwise."""
    limit = longest(checkpoint)
    if not 2 <= tokens <= limit:
        raise ConfigError(f"calibration tokens must be 2..{limit} for this model, not {tokens}")
    return windows(checkpoint, text, count, tokens, skip)
