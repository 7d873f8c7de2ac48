"""``python -m sim.explore``: see ``sim.explore``."""

from golden import command
from sim.explore.command import main

if __name__ == "__main__":
    command.run("sim.explore", main)
