"""Weights laid out in memory for steps of one token, which read every weight once and compute little with it.

Shapes: ``...`` batch and tokens, ``I`` inputs, ``O`` outputs of a linear layer.
"""

import numpy as np

from numtrans.backend import backend_name
from numtrans.errors import ConfigError
from numtrans.layers.linear import Linear
from numtrans.module import Module, grad_enabled
from numtrans.reductions import rows


def lay_out_weights(model):
    """Move the matrices of `model` to where cached generation reads them fastest; returns the model.

    A step of one token multiplies one row by each matrix, which takes the time of reading the matrix. Names, shapes and
    values stay as they are, and only the order of the numbers in memory changes:

    - Matrices that multiply the same input, such as those of queries, keys and values, become the columns of one
      larger array. `map_together` then needs one product for them, and a few large products read faster than many
      small ones.
    - A matrix with no more columns than rows is stored column by column. The BLAS gives each of its threads a part of
      the columns, and in rows of less than about 1,000 numbers that part is a short piece here and a short piece there.

    The parameters get new arrays, so call it when training is over and before anything else keeps the arrays. A
    training step would be right afterwards, but slower: gradients are stored row by row. Nothing is done on the GPU.

    Parameters
    ----------
    model : Module

    Returns
    -------
    Module
        `model` itself.
    """
    if not isinstance(model, Module):
        raise ConfigError(f"lay_out_weights: model is {model!r}, expected a Module")
    placed = set()
    for module in model.modules():
        siblings = getattr(module, "siblings", tuple)()
        if siblings and on_cpu(*siblings):
            W = np.concatenate([layer.W.data for layer in siblings], axis=1)  # (I, O1 + O2 + ...)
            W = W if W.shape[1] > W.shape[0] else np.asfortranarray(W)
            for layer, columns in zip(siblings, blocks_of(siblings)):
                layer.W.data = W[:, columns]
                placed.add(id(layer))
            siblings[0].columns = Columns(W, [layer.W.data for layer in siblings])
    for layer in model.modules():
        if isinstance(layer, Linear) and id(layer) not in placed and on_cpu(layer) and layer.d_out <= layer.d_in:
            layer.W.data = np.asfortranarray(layer.W.data)
    return model


def map_together(x, *layers):
    """The outputs of several linear layers for one input `x` (..., I): ``[layer(x) for layer in layers]``.

    Without gradients, and where `lay_out_weights` has put their matrices side by side, this is the one product
    :math:`x\\,[W_1\\; W_2 \\ldots]`, cut into its parts, which are views.
    """
    W = None if grad_enabled() else side_by_side(layers)
    if W is None:
        return [layer(x) for layer in layers]
    layers[0].check_last_axis(x, layers[0].d_in, like=W, label="d_in")
    y = (rows(x) @ W).reshape(*x.shape[:-1], W.shape[1])                    # (..., O1 + O2 + ...)
    parts, start = [], 0
    for layer in layers:
        part = y[..., start : start + layer.d_out]
        if layer.b is not None:
            part += layer.b.data
        parts.append(part)
        start += layer.d_out
    return parts


def side_by_side(layers):
    """The array (I, O1 + O2 + ...) of which the matrices of `layers` (I, O1), (I, O2), ... are the columns, or None.

    A layer may have got another matrix since `lay_out_weights`: of a file, of another dtype, or as a copy of a model.
    """
    columns = getattr(layers[0], "columns", None)
    if columns is None or len(layers) != len(columns.parts):
        return None
    for layer, part in zip(layers, columns.parts):
        if layer.W.data is not part or part.base is not columns.whole:  # the views of a copied model have no base
            layers[0].columns = None
            return None
    return columns.whole


class Columns:
    """An array, and the views of its columns that `lay_out_weights` has made the matrices of linear layers.

    Parameters
    ----------
    whole : array (I, O1 + O2 + ...)
    parts : list of array
    """

    def __init__(self, whole, parts):
        self.whole, self.parts = whole, parts


def blocks_of(layers):
    """The columns of each of `layers` in the array of all, as slices."""
    end = 0
    return [slice(end, end := end + layer.d_out) for layer in layers]


def on_cpu(*layers):
    """Whether the matrices of `layers` are NumPy arrays."""
    return all(backend_name(layer.W.data) == "numpy" for layer in layers)
