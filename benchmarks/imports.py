"""``python -m benchmarks import``: the time of ``import numtrans`` against ``import numpy``, a fresh process each."""

import json
import statistics
import subprocess
import sys

from benchmarks.common import note, options, print_machine, save, shown
from numtrans.bench import ContestantError
from numtrans.bench.turns import environment
from numtrans.checkpoint import check_folder

HEAVY = ("matplotlib", "tqdm", "scipy", "safetensors", "threadpoolctl", "torch", "transformers", "cupy")
PROGRAM = """
import json, sys, time
start = time.perf_counter()
import {module}
seconds = time.perf_counter() - start
loaded = sorted({{name.partition(".")[0] for name in sys.modules}})
print(json.dumps([seconds, len(sys.modules), loaded]))
"""


def add(commands):
    """Add the command to the parser."""
    command = commands.add_parser("import", help="import numtrans against import numpy")
    options(command, rounds=15)
    command.set_defaults(run=run)


def run(arguments):
    """Time both, print the ratio and what was loaded, write the results; the status is 130 after Ctrl-C."""
    print_machine()
    check_folder(arguments.out)
    results, interrupted = measure(arguments.rounds)
    save(arguments.out, "import", {}, results)
    if rounds := len(results["seconds"]["numtrans"]):
        for name, seconds in results["seconds"].items():
            print(f"import {name:9s} {1e3 * statistics.median(seconds):7.1f} ms, {results['modules'][name]} modules")
        print(f"median of the ratios of {rounds} rounds: {shown(share(results))}")
        print(f"large packages that import numtrans loads besides NumPy: {', '.join(results['heavy']) or 'none'}")
    if interrupted:
        note("stopped by Ctrl-C; these are the rounds that were done")
        return 130
    return 0


def measure(rounds):
    """Seconds of both imports in each round, and whether Ctrl-C came, which leaves the rounds that were done.

    A first import of each, which fills the caches, does not count.
    """
    results = {"seconds": {"numpy": [], "numtrans": []}, "modules": {}, "heavy": []}
    try:
        for number in range(rounds + 1):
            found = {m: import_once(m) for m in (("numpy", "numtrans") if number % 2 else ("numtrans", "numpy"))}
            for module, (seconds, count, _) in found.items():
                results["modules"][module] = count
                if number:
                    results["seconds"][module].append(seconds)
            results["heavy"] = [name for name in HEAVY if name in found["numtrans"][2]]
    except KeyboardInterrupt:
        return results, True
    return results, False


def import_once(module):
    """Seconds of an import in a fresh process, the number of modules there, and the names of the packages."""
    program = [sys.executable, "-c", PROGRAM.format(module=module)]
    done = subprocess.run(program, env=environment(1), capture_output=True, text=True)
    if done.returncode:
        raise ContestantError(f"import {module} ended with status {done.returncode}: {done.stderr[-500:]}")
    return json.loads(done.stdout)


def share(results):
    """The median of the ratios of the rounds; NaN if there is none."""
    pairs = list(zip(results["seconds"]["numtrans"], results["seconds"]["numpy"]))
    return statistics.median(a / b for a, b in pairs) if pairs else float("nan")
