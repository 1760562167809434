"""``python -m benchmarks table``: the goals and what was measured, as Markdown, from the JSON files of the results."""

import math

from benchmarks import attention, generate, growth, imports, memory, plots, train
from benchmarks.common import RESULTS, load, shown
from numtrans.bench import ratio
from numtrans.bench.machine import describe

STEP = {  # case -> most that a training step may take: of PyTorch eager, of PyTorch's best mode, of the products alone
    "S": (0.80, 0.95, 1.35), "M": (0.80, 0.95, 1.05), "L": (0.80, 0.95, 1.25), "S-1-thread": (1.0, None, None),
    "encoder-decoder": (1.0, None, None), "BERT": (1.0, None, None),
}  # fmt: skip
MEMORY = {"S": 0.80, "M": 0.80, "L": 0.95}
ATTENTION_TIME, ATTENTION_MEMORY = 1.05, 0.40
RATE, BOUND = 1.8, 0.75
GROWTH, IMPORT, DEMO = 0.10, 1.5, 90


def add(commands):
    """Add the command to the parser."""
    command = commands.add_parser("table", help="the goals and the results, as a table in Markdown")
    command.add_argument("--out", type=type(RESULTS), default=RESULTS, metavar="DIR", help="folder of the results")
    command.set_defaults(run=run)


def run(arguments):
    """Print the table, and below it when and where the numbers were taken."""
    out = arguments.out
    print("| what | goal | measured | met | command |\n|---|---|---|---|---|")
    for rows in (train_rows, memory_rows, attention_rows, generate_rows, growth_rows, import_rows, demo_rows):
        for what, goal, measured, met, command in rows(out):
            print(f"| {what} | {goal} | {measured} | {met} | `{command}` |")
    print()
    for line in origins(out):
        print(line)


def at_most(value, goal):
    """``"yes"`` or ``"no"``, for a number that is to be small; a dash if it was not measured."""
    return "-" if not math.isfinite(value) else "yes" if value <= goal else "no"


def spread(share):
    """A ratio with its quarter points and the number of rounds, marked if the machine was never quiet; or a dash."""
    if not share["rounds"]:
        return "-"
    rounds = f"{share['rounds']} round{'s' * (share['rounds'] != 1)}{'' if share['clean'] else ', ~'}"
    return f"{share['median']:.2f} ({share['low']:.2f} to {share['high']:.2f}; {rounds})"


def share_row(what, share, goal, command):
    """A row for a ratio of times that is to be small."""
    return what, f"<= {goal:.2f}", spread(share), at_most(share["median"], goal), command


def train_rows(out):
    """Training steps against PyTorch eager, its best mode and the matrix products."""
    cases = load(out, "train")
    rows = []
    for case, (eager, best, products) in STEP.items():
        if case not in cases:
            continue
        results, command = cases[case]["results"], f"python -m benchmarks train --sizes {case}"
        own = quicker_kind(results)
        if own is None:
            continue
        shares = {name: ratio(results, own, name) for name in results["contestants"]}
        shares = {name: share for name, share in shares.items() if share["rounds"]}
        case = f"{case}, processes" if own == train.PROCESSES else case
        if train.EAGER in shares:
            rows.append(share_row(f"step {case}: of {train.EAGER}", shares[train.EAGER], eager, command))
        if best and train.EAGER in shares and train.COMPILED in results["contestants"]:
            compiled = train.COMPILED in shares and ratio(results, train.COMPILED, train.EAGER)["median"] < 1
            quickest = train.COMPILED if compiled else train.EAGER
            rows.append(share_row(f"step {case}: of PyTorch's best ({quickest})", shares[quickest], best, command))
        if products and train.PRODUCTS in shares:
            rows.append(share_row(f"step {case}: of the {train.PRODUCTS}", shares[train.PRODUCTS], products, command))
    return rows


def quicker_kind(results):
    """The name of numtrans with the quicker of its two kinds of workers; None if neither ran."""
    ran = [name for name in (train.NUMTRANS, train.PROCESSES) if plots.ran(results, name)]
    quicker = len(ran) == 2 and ratio(results, train.PROCESSES, train.NUMTRANS)["median"] < 1
    return train.PROCESSES if quicker else next(iter(ran), None)


def memory_rows(out):
    """Peak memory of a training step."""
    cases = load(out, "memory")
    rows = []
    for case, goal in MEMORY.items():
        if case in cases:
            results, command = cases[case]["results"], f"python -m benchmarks memory --sizes {case}"
            value, arrays = memory.share(results), memory.share(results, memory.ABOVE_TINY_STEP)
            measured = f"{shown(value)} (above a tiny step: {shown(arrays)})"
            rows.append((f"memory {case}: of {train.EAGER}", f"<= {goal:.2f}", measured, at_most(value, goal), command))
    return rows


