"""``python -m senbazuru.talk``: a language model that talks on the Verilated accelerator.

Packs the model (golden.llm.pack --all) unless a folder is given. Then it takes the prompt and each
new token through all layers and the head on the RTL. The host is a C++ program around it. The text
is printed as it comes. The tokens are compared with golden's, which are computed once and kept.
With ``--check`` every status, every word read back, all logits, and after each pass every row and
slot are compared. A run that was stopped goes on from its last token.
"""

import sys

from golden import command
from golden.config import ConfigError
from golden.kllm.config import MACHINES
from hdl.arguments import folder, whole
from senbazuru.talk.options import Options

PROMPT = "The history of paper folding in Japan begins with the arrival of paper from China, and"


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m senbazuru.talk", description=__doc__)
    parser.add_argument("--prompt", default=PROMPT, help="text that the model goes on with")
    parser.add_argument(
        "--chat", action="store_true", help="the prompt is a user's words in a chat"
    )
    parser.add_argument("--tokens", type=whole(), default=24, help="new tokens, 24 by default")
    parser.add_argument("--check", action="store_true", help="compare every word with golden")
    parser.add_argument("--no-golden", action="store_true", help="compare nothing")
    parser.add_argument(
        "--by-host", action="store_true",
        help="the host writes each command, as with --check",
    )  # fmt: skip
    parser.add_argument("--temperature", type=float, default=0.0, help="0: the likeliest token")
    parser.add_argument("--top-k", type=whole(), help="likeliest tokens that it draws from; 40")
    parser.add_argument("--seed", type=whole(0), default=0, help="of the draws")
    parser.add_argument(
        "--chunk", type=whole(1, 8), default=8, help="tokens of the prompt in a pass"
    )
    parser.add_argument("--clock", type=whole(), default=500, metavar="MHZ",
                        help="for tokens per second; docs/timing.md has frequencies")  # fmt: skip
    parser.add_argument("--fresh", action="store_true", help="forget what a stopped run has kept")
    parser.add_argument("--page", action="store_true", help="rewrite the tables of docs/talk.md")
    Options.add(parser, sorted(MACHINES), folder)
    options = parser.parse_args(arguments)
    if options.check and options.no_golden:
        parser.error("--check and --no-golden exclude each other")
    from senbazuru.talk.command import talk  # torch, only now

    try:
        return talk(options)
    except (ConfigError, OSError) as error:
        print(f"senbazuru.talk: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    command.run("senbazuru.talk", main)
