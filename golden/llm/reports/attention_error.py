"""Errors of product-quantized attention: ``python -m golden.llm.reports.attention_error``."""

import sys
from collections.abc import Sequence
from pathlib import Path

from golden import command
from golden.config import ConfigError
from golden.llm.eval.accuracy.arguments import ROOT
from golden.markers import rewrite

PAGE = ROOT / "docs" / "million-numerics.md"


def main(arguments: Sequence[str] | None = None) -> int:
    """0, or 2 where the model or the text cannot be read."""
    parser = command.Parser(
        prog="python -m golden.llm.reports.attention_error",
        description="Errors of product-quantized attention: codes, tables and roundings apart.",
    )
    parser.add_argument("--model", default="smollm2", help="GGUF file, folder or name")
    parser.add_argument("--text", type=Path, help="measured on; default: the built-in text")
    parser.add_argument("--tokens", type=int, default=512, help="tokens of the text")
    parser.add_argument("--train", type=int, default=56 * 1024, help="tokens of Python's manual")
    parser.add_argument("--few", action="store_true", help="train with less than 39 per entry")
    parser.add_argument("--page", action="store_true", help=f"rewrite {PAGE.name}")
    options = parser.parse_args(arguments)
    from golden.llm.checkpoint import CheckpointError  # torch, after the arguments
    from golden.llm.reports.attention_nmse import measure

    try:
        made = measure(options, lambda line: print(line, flush=True))
    except (CheckpointError, ConfigError, ValueError) as error:
        print(f"attention_error: {error}", file=sys.stderr)
        return 2
    for name, body in made.items():
        print(f"\n{name}\n\n{body}")
    if options.page:
        rewrite(PAGE, made)
    return 0


if __name__ == "__main__":
    command.run("golden.llm.reports.attention_error", main)
