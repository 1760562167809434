"""Contestants in turns, each in a process of its own, so that what else the machine does meets all alike."""

import json
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field

from numtrans.errors import NumtransError

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
KERNEL_VARIABLES = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")  # they make OpenBLAS choose a slower kernel
PAUSE = 0.05  # seconds between turns: the threads of the last contestant go to sleep


class ContestantError(NumtransError, RuntimeError):
    """The process of a contestant failed, died, or did not answer in time."""


@dataclass(frozen=True)
class Contestant:
    """What takes part in a benchmark.

    Parameters
    ----------
    name : str
    factory : str
        ``"module:function"``. In the process of the contestant it is called with `arguments` and returns the function
        that is timed, without arguments, and a dict of facts about it. What the timed function returns must fit JSON.
    arguments : dict
    threads : int
        Of the BLAS, OpenMP and PyTorch.
    """

    name: str
    factory: str
    arguments: dict = field(default_factory=dict)
    threads: int = 2


class Worker:
    """A process that runs one contestant when asked.

    Parameters
    ----------
    threads : int

    Raises
    ------
    ContestantError
        By `ask`, if the contestant fails, or its process dies or does not answer in time.
    """

    def __init__(self, threads):
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115, closed by `close`
        self.process = subprocess.Popen(
            [sys.executable, "-m", "numtrans.bench._worker"], env=environment(threads), text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
        )  # fmt: skip
        self.lines = queue.Queue()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)  # the end

    def ask(self, limit, **request):
        """The reply to `request`, a dict, or `ContestantError` after `limit` seconds."""
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            line = self.lines.get(timeout=limit)
        except queue.Empty:
            self.close()
            raise ContestantError(f"no answer to {request['do']!r} within {limit:.0f} seconds") from None
        except OSError:
            line = None
        if line is None:
            self.process.wait()
            last = self._last_error()
            raise ContestantError(f"its process ended with status {self.process.returncode}{last and f'. {last}'}")
        reply = json.loads(line)
        if "error" in reply:
            raise ContestantError(reply["error"])
        return reply

    def _last_error(self):
        self.errors.seek(0)
        lines = self.errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def close(self):
        """End the process."""
        for end in (self.process.stdin.close, self.process.terminate, self.process.kill):
            try:
                end()
                self.process.wait(timeout=2)
                break
            except (OSError, subprocess.TimeoutExpired):
                continue
        self.errors.close()
        self.reader.join(timeout=2)
        if not self.reader.is_alive():  # it is when a process that the contestant has started holds the pipe
            self.process.stdout.close()


