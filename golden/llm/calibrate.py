"""Lets methods learn offline: ``python -m golden.llm.calibrate --text FILE --method NAME -o F``.

Writes a safetensors file for ``golden.llm.eval --calibration``. The same command resumes stopped
work: it keeps finished steps in the folder F.partial next to the output, and removes it at the end.
"""

import sys
import time
from pathlib import Path

from golden import command


def main(argv: list[str] | None = None) -> int:
    """The command line; 0, or 2 after one line on stderr."""
    parser = command.Parser(
        prog="python -m golden.llm.calibrate", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "--model", help="transformers folder, GGUF file, name on the hub; SmolLM2-135M if none"
    )
    parser.add_argument("--text", type=Path, help="plain, or .jsonl with a text per line; ours")
    parser.add_argument("--method", required=True, help="as for golden.llm.eval; + combines")
    parser.add_argument(
        "--methods", type=Path, nargs="+", default=[], metavar="PATH",
        help="Python files with methods of your own",
    )  # fmt: skip
    parser.add_argument("--windows", type=int, help="3, or what the method had better have")
    parser.add_argument("--tokens", type=int, help="of a window; 128, or likewise")
    parser.add_argument("--skip", type=int, default=0, help="tokens of the text to leave out first")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", help="cuda if there is one, else cpu")
    parser.add_argument("-o", "--output", type=Path, required=True, help="safetensors file")
    options = parser.parse_args(argv)
    from golden.config import ConfigError
    from golden.llm.checkpoint import CheckpointError  # torch, after the arguments
    from golden.llm.eval.calibrate import run
    from golden.llm.eval.command import quiet

    start = time.monotonic()
    quiet()
    try:
        header = run(options)
    except (CheckpointError, ConfigError) as error:
        print(f"calibrate: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        file = error.filename or options.output
        print(f"calibrate: cannot write {file}: {error.strerror}", file=sys.stderr)
        return 2
    print(
        f"{options.output}: {header['method']} for {header['model']}, {header['windows']} windows "
        f"of {header['tokens']} tokens, {time.monotonic() - start:.0f} s"
    )
    return 0


if __name__ == "__main__":
    command.run("golden.llm.calibrate", main)
