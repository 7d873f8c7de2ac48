"""``python -m golden.eval``."""

from golden import command
from golden.eval.arguments import arguments


def main() -> int:
    """Refuse wrong options, and print the help, before torch is imported."""
    arguments().parse_args()
    from golden.eval.command import main as run

    return run()


command.run("golden.eval", main)
