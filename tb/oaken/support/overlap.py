"""Trains of APPENDs and READs, alone and together, as tb_kv_engine takes them."""

from golden.oaken.vectors.kv_script import Script
from golden.paging.format import Status
from hdl.oaken.kv_engine import OakenKvEngineConfig


def overlap_script(
    config: OakenKvEngineConfig, seed: int, appends: int, reads: int, tokens: int
) -> list[dict]:
    """Phases thresholds, open, before, appends, reads, both: APPENDs of V with READs of K."""
    script = Script(config, seed)
    for side in range(2):
        script.set_thresholds(0, side)
    script.wait()
    script.open()
    script.wait()
    for token in range(tokens):
        assert script.append(0, 0, 0, token) == Status.OK
    script.wait()
    for token in range(appends):
        assert script.append(0, 0, 1, token) == Status.OK
    script.wait()
    for _ in range(reads):
        script.read(0, 0, 0, tokens)
    script.wait()
    # In turn, as a batch of sequences would request them.
    for n in range(max(appends, reads)):
        if n < appends:
            assert script.append(0, 0, 1, appends + n) == Status.OK
        if n < reads:
            script.read(0, 0, 0, tokens)
    return script.done()
