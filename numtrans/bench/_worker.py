"""The process of one contestant, ``python -m numtrans.bench._worker``: a request a line in, a reply a line out (JSON).

A process of its own keeps the threads of two libraries apart and makes memory measurable. A factory makes what is
timed: it returns a function without arguments and a dict of facts about it.
"""

import contextlib
import importlib
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path

from numtrans.bench.machine import library_facts

WAITED = 0.03  # a sample counts if the threads waited for a core for less than this share of it
SHORTEST = 0.02  # seconds: calls that are quicker are repeated within a sample


class Bench:
    """What this process times, and how."""

    def __init__(self):
        self.run, self.calls = None, 1

    def load(self, module):
        """Import a module."""
        importlib.import_module(module)
        return {}

    def setup(self, factory, arguments):
        """Call the factory ``"module:function"``, run its function twice, and describe the process."""
        module, _, name = factory.partition(":")
        self.run, facts = getattr(importlib.import_module(module), name)(**arguments)
        first = self.run()
        start = time.perf_counter()
        self.run()
        self.calls = max(1, round(SHORTEST / max(time.perf_counter() - start, 1e-7)))
        return {"facts": {**facts, **library_facts()}, "first": first, "sees_waiting": waiting() is not None}

    def sample(self, want, budget):
        """Seconds of a call: at least `want` samples that did not wait, or what `budget` seconds allow."""
        kept, discarded = [], []
        end = time.perf_counter() + budget
        while len(kept) < want and (time.perf_counter() < end or len(kept) + len(discarded) < 2):
            wait_for_quiet(end)
            before, start = waiting(), time.perf_counter()
            for _ in range(self.calls):
                self.run()
            seconds, after = time.perf_counter() - start, waiting()
            waited = 0.0 if before is None else after - before
            (kept if waited < WAITED * seconds else discarded).append(seconds / self.calls)
        return {"kept": kept, "discarded": discarded}

    def memory(self, factory, arguments):
        """Bytes that the process holds: after the imports, after `warm_up`, after the factory; the peak of two calls.

        ``peak`` is that since `warm_up`, where the system can begin a new one; ``peak_ever`` is that of the process. A
        module may have a function ``warm_up`` that makes its library load all that it loads late.
        """
        module, _, name = factory.partition(":")
        module = importlib.import_module(module)
        imported = resident()
        getattr(module, "warm_up", lambda: None)()
        warm = resident()
        peak = reset_peak()
        run, facts = getattr(module, name)(**arguments)
        made = resident()
        run()
        run()
        return {
            "facts": {**facts, **library_facts()},
            "imported": imported, "warm": warm, "made": made, "peak": peak(), "peak_ever": highest(),
        }  # fmt: skip


def waiting():
    """Seconds that the threads of this process have waited for a core, so far; None where the system does not say."""
    total, known = 0, False
    with contextlib.suppress(OSError):
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(OSError):  # a thread that has just ended
                total += int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[1])
                known = True
    return total * 1e-9 if known else None


def wait_for_quiet(end):
    """Let others finish what they run at the moment; not longer than until `end`."""
    while time.perf_counter() < end:
        try:
            status = Path("/proc/stat").read_text()
        except OSError:
            return
        if int(status.partition("procs_running")[2].split()[0]) <= 1:
            return
        time.sleep(0.002)


def resident():
    """Bytes of memory that this process holds."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return highest()


def reset_peak():
    """Begin a new peak where the system lets us; returns a function that gives the peak since, in bytes."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
        return lambda: int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024
    return highest


def highest():
    """The most bytes of memory that this process has held since it began."""
    try:
        import resource
    except ImportError as error:
        raise OSError("this system does not tell the peak memory of a process") from error
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def main():
    """Answer requests until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then closes our input
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a contestant prints is no reply
    bench = Bench()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply = getattr(bench, request.pop("do"))(**request)
        except Exception as error:
            traceback.print_exc()
            reply = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
        print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    main()
