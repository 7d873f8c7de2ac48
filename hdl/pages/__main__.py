"""``python -m hdl.pages``: fills the generated tables of the pages, as hdl.pages.documents says."""

from golden import command
from hdl.pages.documents import main

if __name__ == "__main__":
    command.run("hdl.pages", main)
