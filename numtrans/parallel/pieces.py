"""Pieces of a batch, and the gradient of one piece."""

import contextlib
import itertools
import random
import warnings
from dataclasses import dataclass

import numpy as np

from numtrans.backend import backend_name, to_device
from numtrans.errors import ConfigError, ShapeError

GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)


@dataclass
class Piece:
    """Some rows of a batch.

    Attributes
    ----------
    inputs : tuple
        What the model takes. Arrays with the rows of the piece; what has no batch axis, as it is.
    targets : array
    first, count : int
        Number of the first row in the whole batch, and how many there are.
    """

    inputs: tuple
    targets: object
    first: int
    count: int


def split_batch(inputs, targets, pieces):
    """The batch in `pieces` pieces along the first axis, of like size; fewer if it has fewer rows.

    Arrays whose first axis has length 1, and what is no array, go to every piece.

    Parameters
    ----------
    inputs : array, or tuple of what the model takes
    targets : array
    pieces : int

    Returns
    -------
    list of Piece

    Raises
    ------
    ShapeError
        If an array is neither of the batch nor of length 1.
    """
    inputs = inputs if isinstance(inputs, tuple) else (inputs,)
    size = len(targets)
    if pieces == 1 or size < 2:
        return [Piece(inputs, targets, 0, size)]
    for i, x in enumerate(inputs):
        if hasattr(x, "shape") and x.shape[:1] not in ((size,), (1,)):
            raise ShapeError(
                f"input {i} has shape {tuple(x.shape)}, expected first axis {size}, the batch, or 1, because the batch "
                "is split (workers, micro_batches)"
            )
    pieces = min(pieces, size)
    bounds = [size * i // pieces for i in range(pieces + 1)]
    return [
        Piece(tuple(_part(x, size, start, stop) for x in inputs), targets[start:stop], start, stop - start)
        for start, stop in itertools.pairwise(bounds)
    ]


def _part(x, size, start, stop):
    return x[start:stop] if hasattr(x, "shape") and x.shape[0] == size else x


def divisor(loss, targets):
    """Arguments of `loss` that make the losses of pieces add up to that of the whole batch with `targets`."""
    if getattr(loss, "reduction", "mean") != "mean":
        return {}
    if not hasattr(loss, "count"):
        raise ConfigError(
            f"{type(loss).__name__}: the batch is split, and for the mean over all of it the loss must have a method "
            "count(targets) and take the argument normalizer, as CrossEntropyLoss does; else train with workers=1 and "
            "micro_batches=1"
        )
    count = loss.count(targets)
    if backend_name(targets) == "numpy" and count == 0:
        warnings.warn(f"{type(loss).__name__}: every target is ignored; loss and gradient are 0", stacklevel=4)
    return {"normalizer": count}


def can_split(shard, inputs, targets):
    """Whether the gradient of the batch is the sum of those of its pieces, as far as can be seen from outside."""
    size, inputs = len(targets), inputs if isinstance(inputs, tuple) else (inputs,)
    of_batch = all(x.shape[:1] in ((size,), (1,)) for x in inputs if hasattr(x, "shape"))
    return of_batch and hasattr(shard.loss, "count") and not whole_batch_modules(shard.modules)


def whole_batch_modules(modules):
    """Names of those of `modules` that need the whole batch at once.

    A row of their output depends on other rows, or they draw random numbers and cannot draw those of some rows only.
    """
    names = {type(module).__name__ for module in modules if module.needs_whole_batch or draws_for_all_rows(module)}
    return sorted(names)


def draws_for_all_rows(module):
    """Whether `module` draws random numbers and has no `rows`, or holds a generator of them."""
    counts = hasattr(module, "counter") and not hasattr(module, "rows")
    return counts or any(isinstance(value, GENERATORS) for value in vars(module).values())


def check_split(shard, workers):
    """Raise `ConfigError` if a part of the model or the loss of `shard` needs the whole batch.

    If there is one of `workers` that takes piece after piece, random numbers are drawn in turn and are no reason.
    """
    names = whole_batch_modules(module for module in shard.modules if workers > 1 or module.needs_whole_batch)
    if names:
        raise ConfigError(
            f"{type(shard.model).__name__}: {', '.join(names)} needs the whole batch at once (statistics over the "
            "batch, or random numbers without a place in it), which would be split; train with workers=1, "
            "micro_batches=1 and one rank"
        )


def check_targets(loss, targets):
    """Raise unless `targets` is an array with a batch axis, and `loss` one that gives a number."""
    if not hasattr(targets, "shape") or not targets.shape:
        shape = f"an array of shape {targets.shape}" if hasattr(targets, "shape") else type(targets).__name__
        raise ShapeError(f"{type(loss).__name__}: targets are {shape}, expected an array whose first axis is the batch")
    if getattr(loss, "reduction", "mean") == "none":
        raise ConfigError(
            f"{type(loss).__name__}: reduction is 'none', expected 'mean' or 'sum': training needs a loss that is one "
            "number"
        )


def piece_gradients(shard, piece, counters, first, whole):
    """Forward and backward of one piece: adds to the gradients of the shard's model and returns its part of the loss.

    Parameters
    ----------
    shard : Shard
    piece : Piece
    counters : list of int
        Those of the dropout modules before the batch: every piece draws its part of the same masks.
    first : int
        Added to the number of the first row of the piece.
    whole : dict
        What `divisor` returned for the whole batch.
    """
    device = backend_name(shard.parameters[0].data)
    inputs, targets = _move(piece.inputs, device), _move((piece.targets,), device)
    with _rows(shard.dropouts, counters, first + piece.first, piece.count):
        value = shard.loss(shard.model(*inputs), *targets, **whole)
        shard.model.backward(shard.loss.backward())
    return value


def _move(arrays, device):
    return tuple(to_device(x, device) if isinstance(x, np.ndarray) else x for x in arrays)


@contextlib.contextmanager
def _rows(dropouts, counters, first, count):
    """Within this context dropout draws the part of its mask that belongs to these rows of the batch."""
    try:
        for module, counter in zip(dropouts, counters, strict=True):
            module.counter, module.rows = counter, (first, count)
        yield
    finally:
        for module in dropouts:
            module.rows = None
