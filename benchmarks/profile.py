"""``python -m benchmarks profile``: where the time of a training step goes, layer by layer."""

from benchmarks.common import note, options, print_machine, save, shown
from numtrans.bench import Contestant, compete, median_seconds
from numtrans.bench.models import SIZES, size_text
from numtrans.checkpoint import check_folder

PROFILE, PRODUCTS = "profile", "matrix products"
SMALL = 0.005  # classes with less of the time are added up


def add(commands):
    """Add the command to the parser."""
    command = commands.add_parser("profile", help="the time of a shard on one thread by kind of layer")
    command.add_argument("--sizes", nargs="+", choices=SIZES, default=["S", "M"], help="what is trained")
    options(command, rounds=3)
    command.set_defaults(run=run)


def run(arguments):
    """Profile each size beside its matrix products, print and write the tables; the status is 130 after Ctrl-C."""
    print_machine()
    check_folder(arguments.out)
    for case in arguments.sizes:
        size = SIZES[case]
        shard = {**size, "batch": max(size["batch"] // arguments.threads, 1)}
        contestants = [
            Contestant(PROFILE, "numtrans.bench._profile:profile", {"size": shard}, 1),
            Contestant(PRODUCTS, "numtrans.bench._products:train", {"size": shard}, 1),
        ]
        results = compete(contestants, arguments.rounds, budget=2.0, say=note)
        save(arguments.out, f"profile-{case}", {"size": shard, "threads": 1}, results)
        print(f"\n{case}, the part of one of {arguments.threads} threads: {size_text(shard)}\n")
        print("\n".join(table(results)), flush=True)
        if results["interrupted"]:
            break
    return 130 if results["interrupted"] else 0


def table(results):
    """The lines of the table of one case, as Markdown; the kinds of layers that take most stand first."""
    entry = results["contestants"][PROFILE]
    if entry["error"] is not None:
        return [f"failed: {entry['error']}"]
    if entry["first"] is None:  # Ctrl-C came before
        return ["nothing was measured"]
    rows = {}
    for name, direction, seconds in entry["first"]:
        rows.setdefault(name, [0.0, 0.0])[direction == "backward"] += seconds
    whole = sum(map(sum, rows.values()))
    lines = ["| class | forward or step, ms | backward, ms | share |", "|---|---|---|---|"]
    few = [name for name in rows if sum(rows[name]) < SMALL * whole]
    rows[f"{len(few)} others"] = [sum(rows[name][i] for name in few) for i in range(2)]
    for name in sorted(rows.keys() - few, key=lambda name: sum(rows[name]), reverse=True):
        ahead, back = rows[name]
        lines.append(f"| {name} | {1e3 * ahead:.2f} | {1e3 * back:.2f} | {(ahead + back) / whole:.1%} |")
    products, _ = median_seconds(results, PRODUCTS)
    lines.append(f"| all | {1e3 * whole:.2f} | | |")
    each, share = shown(1e3 * products), shown(products / whole, ".1%")
    return [*lines, f"| the matrix products alone | {each} | | {share} |"]
