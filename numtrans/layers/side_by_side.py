"""Weights laid out in memory for steps of one token, which read every weight once and compute little with it.

Shapes: ``...`` batch and tokens, ``I`` inputs, ``O`` outputs of a linear layer.
"""

from itertools import accumulate

import numpy as np

from numtrans.backend import backend_name
from numtrans.layers.linear import Linear
from numtrans.module import grad_enabled
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
    placed = set()
    for module in model.modules():
        siblings = getattr(module, "siblings", tuple)()
        if siblings and on_cpu(*siblings):
            W = np.concatenate([layer.W.data for layer in siblings], axis=1)  # (I, O1 + O2 + ...)
            W = W if W.shape[1] > W.shape[0] else np.asfortranarray(W)
            for layer, columns in zip(siblings, blocks_of(siblings)):
                layer.W.data = W[:, columns]
                placed.add(id(layer))
    for layer in model.modules():
        if isinstance(layer, Linear) and id(layer) not in placed and on_cpu(layer) and layer.d_out <= layer.d_in:
            layer.W.data = np.asfortranarray(layer.W.data)
    return model


def map_together(x, *layers):
    """The outputs of several linear layers for one input `x` (..., I): ``[layer(x) for layer in layers]``.

    Without gradients, and where `lay_out_weights` has put their matrices side by side, this is the one product
    :math:`x\\,[W_1\\; W_2 \\ldots]`, cut into its parts, which are views.
    """
    W = None if grad_enabled() else side_by_side([layer.W.data for layer in layers])
    if W is None:
        return [layer(x) for layer in layers]
    layers[0].check_last_axis(x, layers[0].d_in, like=W, label="d_in")
    y = (rows(x) @ W).reshape(*x.shape[:-1], W.shape[1])                    # (..., O1 + O2 + ...)
    parts = [y[..., columns] for columns in blocks_of(layers)]
    for layer, part in zip(layers, parts):
        if layer.b is not None:
            part += layer.b.data
    return parts


def side_by_side(matrices):
    """The array (I, O1 + O2 + ...) of which `matrices` (I, O1), (I, O2), ... are the columns in memory, or None."""
    W = matrices[0].base
    if type(W) is not np.ndarray or W.ndim != 2 or W.shape[1] != sum(part.shape[1] for part in matrices):
        return None
    place = address(W)
    for part in matrices:
        if part.strides != W.strides or len(part) != len(W) or address(part) != place:
            return None
        place += part.shape[1] * W.strides[1]
    return W


def blocks_of(layers):
    """The columns of each of `layers` in the array of all, as slices."""
    ends = accumulate(layer.d_out for layer in layers)
    return [slice(end - layer.d_out, end) for layer, end in zip(layers, ends)]


def address(array):
    """The place in memory of the first number of `array`."""
    return array.__array_interface__["data"][0]


def on_cpu(*layers):
    """Whether the matrices of `layers` are NumPy arrays."""
    return all(backend_name(layer.W.data) == "numpy" for layer in layers)
