"""``python -m benchmarks train``: the time of a training step, forward, loss, backward and AdamW."""

from benchmarks import plots
from benchmarks.common import load, note, options, print_machine, print_times, save, seconds
from numtrans.bench import Contestant, compete, ratio
from numtrans.bench.models import SIZES, size_text
from numtrans.checkpoint import check_folder
from numtrans.errors import ConfigError

EAGER, COMPILED, NUMTRANS, PRODUCTS = "PyTorch eager", "torch.compile", "numtrans", "matrix products"
PROCESSES = "numtrans, processes"
CONTESTANTS = {
    "numtrans": (NUMTRANS, "numtrans.bench._numtrans:train", {}),
    "processes": (PROCESSES, "numtrans.bench._numtrans:train", {"kind": "processes"}),
    "eager": (EAGER, "numtrans.bench._pytorch:train", {}),
    "compile": (COMPILED, "numtrans.bench._pytorch:train", {"compiled": True}),
    "products": (PRODUCTS, "numtrans.bench._products:train", {}),
}
CASES = {"S": None, "M": None, "L": None, "S-1-thread": 1, "encoder-decoder": None, "BERT": None}  # name -> threads


def add(commands):
    """Add the command to the parser."""
    command = commands.add_parser("train", help="a training step against PyTorch and the matrix products alone")
    command.add_argument("--sizes", nargs="+", choices=CASES, default=list(CASES), help="what is trained")
    command.add_argument(
        "--contestants", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS), help="who takes part"
    )
    command.add_argument("--budget", type=seconds, default=2.0, help="seconds of a turn")
    options(command)
    command.set_defaults(run=run)


def run(arguments):
    """Time each size, print a table, write the results and their plot; the status is 130 after Ctrl-C."""
    entrants = {case: contestants_of(case, arguments) for case in arguments.sizes}
    print_machine()
    check_folder(arguments.out)
    for case, contestants in entrants.items():
        size, threads = SIZES[case.removesuffix("-1-thread")], contestants[0].threads
        print(f"\n{case}: {size_text(size)}; {threads} thread(s), {arguments.rounds} rounds", flush=True)
        results = compete(contestants, arguments.rounds, budget=arguments.budget, say=note)
        save(arguments.out, f"train-{case}", {"size": size, "threads": threads}, results)
        report(results)
        if results["interrupted"]:
            break
    found = load(arguments.out, "train")
    plots.train({case: found[case] for case in CASES if case in found}, arguments.out / "train.png")
    return 130 if results["interrupted"] else 0


def contestants_of(case, arguments):
    """Who takes part in a case; processes share the work only where there is more than one thread."""
    size, threads = SIZES[case.removesuffix("-1-thread")], CASES[case] or arguments.threads
    found = [
        Contestant(name, factory, {"size": size, **extra}, threads)
        for key, (name, factory, extra) in CONTESTANTS.items()
        if key in arguments.contestants and (key != "processes" or threads > 1)
    ]
    if not found:
        raise ConfigError(f"train: {case} with 1 thread expected a contestant other than processes, which need more "
                          f"than one thread; got --contestants {' '.join(arguments.contestants)}")  # fmt: skip
    return found


def report(results):
    """Print the table of one case, and see that the models have the same number of parameters."""
    present = [name for name, entry in results["contestants"].items() if entry["rounds"]]
    peer = EAGER if EAGER in present else next(iter(results["contestants"]))
    print_times(results, peer)
    facts = {name: results["contestants"][name]["facts"] for name in present}
    parameters = {name: f["parameters"] for name, f in facts.items() if "parameters" in f and name != PRODUCTS}
    if len(set(parameters.values())) > 1:
        print(f"the models differ in their parameters: {parameters}")
    for own in (NUMTRANS, PROCESSES):
        for other in (COMPILED, PRODUCTS):
            if own in present and other in present:
                print(f"  {own} as a share of {other}: {ratio(results, own, other)['median']:.3f}")
