"""What the processes of `test_benchmarks.py` run, in a file of its own that is quick to import."""

import os
import sys
import time

import numpy as np


def fine(value):
    return (lambda: value), {"note": value}


def broken():
    raise ValueError("this one\nis broken")


def dying():
    sys.stderr.write("about to die\n")
    os._exit(7)


def dying_later(calls):
    def run():
        calls.append(1)
        if len(calls) > 3:
            os._exit(9)

    return run, {}


def sleeping():
    time.sleep(60)


def printing():
    print("not a reply")
    return (lambda: print("neither")), {}


def environment():
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
    return (lambda: None), {name: os.environ.get(name) for name in names}


def large():
    kept = np.ones(4_000_000)  # 32 MB
    return (lambda: float((kept + kept)[0])), {}  # another 32 MB during the call
