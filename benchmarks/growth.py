"""``python -m benchmarks growth``: how the time of numtrans grows, with the batch, the layers and the cached prefix."""

import numpy as np

from benchmarks import plots
from benchmarks.common import load, note, options, print_machine, save
from numtrans.bench import Contestant, compete, median_seconds
from numtrans.bench.models import SIZES
from numtrans.checkpoint import check_folder

BASE = {**SIZES["S"], "batch": 16}
BATCHES, LAYERS = (8, 16, 32, 64), (2, 4, 8, 16)
PREFIXES = (64, 512, 1024, 2048, 4096)
AXES = ("batch", "layers", "prefix")


def add(commands):
    """Add the command to the parser."""
    command = commands.add_parser("growth", help="time against batch, layers and the cached prefix")
    command.add_argument("--axes", nargs="+", choices=AXES, default=list(AXES), help="what grows")
    options(command)
    command.set_defaults(run=run)


def run(arguments):
    """Measure each axis, print it, write the results and a plot; the status is 130 after Ctrl-C."""
    print_machine()
    check_folder(arguments.out)
    for axis in arguments.axes:
        about, unit, contestants = cases(arguments.threads)[axis]
        results = compete(list(contestants.values()), arguments.rounds, budget=1.0, say=note)
        case = {"about": about, "unit": unit, "points": list(contestants), "results": results}
        save(arguments.out, f"growth-{axis}", {"threads": arguments.threads}, case)
        report(axis, case)
        if results["interrupted"]:
            break
    found = load(arguments.out, "growth")
    plots.growth({axis: found[axis]["results"] for axis in AXES if axis in found}, arguments.out / "growth.png")
    return 130 if results["interrupted"] else 0


def cases(threads):
    """Axis -> what it is, what its time is divided by, and the contestants by point."""

    def train(**changes):
        name = " ".join(f"{key} {value}" for key, value in changes.items())
        return Contestant(name, "numtrans.bench._numtrans:train", {"size": {**BASE, **changes}}, threads)

    width = f"width {BASE['d_model']}, T {BASE['tokens']}"
    of_batch = f"a training step, {BASE['num_layers']} layers, {width}"
    of_layers = f"a training step, batch {BASE['batch']}, {width}"
    cached = "numtrans.bench._numtrans:cached_step"
    steps = {n: Contestant(f"prefix {n}", cached, {"prefix": n}, threads) for n in PREFIXES}
    return {
        "batch": (of_batch, "sequence", {n: train(batch=n) for n in BATCHES}),
        "layers": (of_layers, "layer", {n: train(num_layers=n) for n in LAYERS}),
        "prefix": ("a cached step of one token, 6 layers, width 384", None, steps),
    }


def line_fit(points, seconds):
    """Least squares of ``seconds = a + b * points``: a, b, and the largest relative residual."""
    b, a = np.polyfit(points, seconds, 1)
    residual = np.max(np.abs(np.asarray(seconds) - (a + b * np.asarray(points))) / np.asarray(seconds))
    return float(a), float(b), float(residual)


def measured(case):
    """The points that have a time, and their seconds."""
    results = case["results"]
    names = dict(zip(case["points"], results["contestants"]))
    pairs = [(point, median_seconds(results, name)[0]) for point, name in names.items()]
    pairs = [(point, seconds) for point, seconds in pairs if np.isfinite(seconds)]
    return [point for point, _ in pairs], [seconds for _, seconds in pairs]


def clean(case):
    """Whether every point has samples that did not wait for a core."""
    results = case["results"]
    return all(median_seconds(results, name)[1] for name in results["contestants"])


def spread(points, seconds):
    """By how much the time of a unit at the dearest point exceeds that at the cheapest, as a share."""
    each = np.asarray(seconds) / np.asarray(points)
    return float(each.max() / each.min() - 1)


def report(axis, case):
    """Print the times of one axis, and what they say."""
    points, seconds = measured(case)
    print(f"\n{axis}: {case['about']}")
    if not clean(case):
        print("some points have only samples that waited for a core: the machine was busy")
    for point, time in zip(points, seconds):
        each = f"  {1e3 * time / point:9.4f} ms a {case['unit']}" if case["unit"] else ""
        print(f"{point:8d} {1e3 * time:10.3f} ms{each}")
    if len(points) < 3:
        return
    fixed, slope, residual = line_fit(points, seconds)
    if case["unit"]:
        print(f"time of a {case['unit']}: the dearest is {spread(points, seconds):.1%} above the cheapest")
    print(f"line: {1e3 * fixed:.3f} ms + {1e6 * slope:.3f} us each, largest residual {residual:.1%}", flush=True)
