"""``python -m golden.eval.accuracy``."""

from golden import command
from golden.eval.accuracy.command import main

command.run("golden.eval.accuracy", main)