def environment(threads):
    """The environment of a contestant: the threads set, the variables that choose another BLAS kernel removed."""
    kept = {name: value for name, value in os.environ.items() if name not in KERNEL_VARIABLES}
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return kept | dict.fromkeys(THREAD_VARIABLES, str(threads)) | {
        "PYTHONPATH": path, "NUMTRANS_BENCH_THREADS": str(threads), "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }  # fmt: skip


def compete(contestants, rounds=7, *, want=3, budget=2.0, limit=300.0, say=None):
    """Time the contestants in turns.

    Parameters
    ----------
    contestants : list of Contestant
    rounds : int
        Turns of each; every second round goes in reverse order.
    want : int
        Samples in a turn that did not wait for a core; others are taken again.
    budget : float
        Seconds of a turn; a turn has two samples at least.
    limit : float
        Seconds after which a contestant that does not answer is out; for a turn, those beyond its budget.
    say : callable, optional
        Called with a line of text when something happens.

    Returns
    -------
    dict
        What JSON can hold: ``contestants`` (name -> ``facts``, ``first``, the value of the first call, ``error`` or
        None, and ``rounds``, a list of ``{"kept": [seconds], "discarded": [seconds]}``), ``sees_waiting`` (whether
        the system tells how long a thread waited; if not, all samples are kept) and ``interrupted`` (Ctrl-C: what has
        been measured is there).
    """
    say = say or (lambda text: None)
    entries = {c.name: {"facts": {}, "first": None, "error": None, "rounds": []} for c in contestants}
    results = {"contestants": entries, "sees_waiting": True, "interrupted": False}
    workers = {}

    def turn(contestant, limit, **request):
        """The reply, or None if the contestant is out."""
        entry = entries[contestant.name]
        if entry["error"] is None:
            try:
                return workers[contestant.name].ask(limit, **request)
            except ContestantError as error:
                entry["error"] = str(error)
                say(f"{contestant.name}: {error}")
        return None

    try:
        for c in contestants:
            start = time.perf_counter()
            workers[c.name] = Worker(c.threads)
            reply = turn(c, limit, do="setup", factory=c.factory, arguments=c.arguments)
            if reply is not None:
                say(f"{c.name}: ready after {time.perf_counter() - start:.1f} s")
                entries[c.name].update(facts=reply["facts"], first=reply["first"])
                results["sees_waiting"] = reply["sees_waiting"]
        for number in range(rounds):
            for c in contestants if number % 2 == 0 else contestants[::-1]:
                time.sleep(PAUSE)
                reply = turn(c, limit + budget, do="sample", want=want, budget=budget)
                if reply is not None:
                    entries[c.name]["rounds"].append(reply)
    except KeyboardInterrupt:
        results["interrupted"] = True
    finally:
        for worker in workers.values():
            worker.close()
    return results


def turn_seconds(turn):
    """The median of the samples of a turn that did not wait; None if all did."""
    return statistics.median(turn["kept"]) if turn["kept"] else None


def median_seconds(results, name):
    """Seconds of a contestant: the median over its turns.

    Returns
    -------
    seconds : float
        NaN if there is no sample.
    clean : bool
        False if it is made of samples that waited for a core, as there were no others.
    """
    rounds = results["contestants"][name]["rounds"]
    kept = [s for turn in rounds if (s := turn_seconds(turn)) is not None]
    if kept:
        return statistics.median(kept), True
    waited = [statistics.median(turn["discarded"]) for turn in rounds if turn["discarded"]]
    return (statistics.median(waited), False) if waited else (float("nan"), True)


def ratio(results, name, peer):
    """The time of a contestant as a share of that of its peer.

    Returns
    -------
    dict
        ``median`` (of the ratios of the rounds), ``low`` and ``high`` (the quarter points of those ratios),
        ``of_medians`` (the ratio of the medians), ``rounds`` (that counted: those in which both have samples that did
        not wait) and ``clean`` (False if there was no such round and all samples were taken). If one did not run, there
        are no rounds and the other numbers are NaN.
    """
    pairs = list(zip(results["contestants"][name]["rounds"], results["contestants"][peer]["rounds"]))
    both = [(a, b) for a, b in ((turn_seconds(x), turn_seconds(y)) for x, y in pairs) if a and b]
    clean = bool(both)
    if not clean:
        both = [tuple(statistics.median(t["kept"] + t["discarded"]) for t in pair) for pair in pairs]
    if not both:
        nan = float("nan")
        return {"median": nan, "low": nan, "high": nan, "of_medians": nan, "rounds": 0, "clean": True}
    ratios = [a / b for a, b in both]
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
    of_medians = statistics.median(a for a, _ in both) / statistics.median(b for _, b in both)
    return {
        "median": statistics.median(ratios), "low": low, "high": high, "of_medians": of_medians,
        "rounds": len(ratios), "clean": clean,
    }  # fmt: skip


def peak_memory(contestant, *, limit=300.0):
    """Peak memory of two calls of a contestant in a fresh process.

    Returns
    -------
    dict
        In bytes, what the process held: ``imported`` (after the imports), ``warm`` (after a tiny call, which makes a
        library load what it loads late), ``made`` (after the factory), ``peak`` (the most since ``warm``) and
        ``peak_ever`` (the most since the process began, as ``getrusage`` tells it). Where the system cannot begin a new
        peak, the two are the same.

    Raises
    ------
    ContestantError
        If it fails.
    """
    worker = Worker(contestant.threads)
    try:
        return worker.ask(limit, do="memory", factory=contestant.factory, arguments=contestant.arguments)
    finally:
        worker.close()
