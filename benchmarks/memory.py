"""``python -m benchmarks memory``: the peak memory of a training step, a fresh process for each measurement."""

import statistics

from benchmarks.common import note, options, print_machine, save, shown
from benchmarks.train import CONTESTANTS
from numtrans.bench import Contestant, ContestantError, peak_memory
from numtrans.bench.models import SIZES, size_text
from numtrans.checkpoint import check_folder

MEASURES = {  # what is printed -> the two numbers whose difference it is
    "peak of two steps above the imports": ("peak", "imported"),
    "the same by getrusage": ("peak_ever", "imported"),
    "peak above imports and a tiny step": ("peak", "warm"),
    "model and batch": ("made", "warm"),
    "Python and imports": ("imported", None),
}
ABOVE_IMPORTS, ABOVE_TINY_STEP = "peak of two steps above the imports", "peak above imports and a tiny step"


def add(commands):
    """Add the command to the parser."""
    command = commands.add_parser("memory", help="peak memory of a training step against PyTorch")
    command.add_argument("--sizes", nargs="+", choices=SIZES, default=["S", "M", "L"], help="what is trained")
    options(command, rounds=3)
    command.set_defaults(run=run)


def run(arguments):
    """Measure each size, print a table, write the results; the status is 130 after Ctrl-C."""
    print_machine()
    check_folder(arguments.out)
    for case in arguments.sizes:
        size = SIZES[case]
        print(f"\n{case}: {size_text(size)}; {arguments.threads} thread(s)")
        results, interrupted = measure(size, arguments.threads, arguments.rounds)
        save(arguments.out, f"memory-{case}", {"size": size, "threads": arguments.threads}, results)
        report(results)
        if interrupted:
            note("stopped by Ctrl-C; this is what was measured")
            return 130
    return 0


def measure(size, threads, rounds):
    """Name -> list of what `peak_memory` returned, for numtrans and PyTorch eager in turns; and whether Ctrl-C came."""
    results = {}
    try:
        for _ in range(rounds):
            for key in ("numtrans", "eager"):
                name, factory, extra = CONTESTANTS[key]
                try:
                    found = peak_memory(Contestant(name, factory, {"size": size, **extra}, threads))
                    results.setdefault(name, []).append(found)
                except ContestantError as error:
                    note(f"{name}: {error}")
    except KeyboardInterrupt:
        return results, True
    return results, False


def amount(results, measure, name):
    """The median of one of `MEASURES` of a contestant, in bytes."""
    more, less = MEASURES[measure]
    return statistics.median(found[more] - (found[less] if less else 0) for found in results[name])


def share(results, measure=ABOVE_IMPORTS, name="numtrans", peer="PyTorch eager"):
    """The memory of a contestant as a share of its peer's, from the medians; NaN if one is missing."""
    if not (results.get(name) and results.get(peer)):
        return float("nan")
    return amount(results, measure, name) / amount(results, measure, peer)


def report(results):
    """Print the medians in MB."""
    width = max(map(len, MEASURES))
    if not results:
        return
    print(f"{'MB':{width}s}" + "".join(f"{name:>16s}" for name in results) + f"{'share':>8s}")
    for measure, (more, _) in MEASURES.items():
        values = [amount(results, measure, name) / 1e6 for name in results]
        of_peer = f"{shown(share(results, measure)):>8s}" if more.startswith("peak") else ""
        print(f"{measure:{width}s}" + "".join(f"{value:16.1f}" for value in values) + of_peer, flush=True)
