"""``python -m golden.eval``."""

import sys

from golden.eval.command import main

sys.exit(main())
