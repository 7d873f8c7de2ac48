"""The options of ``python -m golden.llm.eval``, apart from what needs torch."""

import argparse
from pathlib import Path

from golden import command

DESCRIPTION = "Perplexity of quantization methods: --model M --text FILE --method NAME ..."


def arguments() -> argparse.ArgumentParser:
    """The parser; it needs no torch."""
    parser = command.Parser(prog="python -m golden.llm.eval", description=DESCRIPTION)
    parser.add_argument(
        "--model", help="transformers folder, GGUF file, name on the hub; SmolLM2-135M if none"
    )
    parser.add_argument("--text", type=Path, help="plain, or .jsonl with a text per line; ours")
    parser.add_argument("--seq", type=int, help="tokens of a window; 2048, or what the model takes")
    parser.add_argument("--tokens", type=int, help="of the text, from its beginning; all if none")
    parser.add_argument("--method", nargs="+", default=["fp32"], metavar="NAME[:KEY=VALUE,...]")
    parser.add_argument(
        "--methods", type=Path, nargs="+", default=[], metavar="PATH",
        help="Python files with methods of your own",
    )  # fmt: skip
    parser.add_argument("--list", action="store_true", help="methods and their parameters")
    parser.add_argument(
        "--calibration", type=Path, nargs="+", default=[], help="files of golden.llm.calibrate"
    )
    parser.add_argument("--calibration-text", type=Path, help="where no file serves; ours if none")
    parser.add_argument(
        "--calibration-windows", type=int, help="3, or what the method had better have"
    )
    parser.add_argument("--calibration-tokens", type=int, help="of a window; 128, or likewise")
    parser.add_argument("--seed", type=int, default=0, help="of the calibration")
    parser.add_argument(
        "--bit-true", nargs="+", default=[], metavar="LAYER",
        help="run the hardware's exact arithmetic on these layers, such as '*.0.*.q_proj' or "
        "'*.0.self_attn', and say how far the fast path is from it",
    )  # fmt: skip
    parser.add_argument(
        "--tasks", nargs="+", default=[], metavar="NAME",
        help="of lm-evaluation-harness, such as piqa, whose data are on this machine",
    )  # fmt: skip
    parser.add_argument("--tasks-path", type=Path, help="folder of task files (YAML) of your own")
    parser.add_argument("--task-limit", type=int, help="first examples of each task; all if none")
    parser.add_argument("--fewshot", type=int, default=0, help="solved examples in each question")
    parser.add_argument("--batch", type=int, help="windows at a time")
    parser.add_argument("--device", help="cuda if there is one, else cpu")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="keep each row in this JSON file"
    )
    parser.add_argument(
        "--resume", action="store_true", help="continue the file of -o if it has the same settings"
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE.svg", help="draw perplexity against stored bits"
    )
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write a line per method")
    parser.add_argument("--latex", type=Path, metavar="FILE", help="write a tabular")
    parser.add_argument("--json", action="store_true", help="for programs")
    return parser
