"""``python -m benchmarks import``: the time of ``import numtrans`` against ``import numpy``, a fresh process each."""

import json
import statistics
import subprocess
import sys

from benchmarks.common import options, print_machine, save
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
    """Time both, print the ratio and what was loaded, write the results."""
    print_machine()
    check_folder(arguments.out)
    results = measure(arguments.rounds)
    save(arguments.out, "import", {}, results)
    for name, seconds in results["seconds"].items():
        print(f"import {name:9s} {1e3 * statistics.median(seconds):7.1f} ms, {results['modules'][name]} modules")
    print(f"median of the ratios of {arguments.rounds} rounds: {share(results):.2f}")
    print(f"large packages that import numtrans loads besides NumPy: {', '.join(results['heavy']) or 'none'}")


def measure(rounds):
    """Seconds of both imports in each round (a first one of each, which fills the caches, does not count)."""
    results = {"seconds": {"numpy": [], "numtrans": []}, "modules": {}, "heavy": []}
    for number in range(rounds + 1):
        for module in ("numpy", "numtrans") if number % 2 else ("numtrans", "numpy"):
            program = PROGRAM.format(module=module)
            done = subprocess.run(
                [sys.executable, "-c", program], env=environment(1), capture_output=True, text=True, check=True
            )
            seconds, results["modules"][module], loaded = json.loads(done.stdout)
            if number:
                results["seconds"][module].append(seconds)
            if module == "numtrans":
                results["heavy"] = [name for name in HEAVY if name in loaded]
    return results


def share(results):
    """The median of the ratios of the rounds."""
    return statistics.median(a / b for a, b in zip(results["seconds"]["numtrans"], results["seconds"]["numpy"]))
