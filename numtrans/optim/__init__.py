"""Optimizers, parameter groups, gradient clipping and learning rate schedules."""

from numtrans.errors import NonFiniteError
from numtrans.optim.adam import Adam, AdamW
from numtrans.optim.clipping import clip_grad_norm
from numtrans.optim.groups import no_decay
from numtrans.optim.optimizer import Optimizer
from numtrans.optim.schedules import constant, noam, warmup_cosine, warmup_linear
from numtrans.optim.sgd import SGD

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "NonFiniteError",
    "Optimizer",
    "clip_grad_norm",
    "constant",
    "no_decay",
    "noam",
    "warmup_cosine",
    "warmup_linear",
]
