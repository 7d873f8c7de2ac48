"""``python -m senbazuru.serve``: an OpenAI-compatible endpoint before the Verilated accelerator.

Packs the model as senbazuru.talk does, unless a folder is given. Then it serves /v1/completions and
/v1/chat/completions. Requests of all clients share the steps of the chip. A page at / shows the
batch. Ctrl-C and SIGTERM end it within seconds.
"""

import sys

from golden import command
from golden.config import ConfigError
from golden.kllm.config import MACHINES
from hdl.arguments import folder, whole
from senbazuru.talk.options import Options

POLICIES = ("first-come", "shortest", "fair")


def main(arguments: list[str] | None = None) -> int:
    parser = command.Parser(prog="python -m senbazuru.serve", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at")
    parser.add_argument("--port", type=whole(0, 65535), default=8000, help="0: any that is free")
    parser.add_argument("--name", help="of the model in the API; by default its checkpoint's")
    parser.add_argument(
        "--policy", choices=POLICIES, default=POLICIES[0], help="which request has a place first"
    )
    parser.add_argument("--queue", type=whole(0, 4096), default=64,
                        help="most requests that wait for a sequence, 64 by default")  # fmt: skip
    parser.add_argument("--clock", type=whole(), default=500, metavar="MHZ",
                        help="for tokens per second; docs/timing.md has frequencies")  # fmt: skip
    Options.add(parser, sorted(MACHINES), folder)
    options = parser.parse_args(arguments)
    from senbazuru.serve.command import serve  # torch, only now

    try:
        return serve(options)
    except (ConfigError, OSError) as error:
        print(f"senbazuru.serve: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    command.run("senbazuru.serve", main)
