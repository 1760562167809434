"""A minute's look at the speed of numtrans on this machine, beside PyTorch where it is installed."""

from numtrans.bench.models import SIZES, size_text
from numtrans.bench.turns import Contestant, ContestantError, Worker, compete, median_seconds, ratio

NUMTRANS, PYTORCH = "numtrans", "PyTorch"
TOKENS = 64


def cases(sizes):
    """Title -> the name of the factory, its arguments, and tokens that a call writes (None if it writes none).

    `sizes` are keys of ``numtrans.bench.models.SIZES``.
    """
    found = {f"training step {name}": ("train", {"size": SIZES[name]}, None) for name in sizes}
    found["attention, T 1024"] = ("attention", {"tokens": 1024}, None)
    found["generation, GPT of size M"] = ("generate_small", {"tokens": TOKENS}, TOKENS)
    return found


def legend(sizes):
    """Lines that say what is timed."""
    return [
        *(f"training step {name}: forward, loss, backward, AdamW; {size_text(SIZES[name])}" for name in sizes),
        "attention: forward and backward, causal, two sequences, 8 heads of 64; PyTorch's is fused",
        f"generation: {TOKENS} tokens, greedy, with a cache, batch 1, random weights, vocabulary 5000",
    ]


def why_no_pytorch():
    """Why PyTorch cannot be imported, as a sentence; None if it can. It is tried in a process of its own."""
    worker = Worker(1)
    try:
        worker.ask(120.0, do="load", module="torch")
    except ContestantError as error:
        missing = str(error) == "ModuleNotFoundError: No module named 'torch'"
        why = "is not installed" if missing else f"cannot be imported ({error})"
        return f"PyTorch {why}, so there is nothing to compare with."
    finally:
        worker.close()
    return None


def measure(case, threads, rounds, say=None, *, pytorch=True):
    """Time one of `cases`, numtrans and, unless `pytorch` is False, PyTorch, in turns.

    Returns
    -------
    dict
        What `compete` returned.
    """
    factory, arguments, _ = case
    modules = {NUMTRANS: "numtrans.bench._numtrans"} | ({PYTORCH: "numtrans.bench._pytorch"} if pytorch else {})
    contestants = [Contestant(name, f"{module}:{factory}", arguments, threads) for name, module in modules.items()]
    return compete(contestants, rounds, budget=1.0, limit=120.0, say=say)


HEAD = f"{'':26s} {NUMTRANS:>16s} {PYTORCH:>16s}   {'time, share of PyTorch (quarter points)'}"


def row(title, case, results):
    """The line of one case below `HEAD`; ``~`` marks times that are made of samples that waited for a core."""
    tokens = case[2]
    cells = []
    for name in (NUMTRANS, PYTORCH):
        entry = results["contestants"].get(name)
        if entry is None or not entry["rounds"]:
            cells.append("-" if entry is None or entry["error"] is None else "failed")
            continue
        seconds, clean = median_seconds(results, name)
        text = f"{1e3 * seconds:.2f} ms" if tokens is None else f"{tokens / seconds:.1f} tokens/s"
        cells.append(text + (" " if clean else "~"))
    line = f"{title:26s} {cells[0]:>16s} {cells[1]:>16s}"
    if PYTORCH in results["contestants"]:
        share = ratio(results, NUMTRANS, PYTORCH)
        if share["rounds"]:
            line += f"   {share['median']:.2f} ({share['low']:.2f} to {share['high']:.2f})"
    return line
