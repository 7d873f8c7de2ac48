"""Tasks on the workers of a Dask scheduler: ``--scheduler ADDRESS`` of commands that take hours.

A worker is a checkout of its own, or the same one: its sources must be those of the command. Each
command says what it compares. The package ``distributed`` is the user's: nothing here installs it.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from golden.config import ConfigError

_PATIENCE = 5.0  # seconds between looks for lost workers


def add_scheduler(parser: argparse.ArgumentParser) -> None:
    """The option ``--scheduler``."""
    parser.add_argument(
        "--scheduler", metavar="ADDRESS", help="of Dask, in the place of processes here"
    )


def on_workers(
    function: Callable[[Any], Any], tasks: Sequence[Any], address: str
) -> Iterator[tuple[int, Any]]:
    """(number, ``function(task)``) of each task as it is done, in any order.

    A task of a lost worker goes to another. ConfigError: there is no scheduler, no worker is left,
    or a task fails. What has been yielded is the caller's, who keeps it.
    """
    try:
        from distributed import Client, wait
    except ImportError:
        raise ConfigError("--scheduler needs the package distributed: pip install it") from None
    try:
        client = Client(address, timeout=10)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--scheduler {address}: {error}") from None
    with client:
        left = {client.submit(function, each, pure=False): n for n, each in enumerate(tasks)}
        while left:
            try:
                done = wait(list(left), timeout=_PATIENCE, return_when="FIRST_COMPLETED").done
            except TimeoutError:
                done = set()
            if not done and not client.nthreads():
                raise ConfigError(
                    f"--scheduler {address}: no worker is left; what is finished stays"
                )
            for each in done:
                number = left.pop(each)
                if each.status != "finished":
                    raise ConfigError(f"--scheduler {address}: {each.exception()!r}")
                yield number, each.result()
