"""``python -m benchmarks attention``: causal attention, forward and backward, over T tokens: time and extra memory.

Two sequences, 8 heads of 64 features, float32; in numtrans a thread takes one sequence. Extra memory is the peak of a
call above what is held before it: the inputs, the gradient of the output and the library.
"""

import math

from benchmarks import plots
from benchmarks.common import load, note, options, print_machine, print_times, save, seconds, shown
from numtrans.bench import Contestant, ContestantError, compete, peak_memory, ratio
from numtrans.checkpoint import check_folder
from numtrans.cli.arguments import positive

FUSED = "PyTorch fused"
OURS = "numtrans"  # the form that is chosen without block_size: in tiles where there are many scores
# name -> factory, its arguments, and the longest T for which it takes part: the plain form makes half of (8, T, T)
CONTESTANTS = {
    OURS: ("numtrans.bench._numtrans:attention", {}, math.inf),
    "numtrans plain": ("numtrans.bench._numtrans:attention", {"block_size": 0}, 4096),
    FUSED: ("numtrans.bench._pytorch:attention", {}, math.inf),
}
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)


def add(commands):
    """Add the command to the parser."""
    command = commands.add_parser("attention", help="time and memory of attention against the number of tokens")
    command.add_argument("--lengths", nargs="+", type=positive, default=list(LENGTHS), metavar="T", help="tokens")
    command.add_argument("--budget", type=seconds, default=2.0, help="seconds of a turn")
    options(command)
    command.set_defaults(run=run)


def run(arguments):
    """Measure each T, print the tables, write the results and their plot; the status is 130 after Ctrl-C."""
    print_machine()
    check_folder(arguments.out)
    interrupted = False
    for tokens in arguments.lengths:
        contestants = [
            Contestant(name, factory, {"tokens": tokens, **extra}, arguments.threads)
            for name, (factory, extra, longest) in CONTESTANTS.items() if tokens <= longest
        ]  # fmt: skip
        print(f"\nT {tokens}, 2 sequences, 8 heads of 64, causal, {arguments.threads} thread(s)", flush=True)
        results = compete(contestants, arguments.rounds, budget=arguments.budget, limit=600.0, say=note)
        save(arguments.out, f"attention-{tokens}", {"threads": arguments.threads}, results)
        print_times(results, FUSED)
        interrupted = results["interrupted"]
        if not interrupted:
            results["extra"], interrupted = extra_memory(contestants)
            save(arguments.out, f"attention-{tokens}", {"threads": arguments.threads}, results)
            print_memory(results)
        if interrupted:
            break
    plots.attention(load(arguments.out, "attention"), arguments.out / "attention.png")
    return 130 if interrupted else 0


def extra_memory(contestants):
    """Name -> bytes that a call needs at its peak, for those that did not fail; and whether Ctrl-C came."""
    found = {}
    try:
        for contestant in contestants:
            try:
                measured = peak_memory(contestant, limit=600.0)
                found[contestant.name] = measured["peak"] - measured["made"]
            except ContestantError as error:
                note(f"{contestant.name}: {error}")
    except KeyboardInterrupt:
        note("stopped by Ctrl-C; this is what was measured")
        return found, True
    return found, False


def print_memory(results):
    """Print the extra memory and its share of PyTorch's."""
    for name, extra in results["extra"].items():
        share = f", share of {FUSED} {shown(memory_share(results, name))}" if FUSED in results["extra"] else ""
        print(f"  {name}: {extra / 1e6:.1f} MB extra{share}", flush=True)


def memory_share(results, name):
    """The extra memory of a contestant as a share of that of PyTorch's fused attention; NaN if one is missing."""
    extra = results.get("extra", {})
    return extra[name] / extra[FUSED] if name in extra and extra.get(FUSED, 0) > 0 else float("nan")


def time_share(results, name):
    """The time of a contestant as a share of that of PyTorch's fused attention; NaN if one is missing."""
    present = name in results["contestants"] and FUSED in results["contestants"]
    return ratio(results, name, FUSED)["median"] if present else float("nan")
