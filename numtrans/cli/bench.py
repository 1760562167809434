"""``numtrans bench``."""

import os

from numtrans.cli.arguments import positive


def add(commands):
    """Add the command to the parser."""
    from numtrans.bench.models import SIZES

    bench = commands.add_parser(
        "bench", help="how fast numtrans is on this machine, beside PyTorch if it is installed",
        description="Time a training step, attention and generation, each library in a process of its own and in "
        "turns. Takes about a minute. Close what else needs the processor.",
    )  # fmt: skip
    bench.add_argument("--sizes", nargs="+", choices=SIZES, default=["S"], help="models to train (default S)")
    bench.add_argument("--threads", type=positive, default=os.cpu_count(), help="threads of each (default: the cores)")
    bench.add_argument("--rounds", type=positive, default=5, help="turns of each library (default %(default)s)")
    bench.set_defaults(run=run_bench)


def run_bench(arguments):
    """``numtrans bench``"""
    from numtrans.bench.machine import describe, machine_facts
    from numtrans.bench.short import HEAD, cases, legend, measure, row, why_no_pytorch

    machine, failed, libraries, sees_waiting = machine_facts(), False, {}, True
    print(f"{machine['processor']}, {machine['cores']} cores, {machine['system']}, Python {machine['python']}")
    print(f"{arguments.threads} thread(s) for each library, {arguments.rounds} rounds; the median counts\n")
    for line in legend(arguments.sizes):
        print(line)
    print(f"\n{HEAD}", flush=True)
    alone = why_no_pytorch()
    for title, case in cases(arguments.sizes).items():
        results = measure(case, arguments.threads, arguments.rounds, pytorch=alone is None)
        print(row(title, case, results), flush=True)
        for name, entry in results["contestants"].items():
            if entry["error"] is not None:
                failed = True
                print(f"  {name}: {entry['error']}")
            elif entry["facts"]:
                libraries[describe(entry["facts"])] = None
        sees_waiting = sees_waiting and results["sees_waiting"]
        if results["interrupted"]:
            raise KeyboardInterrupt
    print("\n" + "\n".join(libraries))
    if alone is not None:
        print(alone)
    if not sees_waiting:
        print("This system does not tell how long a thread waited for a core: no sample was discarded.")
    return 1 if failed else 0
