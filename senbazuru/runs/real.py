"""``senbazuru.runs.real``: K and V of real text through the Verilated KV cache, bit for bit.

Thresholds come from other text than K and V do. All vectors of SmolLM2-135M, or of some layers,
are appended token by token and read back over cocotbext-axi's RAM. Every word is compared with
golden's.
"""

from pathlib import Path

from golden import command


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m senbazuru.runs.real", description=__doc__)
    parser.add_argument("--text", type=Path, help="text to store (plain, or .jsonl); ours if none")
    parser.add_argument("--calibration", type=Path, help="text of the thresholds; ours if none")
    parser.add_argument("--profile", type=Path, help="use golden.llm.oaken.profile's thresholds")
    parser.add_argument("--ratios", default="4/90/6", help="outer/middle/inner in percent")
    parser.add_argument("--tokens", type=int, default=8, help="tokens to store, from 2 on")
    parser.add_argument("--layers", help='layers to store, such as "0,5-7"; all if none')
    parser.add_argument("--pause", type=float, default=0.0, help="chance of a pause on every bus")
    options = parser.parse_args(arguments)
    from senbazuru.runs.measure.real import report  # torch, only now

    return report(options)


if __name__ == "__main__":
    command.run("senbazuru.runs.real", main)
