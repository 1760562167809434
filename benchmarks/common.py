"""Options, files and lines that the benchmarks share."""

import argparse
import datetime
import json
import math
import os
import shlex
import sys
from pathlib import Path

from numtrans.bench import median_seconds, ratio
from numtrans.bench.machine import describe, machine_facts
from numtrans.checkpoint import check_folder, write_json
from numtrans.cli.arguments import positive

RESULTS = Path(__file__).parent / "results"


def options(command, rounds=7):
    """Options of every benchmark."""
    command.add_argument("--threads", type=positive, default=os.cpu_count(), help="threads of all (default: the cores)")
    command.add_argument("--rounds", type=positive, default=rounds, help="turns of each (default %(default)s)")
    command.add_argument(
        "--out", type=Path, default=RESULTS, metavar="DIR", help="folder of the results (default benchmarks/results)"
    )
    command.formatter_class = argparse.ArgumentDefaultsHelpFormatter


def seconds(text):
    """A number of seconds above 0, for argparse."""
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: expected seconds, a number above 0")
    return value


def save(out, name, about, results):
    """Write the results of one case to ``NAME.json`` in the folder `out`, with the machine, the date and the command.

    Parameters
    ----------
    out : Path
    name : str
        The benchmark and its case, such as ``"train-S"``.
    about : dict
        What the case is.
    results : dict
    """
    check_folder(out)
    command = shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]])
    when = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    write_json(out / f"{name}.json", {"name": name, **about, "date": when, "command": command,
                                      "machine": machine_facts(), "results": results})  # fmt: skip


def load(out, benchmark):
    """What `save` has written to the folder `out` for a benchmark: case -> content."""
    found = {}
    for path in sorted(Path(out).glob(f"{benchmark}*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        found[content["name"].removeprefix(f"{benchmark}-")] = content
    return found


def print_machine():
    """Print what the numbers depend on."""
    facts = machine_facts()
    print(f"{facts['processor']}, {facts['cores']} cores, {facts['memory_gb']} GB, {facts['system']}")
    print(f"Python {facts['python']}", flush=True)


def note(text):
    """Print a line about what goes on, aside from the results."""
    print(text, file=sys.stderr, flush=True)


def print_times(results, peer, unit=1e3, name_of_unit="ms"):
    """A line for each contestant: its time, the share of its peer's, the rounds and samples that counted; libraries."""
    entries = results["contestants"]
    width = max(map(len, entries))
    print(f"{'':{width}s} {name_of_unit:>10s}   share of {peer} (quarter points)   rounds   samples (discarded)")
    doubt = False
    for name, entry in entries.items():
        if entry["error"] is not None:
            print(f"{name:{width}s} failed: {entry['error']}")
        if not entry["rounds"]:
            continue
        seconds, clean = median_seconds(results, name)
        share = ratio(results, name, peer)
        kept, discarded = (sum(len(turn[kind]) for turn in entry["rounds"]) for kind in ("kept", "discarded"))
        mark = " " if clean and share["clean"] else "~"
        doubt = doubt or mark == "~"
        quarters = f"{share['median']:.3f} ({share['low']:.3f} to {share['high']:.3f})"
        counted = f"{share['rounds']:5d}     {kept:5d} ({discarded})"
        print(f"{name:{width}s} {seconds * unit:10.3f}{mark}  {quarters:32s}  {counted}")
    if doubt:
        print("~ all samples waited for a core, and were taken nevertheless: the machine was busy")
    if not results["sees_waiting"]:
        print("this system does not tell how long a thread waited for a core: all samples are kept")
    for facts in {describe(entry["facts"]) for entry in entries.values() if entry["facts"]}:
        print(f"  {facts}")
    if results["interrupted"]:
        print("stopped by Ctrl-C; these are the rounds that were done")
    sys.stdout.flush()
