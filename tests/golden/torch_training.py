"""Golden cases of losses, optimizers and gradient clipping, in PyTorch."""

import itertools

import numpy as np
import torch
import torch.nn.functional as F
from recording import CASES, Recording, case

# ---- losses


def cross_entropy(r, ignore_index, label_smoothing, reduction):
    """7 of 8 tokens count at most; `ignore_index` may be a class."""
    logits, targets = r.input("logits", array=3 * r.rng.standard_normal((2, 4, 5))), r.rng.integers(0, 5, (2, 4))
    targets[1, 2] = ignore_index
    targets = r.constant("targets", targets)
    options = dict(ignore_index=ignore_index, label_smoothing=label_smoothing, reduction=reduction)
    return F.cross_entropy(logits.transpose(1, 2), targets, **options)


for ignored, smoothing, way in itertools.product((-100, 0), (0.0, 0.1), ("mean", "sum", "none")):
    title = f"cross_entropy_{way}_{'smoothed' if smoothing else 'plain'}_ignore_{abs(ignored)}"
    case(title, "CrossEntropyLoss", ignore_index=ignored, label_smoothing=smoothing, reduction=way)(cross_entropy)


@case("mse_mean", "MSELoss", reduction="mean")
@case("mse_sum", "MSELoss", reduction="sum")
@case("mse_none", "MSELoss", reduction="none")
def mse(r, reduction):
    prediction = r.input("prediction", 2, 3, 4)
    return F.mse_loss(prediction, r.constant("targets", r.rng.standard_normal((2, 3, 4))), reduction=reduction)


# ---- optimizers: five steps on fixed gradients

STEPS = 5
SHAPES = {"W": (3, 4), "b": (4,)}
LEARNING_RATES = (0.1, 0.1, 0.05, 0.02, 0.1)
OPTIMIZERS = {
    "sgd": ("SGD", {}),
    "sgd_weight_decay": ("SGD", dict(weight_decay=0.1)),
    "sgd_momentum": ("SGD", dict(momentum=0.9)),
    "sgd_nesterov": ("SGD", dict(momentum=0.9, nesterov=True, weight_decay=0.1)),
    "adam": ("Adam", {}),
    "adam_weight_decay": ("Adam", dict(betas=[0.8, 0.95], eps=1e-3, weight_decay=0.1)),
    "adamw": ("AdamW", {}),
    "adamw_weight_decay": ("AdamW", dict(betas=[0.8, 0.95], eps=1e-3, weight_decay=0.3)),
}


def record_optimizer(name, module, options):
    """Parameters before and after each step, on gradients that do not depend on them."""
    r = Recording(name)
    parameters = {key: r.param(key, *shape) for key, shape in SHAPES.items()}
    optimizer = getattr(torch.optim, module)(parameters.values(), lr=LEARNING_RATES[0], **options)
    for step, lr in enumerate(LEARNING_RATES):
        optimizer.param_groups[0]["lr"] = lr
        for key, parameter in parameters.items():
            r.arrays[f"grad{step}.{key}"] = gradient = r.rng.standard_normal(SHAPES[key]) * 10.0 ** (step - 3)
            parameter.grad = torch.tensor(gradient)
        optimizer.step()
        r.arrays.update((f"step{step}.{key}", p.detach().numpy().copy()) for key, p in parameters.items())
    return r.arrays, {"optimizer": module, "options": options, "learning_rates": LEARNING_RATES}


for title, (module, options) in OPTIMIZERS.items():
    CASES[f"optim_{title}"] = lambda title=title, m=module, o=options: record_optimizer(f"optim_{title}", m, o)


# ---- clipping


def record_clipping(name, max_norm):
    """Gradients before and after, and their norm."""
    r = Recording(name)
    parameters = {key: torch.nn.Parameter(torch.zeros(shape, dtype=torch.float64)) for key, shape in SHAPES.items()}
    for key, parameter in parameters.items():
        r.arrays[f"grad.{key}"] = gradient = r.rng.standard_normal(SHAPES[key])
        parameter.grad = torch.tensor(gradient)
    r.arrays["norm"] = np.asarray(torch.nn.utils.clip_grad_norm_(parameters.values(), max_norm))
    r.arrays.update((f"clipped.{key}", parameter.grad.numpy()) for key, parameter in parameters.items())
    return r.arrays, {"max_norm": max_norm}


CASES["clip_grad_norm"] = lambda: record_clipping("clip_grad_norm", 0.5)
CASES["clip_grad_norm_below"] = lambda: record_clipping("clip_grad_norm_below", 100.0)
