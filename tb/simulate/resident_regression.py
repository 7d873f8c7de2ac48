"""Runs cocotb's regression once per job, inside a resident simulator (tb.simulate.resident).

Every job imports the benches anew, as they read configuration, vectors and seed when imported.
"""

import gc
import json
import os
import random
import sys
import time
import warnings

import cocotb
import cocotb.handle
import cocotb.regression
import cocotb.simulator
from cocotb import _shutdown as shutdown
from cocotb.regression import RegressionManager

from tb.simulate.resident import FAILED, PASSED, REPLIES

_STAYS = ("tb.simulate.resident", "tb.simulate.resident_regression")


class _Job(RegressionManager):
    """A regression after which the simulator waits for the next one."""

    def _tear_down(self) -> None:
        if self._tearing_down:
            return
        self._tearing_down = True
        self._log_test_summary()
        self.xunit.write(os.environ["COCOTB_RESULTS_FILE"])
        sys.stdout.flush()
        sys.stderr.flush()
        _replies.write(f"{FAILED if self.failures else PASSED}\n")
        _replies.flush()
        # A test that failed may have left its block, or the bench's own state, in disorder.
        line = "" if self.failures or self._regression_terminated else sys.stdin.readline()
        if line:
            _start(json.loads(line))
        else:
            _end()


def _end() -> None:
    """Ends as cocotb's own regression does, but for the results, which are written."""
    if cocotb.handle._apply_writes_cb is not None:
        cocotb.handle._apply_writes_cb.cancel()
        cocotb.handle._apply_writes_cb = None
    shutdown._shutdown()
    cocotb.simulator.stop_simulator()


def _start(job: dict) -> None:
    """Start the regression of ``job`` in the time step after this one."""
    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.environ.update(job["environment"])
    os.chdir(job["cwd"])
    seed = int(os.environ["COCOTB_RANDOM_SEED"])
    cocotb.RANDOM_SEED = seed
    random.seed(seed)
    for name in [each for each in sys.modules if each.startswith("tb.") and each not in _STAYS]:
        del sys.modules[name]
    gc.unfreeze()  # tb.bench froze what the last job has left
    manager = _made()
    manager.total_tests = len(manager._test_queue)
    manager.count = 1
    manager._regression_start_time = time.monotonic()
    manager._first_test = False  # this is called from a step of the simulation
    manager._execute()


def _made() -> _Job:
    """cocotb's manager with the tests of the bench, of our class."""
    cocotb.regression.RegressionManager = _Job
    cocotb.regression._setup_regression_manager()
    manager = cocotb.regression._manager_inst
    manager._test_queue.sort(key=lambda test: test.stage)
    if manager._filters:
        manager._test_queue = [
            test
            for test in manager._test_queue
            if any(each.search(test.fullname) for each in manager._filters)
        ]
    return manager


def run() -> None:
    """Takes the place of ``cocotb.regression._run_regression``."""
    global _replies
    _replies = os.fdopen(int(os.environ[REPLIES]), "w")
    sys.path.insert(0, "")
    if not sys.warnoptions:
        warnings.simplefilter("default")
    manager = _made()
    shutdown.register(lambda: cocotb.regression._manager_inst._on_sim_end())
    manager.start_regression()
