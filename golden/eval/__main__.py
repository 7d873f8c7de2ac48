"""``python -m golden.eval``."""

from golden import command
from golden.eval.command import main

command.run("golden.eval", main)
