"""tb.contract: the runs that its tests make, seen by a stand-in for the bench.

Shown to fail: late_ready without the pass whose sinks stall.
"""

import json
import pickle
import subprocess
import sys

import numpy as np

from tb.simulate.run import ROOT

RUNS = """
import asyncio, json
from tb.contract import Contract

class Recorded(Contract):
    runs = []
    def bench(self, dut):
        return None
    async def restart(self, bench, cycles=3):
        self.runs.append("reset")
    async def replay(self, bench, packets=None, **flow):
        self.runs.append(flow)

tests = Recorded({"i": [1], "o": [2]}).tests()
asyncio.run({test.func.__name__: test.func for test in tests}["late_ready"](None))
print(json.dumps(Recorded.runs))
"""


def test_late_ready_runs_with_and_without_stalls(tmp_path, monkeypatch):
    """After a reset each: sinks that are ready at once after valid, and sinks that stall too."""
    np.savez(tmp_path / "vectors.npz")
    interface = {"sources": ["i"], "sinks": ["o"], "timing": {}}
    (tmp_path / "setup.pickle").write_bytes(pickle.dumps((None, {}, interface)))
    monkeypatch.setenv("TB_DIR", str(tmp_path))
    command = [sys.executable, "-c", RUNS]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert json.loads(found) == [
        "reset",
        {"p_stall": 0.0, "late_ready": True},
        "reset",
        {"p_stall": 0.3, "late_ready": True},
    ]
