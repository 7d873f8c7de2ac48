"""golden.kllm's formats are read by generators: they must not bring torch with them."""

import subprocess
import sys


def test_format_does_not_load_torch() -> None:
    code = "import sys, golden.kllm.format\nsys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