def attention_rows(out):
    """Time and extra memory of attention, and how the memory grows between the two longest."""
    cases = {int(tokens): content["results"] for tokens, content in load(out, "attention").items()}
    name, command, rows, extra = attention.OURS, "python -m benchmarks attention", [], {}
    for tokens in sorted(cases):
        results = cases[tokens]
        if not {name, attention.FUSED} <= results["contestants"].keys():
            continue
        share = ratio(results, name, attention.FUSED)
        rows.append(share_row(f"attention, T {tokens}: time, of {attention.FUSED}", share, ATTENTION_TIME, command))
        value = attention.memory_share(results, name)
        met = at_most(value, ATTENTION_MEMORY)
        what = f"attention, T {tokens}: extra memory, of {attention.FUSED}"
        rows.append((what, f"<= {ATTENTION_MEMORY:.2f}", shown(value), met, command))
        if results.get("extra", {}).get(name, 0) > 0:
            extra[tokens] = results["extra"][name]
    if len(extra) > 1:
        (short, low), (long, high) = list(extra.items())[-2:]
        power = math.log(high / low) / math.log(long / short)
        what = f"attention: power of T that the memory follows, from T {short} to {long}"
        rows.append((what, "1", f"{power:.2f}", at_most(abs(power - 1), 0.1), command))
    return rows


def generate_rows(out):
    """Tokens a second."""
    rows = []
    for key, content in load(out, "generate").items():
        results, title = content["results"], generate.MODELS.get(key, key)
        command, peer = f"python -m benchmarks generate --models {key}", generate.quicker_peer(results)
        if peer:
            found = ratio(results, generate.NUMTRANS, peer)
            rate, what = 1 / found["median"], f"{title}: tokens/s, times those of {peer}"
            times = found | {"median": rate, "low": 1 / found["high"], "high": 1 / found["low"]}
            rows.append((what, f">= {RATE}", spread(times), at_most(-rate, -RATE), command))
        share = generate.bound_share(results, generate.NUMTRANS)
        what = f"{title}: share of the memory-bandwidth bound"
        rows.append((what, f">= {BOUND:.0%}", shown(share, ".0%"), at_most(-share, -BOUND), command))
    return rows


def growth_rows(out):
    """How far the time of a unit differs, and how far a cached step is from a line."""
    rows, command = [], "python -m benchmarks growth"
    for axis, content in load(out, "growth").items():
        case = content["results"]
        points, seconds = growth.measured(case)
        if len(points) < 3:
            continue
        fixed, slope, residual = growth.line_fit(points, seconds)
        span, value = f"{axis} {points[0]} to {points[-1]}", residual
        doubt = "" if growth.clean(case) else ", ~"
        line = f"{1e3 * fixed:.1f} ms + {1e6 * slope:.1f} us each, to {residual:.0%}{doubt}"
        what, measured = f"growth: distance of a cached step from a line, {span}", line
        if case["unit"]:
            value = growth.spread(points, seconds)
            what = f"growth: time of a {case['unit']}, dearest above cheapest, {span}"
            measured = f"{value:.0%} ({line})"
        rows.append((what, f"<= {GROWTH:.0%}", measured, at_most(value, GROWTH), command))
    return rows


def import_rows(out):
    """Time of the import."""
    rows = []
    for content in load(out, "import").values():
        value, what = imports.share(content["results"]), "import numtrans: of import numpy"
        rows.append((what, f"<= {IMPORT}", shown(value), at_most(value, IMPORT), "python -m benchmarks import"))
    return rows


def demo_rows(out):
    """Seconds of the training part of the demo."""
    rows = []
    for content in load(out, "demo").values():
        value, command = content["results"]["seconds"], "python -m benchmarks demo"
        rows.append(("numtrans demo: training", f"<= {DEMO} s", f"{value} s", at_most(value, DEMO), command))
    return rows


def origins(out):
    """Lines that say when, on which machine and with which libraries the results were taken."""
    lines = {}  # a set that keeps its order
    for benchmark in ("train", "memory", "attention", "generate", "growth", "import", "demo"):
        for content in load(out, benchmark).values():
            m, day = content["machine"], content["date"].partition(" ")[0]
            lines[f"{day}: {m['processor']}, {m['cores']} cores, {m['memory_gb']} GB, Python {m['python']}"] = None
            for entry in content["results"].get("contestants", {}).values():
                lines.update({describe(entry["facts"]): None} if entry["facts"] else {})
    return list(lines)
