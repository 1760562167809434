"""The matrix products of a training step and nothing else: the floor of its time. Runs in a process of its own.

The batch is split over threads, each with one thread of the BLAS, as numtrans does it. Every weight and every saved
activation is an array of its own, as in a model. Query, key and value are one product. Attention is over all pairs of
tokens, also where a causal mask would let half of them be left out.
"""

import itertools
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from threadpoolctl import threadpool_limits

THREADS = int(os.environ.get("NUMTRANS_BENCH_THREADS", "1"))


def train(size):
    """The products of forward and backward of the model of `size`."""
    workers = min(THREADS, size["batch"])
    bounds = [size["batch"] * i // workers for i in range(workers + 1)]
    weights = {name: filled(*shape) for name, shape in weight_shapes(size).items()}
    shards = [products(size, weights, high - low) for low, high in itertools.pairwise(bounds)]
    threadpool_limits(1, "blas")
    pool = ThreadPoolExecutor(workers)

    def step():
        list(pool.map(run, shards))

    multiplications = sum(a.size * b.shape[-1] for shard in shards for a, b, _ in shard)
    return step, {"gflop": 2e-9 * multiplications, "parameters": sum(w.size for w in weights.values())}


def run(shard):
    """All products of one shard."""
    for a, b, out in shard:
        np.matmul(a, b, out=out)


def weight_shapes(size):
    """Name -> shape of each matrix of the linear layers, in the order of the forward pass."""
    width, d_ff = size["d_model"], size["d_ff"]
    own = {"qkv": (width, 3 * width), "out": (width, width)}
    cross = {"q": (width, width), "kv": (width, 2 * width), "cross_out": (width, width)}
    feedforward = {"linear1": (width, d_ff), "linear2": (d_ff, width)}
    shapes = {}
    for i in range(size["num_layers"]):
        shapes |= {f"encoder.{i}.{name}": shape for name, shape in (own | feedforward).items()}
    if size["kind"] == "encoder-decoder":
        for i in range(size["num_layers"]):
            shapes |= {f"decoder.{i}.{name}": shape for name, shape in (own | cross | feedforward).items()}
    if size["kind"] == "bert":
        shapes["head"] = width, width
    return shapes | {"output": (width, size["vocab_size"])}


def products(size, weights, batch):
    """A list of ``(a, b, out)``: the products of `batch` sequences, forward, then backward from the last to the first.

    One attention follows each matrix that makes queries.
    """
    tokens, heads = size["tokens"], size["num_heads"]
    forward, backward = [], []
    for name, W in weights.items():
        parts = [linear(batch * tokens, W)]
        if name.endswith((".qkv", ".q")):
            parts.append(attention(batch, heads, tokens, size["d_model"] // heads))
        for ahead, back in parts:
            forward += ahead
            backward = back + backward
    return forward + backward


def linear(rows, W):
    """y = x W; dW = x^T dy and dx = dy W^T."""
    x, dy = filled(rows, W.shape[0]), filled(rows, W.shape[1])
    y, dx, dW = np.empty_like(dy), np.empty_like(x), np.empty_like(W)
    return [(x, W, y)], [(x.T, dy, dW), (dy, W.T, dx)]


def attention(batch, heads, tokens, d):
    """S = q k^T and O = P v; dv = P^T dO, dP = dO v^T, dq = dS k and dk = dS^T q."""
    q, k, v, dO, O, dq, dk, dv = (filled(batch, heads, tokens, d) for _ in range(8))
    S, P, dP, dS = (filled(batch, heads, tokens, tokens) for _ in range(4))
    turned = (0, 1, 3, 2)
    return (
        [(q, k.transpose(turned), S), (P, v, O)],
        [(P.transpose(turned), dO, dv), (dO, v.transpose(turned), dP), (dS, k, dq), (dS.transpose(turned), q, dk)],
    )


def filled(*shape):
    """A float32 array that is there in memory; what it holds does not matter to the time."""
    return np.full(shape, 0.01, np.float32)


def read_memory(megabytes):
    """Products of a matrix of so many megabytes with a vector, its rows shared out among the threads: memory speed."""
    columns = 768
    rows = round(megabytes * 1e6 / 4 / columns)
    W, x = filled(rows, columns), filled(columns)
    out = np.empty(rows, np.float32)
    bounds = [rows * i // THREADS for i in range(THREADS + 1)]
    parts = [slice(low, high) for low, high in itertools.pairwise(bounds)]
    threadpool_limits(1, "blas")
    pool = ThreadPoolExecutor(THREADS)

    def run():
        list(pool.map(lambda part: np.dot(W[part], x, out=out[part]), parts))

    return run, {"bytes": W.nbytes}
