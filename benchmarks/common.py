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
from numtrans.errors import DataError

RESULTS = Path(__file__).parent / "results"
HELD = ("name", "date", "machine", "results")  # what a file holds, and below what is read of its parts
MACHINE = ("processor", "cores", "memory_gb", "python")
CONTESTANT, TURN = ("facts", "first", "error", "rounds"), ("kept", "discarded")
MEMORY = ("imported", "warm", "made", "peak", "peak_ever")
PARTS = {  # of the results of a benchmark
    "train": ("contestants",), "attention": ("contestants",), "profile": ("contestants",), "memory": (),
    "generate": ("contestants", "tokens"), "growth": ("unit", "points", "results"), "import": ("seconds",),
    "demo": ("seconds",),
}  # fmt: skip


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

    Where nothing was measured nothing is written, and a file of an earlier run stays.

    Parameters
    ----------
    out : Path
    name : str
        The benchmark and its case, such as ``"train-S"``.
    about : dict
        What the case is.
    results : dict
    """
    path = Path(out) / f"{name}.json"
    if nothing_measured(results):
        note(f"{name}: nothing was measured, {path} is {'left as it is' if path.exists() else 'not written'}")
        return
    check_folder(out)
    command = shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]])
    when = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    write_json(path, {"name": name, **about, "date": when, "command": command,
                      "machine": machine_facts(), "results": results})  # fmt: skip


def nothing_measured(results):
    """Whether no contestant has a round and, where there are no contestants, there is no number at all."""
    results = results.get("results", results)  # those of an axis of `growth`
    if "contestants" in results:
        return not any(entry["rounds"] for entry in results["contestants"].values())
    found = results.get("seconds", results)
    return isinstance(found, dict) and not any(found.values())


def load(out, benchmark):
    """What `save` has written to the folder `out` for a benchmark: case -> content.

    Raises
    ------
    DataError
        If there is no such folder, or a file in it is not what `save` writes; the message has its path and the cause.
    """
    if not Path(out).is_dir():
        raise DataError(f"{out}: expected the folder of the results, and there is no such folder")
    found = {}
    for path in sorted(Path(out).glob(f"{benchmark}*.json")):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError(f"{path}: cannot be read as results of a benchmark: {error}") from error
        check_content(path, benchmark, content)
        found[case_of(path, benchmark, content["name"])] = content
    return found


def check_content(path, benchmark, content):
    """See that a file has the parts that `save` writes."""
    expect(path, content, HELD)
    expect(path, content["machine"], MACHINE)
    results = content["results"]
    expect(path, results, PARTS[benchmark])
    if benchmark == "memory":
        for each in results.values():
            for found in expect_list(path, each):
                expect(path, found, MEMORY)
    if benchmark == "import":
        expect(path, results["seconds"], ("numpy", "numtrans"))
    results = results["results"] if benchmark == "growth" else results
    if "contestants" in PARTS[benchmark] or benchmark == "growth":
        expect(path, results, ("contestants",))
        expect(path, results["contestants"], ())
        for entry in results["contestants"].values():
            expect(path, entry, CONTESTANT)
            for turn in expect_list(path, entry["rounds"]):
                expect(path, turn, TURN)


def expect(path, value, keys):
    """See that a part of a file is a dict with these keys."""
    if not isinstance(value, dict) or not set(keys) <= value.keys():
        wanted = f"an object with {', '.join(keys)}" if keys else "an object"
        came = f"one with {', '.join(value) or 'nothing'}" if isinstance(value, dict) else repr(value)[:60]
        raise DataError(f"{path}: expected the results of a benchmark, here {wanted}; got {came}")


def expect_list(path, value):
    """See that a part of a file is a list; returns it."""
    if not isinstance(value, list):
        raise DataError(f"{path}: expected the results of a benchmark, here a list; got {repr(value)[:60]}")
    return value


def case_of(path, benchmark, name):
    """The case in the name of a benchmark and its case."""
    case = str(name).removeprefix(f"{benchmark}-")
    if benchmark == "attention" and (not case.isdecimal() or int(case) < 1):
        raise DataError(f"{path}: expected the name attention-T with T tokens, 1 or more; got {name!r}")
    return case


def print_machine():
    """Print what the numbers depend on."""
    facts = machine_facts()
    print(f"{facts['processor']}, {facts['cores']} cores, {facts['memory_gb']} GB, {facts['system']}")
    print(f"Python {facts['python']}", flush=True)


def note(text):
    """Print a line about what goes on, aside from the results."""
    print(text, file=sys.stderr, flush=True)


def shown(value, form=".2f"):
    """A number as text, a dash where there is none."""
    return format(value, form) if math.isfinite(value) else "-"


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
        quarters = f"{share['median']:.3f} ({share['low']:.3f} to {share['high']:.3f})" if share["rounds"] else "-"
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
