"""tb.run: the simulator imports the benches of the tree whose test started it.

Shown to fail: without the settings file that run_model writes into the folder of the run.
"""

import dataclasses
import shutil

from hdl.stream.register import StreamRegister, StreamRegisterConfig
from tb.run import build_model, run_model


def test_cache_inside_another_tree(tmp_path, seed):
    block = StreamRegister(StreamRegisterConfig(width=8))
    model = build_model(block)
    other = tmp_path / "build" / "model"
    shutil.copytree(model.directory, other, ignore=shutil.ignore_patterns("run-*", "lock"))
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    (tmp_path / "tb").mkdir()
    (tmp_path / "tb" / "__init__.py").write_text("raise ImportError('a bench of another tree')\n")
    model = dataclasses.replace(model, directory=other)
    run_model(model, "tb.tb_imports", config=block.config, seed=seed)
