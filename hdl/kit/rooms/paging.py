"""Kits of the paging room: golden in plain Python, so they need no torch."""

import random

from golden.paging.vectors import Traffic
from golden.words import layout_word
from hdl.kit.episodes import Vectors
from hdl.kit.words import SEED, Kit, plain
from hdl.paging.page_table import PAGE_COMMAND_LAYOUT, PAGE_RESPONSE_LAYOUT


def _page_table(config) -> Vectors:
    episodes = []
    for covers, misuse in (
        ("commands as an MMU gives them", 0.0),
        ("fault: commands out of order and out of range among them", 0.3),
    ):
        traffic = Traffic(config, random.Random(f"{SEED} {covers}"), misuse=misuse)
        pairs = traffic.pairs(400)
        words = {
            "command": [layout_word(PAGE_COMMAND_LAYOUT, **c._asdict()) for c, _ in pairs],
            "response": [layout_word(PAGE_RESPONSE_LAYOUT, **r._asdict()) for _, r in pairs],
        }
        free = {"free_pages": traffic.table.free_pages}
        episodes.append(plain(covers, words, outputs=free, reset=True))
    return Vectors(episodes=episodes)


KITS = {"paging_page_table": Kit(vectors=_page_table, shown="small")}
