"""Blocks of prompts that stay in the cache for later requests. Pure Python.

A block has ``block`` tokens. Its hash names it and all tokens before it, as the ``hash_ids`` of
Mooncake's traces do. A block is known from the end of the pass that fills it. It is in use while
requests hold it, and its pages count once. Then it is free: its pages are taken, oldest first, when
other requests need them. The last blocks of a request are older than the first ones, as in vLLM.
"""

from collections.abc import Sequence

from golden.config import ConfigError


class Prefixes:
    """The known blocks of a chip. pages : of a block."""

    def __init__(self, block: int, pages: int):
        self.block, self.pages = block, pages
        self._users: dict[int, int] = {}  # of the blocks in use
        self._free: dict[int, None] = {}  # oldest first

    @property
    def used(self) -> int:
        """Pages of the blocks in use."""
        return len(self._users) * self.pages

    def known(self, hashes: Sequence[int], tokens: int) -> int:
        """The first blocks of ``tokens`` tokens that are known, without a gap."""
        users, free = self._users, self._free
        for n, each in enumerate(hashes[: tokens // self.block]):
            if each not in users and each not in free:
                return n
        return min(len(hashes), tokens // self.block)

    def idle(self, hashes: Sequence[int]) -> int:
        """Pages of those of these blocks that no request holds."""
        return self.pages * sum(each not in self._users for each in hashes)

    def take(self, hashes: Sequence[int]) -> None:
        for each in hashes:
            self._free.pop(each, None)
            self._users[each] = self._users.get(each, 0) + 1

    def fill(self, hash_: int) -> bool:
        """A request has filled a block. False: it is known already, so the copy stays its own."""
        if hash_ in self._users or hash_ in self._free:
            return False
        self._users[hash_] = 1
        return True

    def release(self, hashes: Sequence[int]) -> None:
        for each in reversed(hashes):
            left = self._users[each] - 1
            if left:
                self._users[each] = left
            else:
                del self._users[each]
                self._free[each] = None

    def trim(self, pages: int) -> None:
        """Free blocks keep at most ``pages`` pages."""
        free, most = self._free, max(pages, 0) // self.pages
        while len(free) > most:
            del free[next(iter(free))]


def check_blocks(table: Sequence[int], block: int) -> None:
    """ConfigError: a block does not fill whole pages wherever it is."""
    for start in range(0, len(table), block):
        whole = start // block * table[block] if start else 0
        pages = table[start : start + block]
        if any(found != whole + alone for found, alone in zip(pages, table, strict=False)):
            raise ConfigError(
                f"--page must be pages that blocks of {block} tokens fill, on a chip that keeps "
                f"each token alike: after {start} tokens a block begins within a page"
            )
