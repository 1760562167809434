"""``python -m numtrans`` is the command ``numtrans``."""

import sys

from numtrans.cli import main

sys.exit(main())
