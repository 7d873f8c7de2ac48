"""``python -m golden.eval.accuracy``."""

import sys

from golden.eval.accuracy.command import main

sys.exit(main())
