"""After a training step nothing is held but parameters, gradients and optimizer state: 200 steps under tracemalloc."""

import gc
import tracemalloc

import numpy as np
import pytest

from numtrans.data import SequenceTask
from numtrans.losses import CrossEntropyLoss
from numtrans.models import GPT, GPTConfig, Transformer, TransformerConfig
from numtrans.optim import AdamW
from numtrans.runs import StepBatches
from numtrans.training import Trainer

SIZES = dict(d_model=16, num_heads=2, dropout=0.1)


def transformer():
    task = SequenceTask("copy", n_train=300, n_valid=1, n_test=1)
    config = TransformerConfig(
        len(task.source_vocab), len(task.target_vocab), d_ff=32, num_encoder_layers=1, num_decoder_layers=1,
        max_len=16, **SIZES,
    )  # fmt: skip
    return Transformer(config, rng=0), StepBatches(task.encode_pairs(task.train), 8)


def gpt():
    class Rows:
        def batch(self, step):
            ids = np.random.default_rng(step).integers(9, size=(4, 13))
            return ids[:, :-1], ids[:, 1:]

    return GPT(GPTConfig(9, max_len=12, num_layers=2, **SIZES), rng=0), Rows()


def held_arrays(model):
    """Bytes of arrays of the parameters, their gradients and Adam's two moments."""
    return sum(4 * parameter.data.nbytes for parameter in model.parameters())


def train(model, batches, stops):
    """Traced memory after each number of steps in `stops`."""
    trainer = Trainer(model, CrossEntropyLoss(), AdamW(model.parameters()), progress=False, log_every=1000)
    traced = []
    for steps in stops:
        trainer.fit(batches, steps)
        gc.collect()
        traced.append(tracemalloc.get_traced_memory()[0])
    return traced


@pytest.mark.parametrize("make", [transformer, gpt])
def test_nothing_is_held_after_a_step(make):
    train(*make(), (2,))  # imports and caches
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        model, batches = make()
        made = tracemalloc.get_traced_memory()[0] - before - held_arrays(model) / 4  # modules, data
        held = [memory - before for memory in train(model, batches, (40, 80, 120, 160, 200))]
        assert model.pending == 0
        assert all(getattr(module, name) is None for module in model.modules() for name in module.transient)
        largest = 2 * 8 * 2 * 12 * 12 * 4  # bytes of two arrays of attention weights of one batch
        assert max(held[1:]) - min(held[1:]) < largest
        epoch = 60_000  # the batches of one epoch, which the data keeps
        assert held[-1] < held_arrays(model) + made + epoch + 100_000  # small: history, caches of masks and positions
    finally:
        tracemalloc.stop()
