"""The pictures of the benchmarks."""

from numtrans.bench import median_seconds, ratio
from numtrans.figures import BLACK, COLORS, new_figure, saved


def train(cases, path, peer="PyTorch eager"):
    """A bar for each contestant and size: its time as a share of the peer's, with the quarter points of the rounds."""
    cases = {name: content["results"] for name, content in cases.items() if ran(content["results"], peer)}
    names = list(dict.fromkeys(n for r in cases.values() for n in r["contestants"] if n != peer and ran(r, n)))
    if not names:
        return
    figure = new_figure(max(5, 1.6 * len(cases)), 3.6)
    axis = figure.subplots()
    width = 0.8 / max(1, len(names))
    for i, (name, color) in enumerate(zip(names, COLORS)):
        shares = {x: ratio(results, name, peer) for x, results in enumerate(cases.values()) if ran(results, name)}
        places = [x + (i - (len(names) - 1) / 2) * width for x in shares]
        middle = [share["median"] for share in shares.values()]
        spread = [[share["median"] - share["low"] for share in shares.values()],
                  [share["high"] - share["median"] for share in shares.values()]]  # fmt: skip
        axis.bar(places, middle, width * 0.92, yerr=spread, color=color, ecolor=BLACK, capsize=2, label=name)
    axis.axhline(1.0, color=BLACK, linewidth=1, linestyle="--")
    axis.annotate(peer, (1, 1.0), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize="small")
    axis.set_xticks(range(len(cases)), cases)
    axis.set_ylabel(f"time as a share of {peer}")
    axis.set_title("A training step: less is faster")
    axis.legend(fontsize="small", ncols=len(names), loc="upper center", bbox_to_anchor=(0.5, -0.1), frameon=False)
    saved(figure, path)


def ran(results, name):
    """Whether a contestant has samples."""
    return bool(results["contestants"].get(name, {}).get("rounds"))


def growth(cases, path):
    """Time against batch, layers and prefix, each with the line that fits best."""
    from benchmarks.growth import line_fit, measured

    cases = {name: case for name, case in cases.items() if measured(case)[0]}
    if not cases:
        return
    figure = new_figure(10, 3.2)
    for axis, (name, case), color in zip(figure.subplots(1, 3), cases.items(), COLORS):
        points, seconds = measured(case)
        if len(points) > 1:
            fixed, slope, residual = line_fit(points, seconds)
            axis.plot(points, [1e3 * (fixed + slope * x) for x in points], color=BLACK, linewidth=1)
            axis.set_title(f"{name}: a line to {residual:.0%}", fontsize="medium")
        axis.plot(points, [1e3 * s for s in seconds], "o", color=color)
        axis.set_xlabel(name)
        axis.set_ylabel("milliseconds a step")
        axis.set_ylim(bottom=0)
    saved(figure, path)


def attention(cases, path):
    """Time and extra memory against the number of tokens, both axes logarithmic."""
    cases = {int(T): content["results"] for T, content in cases.items()}
    cases = dict(sorted(cases.items()))
    names = list(dict.fromkeys(name for r in cases.values() for name in r["contestants"] if ran(r, name)))
    if not names:
        return
    figure = new_figure(9, 3.6)
    left, right = figure.subplots(1, 2)
    for name, color, marker in zip(names, COLORS, "os^Dv*x"):
        style = dict(color=color, marker=marker, label=name)
        times = [(T, 1e3 * median_seconds(r, name)[0]) for T, r in cases.items() if ran(r, name)]
        extra = [(T, r["extra"][name] / 1e6) for T, r in cases.items() if r.get("extra", {}).get(name, 0) > 0]
        left.loglog(*zip(*times), **style) if times else None
        right.loglog(*zip(*extra), **style) if extra else None
    for axis, what in ((left, "milliseconds"), (right, "extra memory, MB")):
        axis.set_xlabel("tokens T")
        axis.set_ylabel(what)
        axis.set_xscale("log", base=2)
        if axis.lines:  # after Ctrl-C there may be times and no memory
            axis.legend(fontsize="small", frameon=False)
    left.set_title("Time")
    right.set_title("Memory")
    figure.suptitle("Attention forward and backward, causal, 8 heads of 64")
    saved(figure, path)
