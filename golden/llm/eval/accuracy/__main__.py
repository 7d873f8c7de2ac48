"""``python -m golden.llm.eval.accuracy``."""

from golden import command
from golden.llm.eval.accuracy.arguments import arguments


def main() -> int:
    """Refuse wrong options, and print the help, before torch is imported."""
    arguments().parse_args()
    from golden.llm.eval.accuracy.command import main as run

    return run()


command.run("golden.llm.eval.accuracy", main)
