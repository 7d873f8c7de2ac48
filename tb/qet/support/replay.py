"""The results of a replay of matrices inside the simulator, for the command that started it."""

import json
import os
from pathlib import Path

from tb.bench import params


def save_replay(first: list[int], last: list[int], simulated: dict) -> None:
    """Write replay.json. first, last: the cycles in which each row came and left.

    Each matrix has the cycles from its first row to its last. ``params["packets"]`` says how many
    rows are done after each.
    """
    found, begin = [], 0
    for end in params["packets"]:
        found.append({"cycles": last[end - 1] - first[begin], "rows": end - begin})
        begin = end
    text = json.dumps({"matrices": found, "simulated": simulated})
    Path(os.environ["TB_DIR"], "replay.json").write_text(text)
