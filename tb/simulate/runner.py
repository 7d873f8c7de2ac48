"""cocotb's runner, for the models of tb.simulate.run, which imports it late: it imports pytest."""

import os
from pathlib import Path

from cocotb_tools.runner import Verilator

from tb.simulate import forked, resident
from tb.simulate.bytecode import bytecode_folder
from tb.simulate.compile import BUILD_DIR, ROOT, launcher

# What the start of a simulation need not spend:
# - cocotb has pytest rewrite the assertions of every module that the simulator imports, numpy and
#   Amaranth included, and load every plugin: 1 s. Those of the benches give the messages.
# - Bytecode, also that of rewritten modules, is kept in build (tb.simulate.bytecode), whatever the
#   caller's environment says of the source tree: 0.1 to 0.5 s.
# - numpy's BLAS starts its threads and their buffers: 0.02 s.
_START = {
    "COCOTB_REWRITE_ASSERTION_FILES": "tb_*.py bench.py",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    "PYTHONDONTWRITEBYTECODE": "",
    "OPENBLAS_NUM_THREADS": "1",
}


class Runner(Verilator):
    """cocotb's runner of a model that ``compile_model`` has built.

    imports: modules that the run is going to import. is_program: the model is no library.
    has_file: it writes a wave, or counts of edges. Such a file is whole only after ``main`` of the
    model has returned. A fork ends before.
    """

    imports: tuple[str, ...] = ()
    is_program = False
    has_file = False

    def _test_command(self) -> list:
        (command,) = super()._test_command()
        return [command if self.is_program else [str(launcher()), *command]]

    def _execute(self, cmds, cwd) -> None:
        (command,) = cmds
        if self.is_program or self.has_file or not hasattr(os, "fork"):
            super()._execute(cmds, cwd)
            return
        status = forked.run(command[1:], cwd, self.env, self.log_file, self.imports)
        if status:
            raise RuntimeError(f"Command failed with return code: {status}")

    def _set_env_test(self) -> None:
        super()._set_env_test()
        self.env.update(_START)  # above what the caller's environment says
        self.env["PYTHONPYCACHEPREFIX"] = str(bytecode_folder(ROOT, BUILD_DIR / "pycache"))


class ResidentRunner(Runner):
    """The same, and the simulator stays: ``simulator`` is it."""

    simulator: resident.Resident

    def _set_env_test(self) -> None:
        super()._set_env_test()
        entries = (
            "cocotb.logging:_configure",
            "cocotb._init:init_package_from_simulation",
            "tb.simulate.resident_regression:run",
        )
        self.env["PYGPI_USERS"] = ",".join(entries)

    def _execute(self, cmds, cwd) -> None:
        (command,) = cmds
        with Path(self.log_file).open("w") as log:
            self.simulator = resident.Resident(command, cwd, self.env, log)
        self.simulator.wait()
