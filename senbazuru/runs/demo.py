"""``python -m senbazuru.runs.demo``: two layers of SmolLM2-135M on the Verilated lane, bit for bit.

Golden quantizes q_proj and down_proj of one decoder layer with activations of a built-in text.
They run as jobs of 32 columns on ``kllm_pe_lane`` at Table I's size under cocotb. Every output
is compared with golden's.
"""

from golden import command
from hdl.arguments import whole
from hdl.kllm.lane.config import COUNTERS


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m senbazuru.runs.demo", description=__doc__)
    parser.add_argument("--tokens", type=whole(1, 64), default=8, help="evaluation tokens, 1..64")
    parser.add_argument("--counter", default="select", choices=COUNTERS)
    parser.add_argument("--no-area", action="store_true", help="skip synthesis")
    options = parser.parse_args(arguments)
    from senbazuru.runs.measure.demo import report  # torch, only now

    return report(options)


if __name__ == "__main__":
    command.run("senbazuru.runs.demo", main)
