"""Where the time of a training step goes, by kind of layer. Runs in a process of its own."""

import statistics
import time
from collections import defaultdict

from numtrans.bench._numtrans import build, optimizer_of
from numtrans.bench.models import batch
from numtrans.losses import CrossEntropyLoss
from numtrans.memory import keep_freed_memory

FORWARD, BACKWARD = "forward", "backward"


def profile(size, steps=20):
    """A function that does some steps and returns rows: class, ``"forward"``, ``"backward"`` or ``"step"``, seconds.

    A time is that of all modules of the class in one step, without the parts they call: the median over the steps.
    """
    keep_freed_memory()
    inputs, targets = batch(size)
    model, loss = build(size), CrossEntropyLoss()
    optimizer = optimizer_of(model)

    def step():
        model.zero_grad()
        loss(model(*inputs), targets)
        model.backward(loss.backward())
        optimizer.step()
        model.clear()

    def run():
        times = [own_times((model, loss), optimizer, step) for _ in range(steps)]
        keys = dict.fromkeys(key for found in times for key in found)
        return [[*key, statistics.median(found[key] for found in times)] for key in keys]

    return run, {}


def own_times(modules, optimizer, step):
    """(class, direction) -> seconds that `step` spends there and not in the parts it calls."""
    seconds, running = defaultdict(float), [0.0]  # the times of parts that ended, for each call that runs

    def timed(function, key):
        def call(*args, **kwargs):
            running.append(0.0)
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                whole = time.perf_counter() - start
                seconds[key] += whole - running.pop()
                running[-1] += whole

        return call

    parts = [part for module in modules for part in module.modules()]
    for part in parts:
        name = type(part).__name__
        part.forward, part.backward = timed(part.forward, (name, FORWARD)), timed(part.backward, (name, BACKWARD))
    optimizer.step = timed(optimizer.step, (type(optimizer).__name__, "step"))
    try:
        step()
    finally:
        for part in parts:
            del part.forward, part.backward
        del optimizer.step
    return seconds
