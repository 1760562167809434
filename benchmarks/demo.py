"""``python -m benchmarks demo``: how long the training part of ``numtrans demo`` takes, once."""

import os
import re
import subprocess
import sys
import tempfile

from benchmarks.common import RESULTS, print_machine, save
from numtrans.bench import ContestantError
from numtrans.bench.turns import KERNEL_VARIABLES, THREAD_VARIABLES
from numtrans.checkpoint import check_folder

TRAINED = re.compile(r"^ *(\d+) s, loss", re.MULTILINE)  # the line of the demo after its training


def add(commands):
    """Add the command to the parser."""
    command = commands.add_parser("demo", help="the time of the training part of numtrans demo")
    command.add_argument("--out", type=type(RESULTS), default=RESULTS, metavar="DIR", help="folder of the results")
    command.set_defaults(run=run)


def run(arguments):
    """Run the demo as a user does, with no variable that sets threads or kernels; print and write its seconds."""
    print_machine()
    check_folder(arguments.out)
    environment = {k: v for k, v in os.environ.items() if k not in (*THREAD_VARIABLES, *KERNEL_VARIABLES)}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "numtrans", "demo", "--out", folder], env=environment, capture_output=True, text=True
        )
    found = TRAINED.search(done.stdout)
    if done.returncode or found is None:
        raise ContestantError(f"numtrans demo ended with status {done.returncode}: {done.stderr[-500:]}")
    results = {"seconds": int(found[1])}
    save(arguments.out, "demo", {}, results)
    print(f"training part of numtrans demo: {results['seconds']} s")
