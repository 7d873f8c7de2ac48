"""Measures Oaken's quantization on a real model: ``python -m golden.llm.reports.oaken``.

Thresholds come from calibration text or from a file of golden.llm.oaken.profile. All figures are
measured on other text: the shares of the groups, the error of K and V, the bits stored and read.
On request the report adds the perplexity with restored values of K and V in every attention. The
quantizations are methods of golden.llm.eval, on K and V that are FP16 words.
"""

import json
import sys
from pathlib import Path

from golden import command
from golden.config import ConfigError

TABLE3 = ("4/90/6", "90/10", "10/90", "4/90/3/3", "2/2/90/6", "2/2/90/3/3")


def main(arguments: list[str] | None = None) -> int:
    """The command line; 0, or 2 after one line on stderr."""
    parser = command.Parser(
        prog="python -m golden.llm.reports.oaken", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--model", type=Path, help="GGUF file or transformers folder")
    parser.add_argument("--text", type=Path, help="text to measure on; ours if none")
    parser.add_argument("--calibration", type=Path, help="text for the thresholds; ours if none")
    parser.add_argument("--thresholds", type=Path, help="file of golden.llm.oaken.profile instead")
    parser.add_argument("--ratios", nargs="+", default=list(TABLE3), help="the first is Oaken's")
    parser.add_argument("--windows", type=int, default=3, help="of calibration")
    parser.add_argument("--tokens", type=int, default=128, help="of a calibration window")
    parser.add_argument("--evaluation", type=int, default=160, help="tokens to measure on")
    parser.add_argument("--layers", type=int, nargs="+", help="all if none")
    parser.add_argument("--pre-rope", action="store_true", help="K before RoPE")
    parser.add_argument(
        "--perplexity", type=int, default=0, metavar="N", help="on N windows of --evaluation tokens"
    )
    parser.add_argument("--json", action="store_true", help="for programs")
    options = parser.parse_args(arguments)
    from golden.llm.checkpoint import CheckpointError  # torch, after the arguments
    from golden.llm.reports.kv_error import print_report, report
    from golden.oaken.thresholds import ProfileError

    try:
        found = report(options)
    except (CheckpointError, ConfigError, ProfileError) as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    if options.json:
        json.dump(found, sys.stdout, indent=1)
        print()
    else:
        print_report(found)
    return 0


if __name__ == "__main__":
    command.run("golden.llm.reports.oaken", main)
