"""What numtrans does in the benchmarks. Runs in a process of its own."""

import os

import numpy as np
from threadpoolctl import threadpool_limits

from numtrans.bench.models import LEARNING_RATE, SIZES, WEIGHT_DECAY, batch
from numtrans.generation import generate, lay_out_weights
from numtrans.layers import ScaledDotProductAttention
from numtrans.losses import CrossEntropyLoss
from numtrans.memory import keep_freed_memory
from numtrans.models import BERT, GPT, Transformer
from numtrans.models.configs import BERTConfig, GPTConfig, TransformerConfig
from numtrans.module import no_grad
from numtrans.optim import AdamW, no_decay
from numtrans.parallel import make_workers
from numtrans.parallel.pool import Pool
from numtrans.pretrained import from_pretrained

THREADS = int(os.environ.get("NUMTRANS_BENCH_THREADS", "1"))


def warm_up():
    """Load what is loaded late, before memory is measured."""
    tiny = dict(kind="gpt", num_layers=1, d_model=8, num_heads=2, d_ff=16, tokens=4, batch=2, vocab_size=8)
    train(tiny)[0]()


def train(size, kind="threads"):
    """A training step of the model of `size`: forward, loss, backward, AdamW, by workers of a `kind`."""
    keep_freed_memory()
    model = build(size)
    step = training_step(model, *batch(size), kind)
    return step, {"parameters": sum(p.data.size for p in model.parameters())}


def build(size, seed=0):
    """The model of `size`, without dropout."""
    common = dict(d_model=size["d_model"], num_heads=size["num_heads"], d_ff=size["d_ff"], dropout=0.0)
    vocab, layers, tokens = size["vocab_size"], size["num_layers"], size["tokens"]
    if size["kind"] == "gpt":
        return GPT(GPTConfig(vocab, tokens, num_layers=layers, **common), rng=seed)
    if size["kind"] == "bert":
        return BERT(BERTConfig(vocab, tokens, num_layers=layers, head="mlm", pad_id=None, **common), rng=seed)
    return Transformer(
        TransformerConfig(
            vocab, vocab, num_encoder_layers=layers, num_decoder_layers=layers, max_len=tokens, position="learned",
            norm_placement="pre", pad_id=None, **common,
        ),
        rng=seed,
    )  # fmt: skip


def training_step(model, inputs, targets, kind="threads"):
    """A function that does one step and returns the loss. The workers end with the process."""
    optimizer = optimizer_of(model)
    shards = make_workers(model, CrossEntropyLoss(), THREADS, kind=kind).__enter__()

    def step():
        model.zero_grad()
        value = shards.gradients(inputs, targets)
        shards.step(optimizer)
        shards.clear()
        return float(value)

    return step


def optimizer_of(model):
    """AdamW with the settings of all contestants."""
    return AdamW(no_decay(model, WEIGHT_DECAY), lr=LEARNING_RATE)


def attention(tokens, block_size=None):
    """Causal attention, forward and backward: two sequences, 8 heads of 64. With two threads each has a sequence."""
    keep_freed_memory()
    threadpool_limits(1, "blas")
    rng = np.random.default_rng(0)
    q, k, v, dO = (rng.standard_normal((2, 8, tokens, 64), dtype=np.float32) for _ in range(4))
    layers = [ScaledDotProductAttention(causal=True, block_size=block_size) for _ in range(2)]
    pool = Pool(THREADS)

    def one(i):
        row = slice(i, i + 1)
        layers[i](q[row], k[row], v[row])
        layers[i].backward(dO[row])
        layers[i].clear()

    return lambda: pool.map(one, range(2)) and None, {}


def cached_step(prefix):
    """A step of one token after `prefix` tokens that the cache holds: GPT, 6 layers of width 384."""
    model = GPT(GPTConfig(65, prefix + 1, d_model=384, num_heads=6, num_layers=6, dropout=0.0), rng=0).eval()
    cache = model.make_cache(prefix + 1)
    ids = np.arange(prefix)[None] % 65
    with no_grad():
        for start in range(0, prefix, 256):
            model(ids[:, start : start + 256], cache=cache)
    token = np.array([[1]])

    def step():
        with no_grad():
            logits = model(token, cache=cache)
        for layer in cache.own:  # the next step is to find the cache as this one did
            layer.length = prefix
        return float(logits[0, 0, 0])

    return step, {"cache_bytes": cache.nbytes}


def generate_small(tokens):
    """Write `tokens` tokens greedily after one, with a GPT of size M and random weights."""
    keep_freed_memory()
    model = build({**SIZES["M"], "vocab_size": 5000})
    ids = np.array([[1]])
    return lambda: generate(model, ids, tokens, temperature=0)[0, 1:].tolist(), {}


def generate_from(folder, prompt, tokens):
    """Write `tokens` tokens greedily after `prompt`, with the model of a Hugging Face `folder`."""
    keep_freed_memory()
    model = lay_out_weights(from_pretrained(folder))
    ids = np.array([prompt])
    return lambda: generate(model, ids, tokens, temperature=0)[0, len(prompt) :].tolist(), {}
