"""Attention masks: boolean, True = may attend. Shapes: ``B`` batch, ``H`` heads, ``Tq`` queries, ``Tk`` keys."""

import numpy as np

from numtrans.backend import backend_name, get_xp, to_device, to_numpy
from numtrans.errors import DtypeError, ShapeError

_triangles = {}


def causal_mask(Tq, Tk=None, *, window=None):
    """Mask (Tq, Tk) in which a query sees no later key.

    The last query meets the last key: with ``Tk > Tq`` (cached decoding) query ``i`` sees the keys up to
    ``i + Tk - Tq``.

    Parameters
    ----------
    Tq : int
        Number of queries.
    Tk : int, optional
        Number of keys; `Tq` by default.
    window : int, optional
        A query sees the latest `window` keys only, its own among them.

    Returns
    -------
    numpy.ndarray of bool
    """
    Tk = Tq if Tk is None else Tk
    mask = np.arange(Tk) <= np.arange(Tq)[:, None] + (Tk - Tq)
    return mask if window is None else mask & in_window(np, Tq, Tk, window)


def padding_mask(lengths=None, max_len=None, *, ids=None, pad_id=None):
    """Mask (B, 1, 1, T) that hides padded keys, made from lengths or from token ids.

    Parameters
    ----------
    lengths : integer array (B,), optional
        Number of real tokens of each row; the rest, up to `max_len` (the largest length by default), is padding.
    max_len : int, optional
        ``T``, with `lengths`.
    ids : integer array (B, T), optional
        Token ids, in place of `lengths`.
    pad_id : int, optional
        The id that pads, with `ids`.

    Returns
    -------
    array of bool
    """
    if (lengths is None) == (ids is None) or (ids is None) != (pad_id is None):
        raise TypeError("padding_mask: expected either lengths, or ids together with pad_id")
    if ids is not None:
        return (ids != pad_id)[:, None, None, :]
    lengths = to_numpy(lengths)
    max_len = int(lengths.max()) if max_len is None else max_len
    return (np.arange(max_len) < lengths[:, None])[:, None, None, :]


def check_boolean(mask, owner):
    """Raise unless `mask` is boolean, or integer with nothing but 0 and 1; then return it as boolean."""
    if not hasattr(mask, "dtype"):
        raise DtypeError(f"{owner}: mask must be a boolean array (True = may attend), got {type(mask).__name__}")
    if mask.dtype.kind == "b":
        return mask
    if mask.dtype.kind in "iu" and bool(((mask == 0) | (mask == 1)).all()):
        return mask.astype(bool)
    raise DtypeError(
        f"{owner}: mask has dtype {mask.dtype}, expected boolean or 0/1 integers with True = may attend. "
        "An additive mask (0 and -inf) becomes one by mask == 0."
    )


def check_fits(mask, shape, owner, name="mask"):
    """Raise unless `mask` broadcasts to `shape`, that of the scores."""
    try:
        fits = np.broadcast_shapes(mask.shape, shape) == tuple(shape)
    except ValueError:
        fits = False
    if not fits:
        raise ShapeError(
            f"{owner}: {name} has shape {tuple(mask.shape)}, expected one that broadcasts to {tuple(shape)} "
            "(batch, heads, queries, keys); a padding mask of keys is (batch, 1, 1, keys)"
        )


def checked_mask(mask, scores, shape, owner):
    """`mask` as a boolean array on the backend of `scores`; raises unless it broadcasts to `shape`."""
    mask = check_boolean(mask, owner)
    check_fits(mask, shape, owner)
    mask = to_device(mask, backend_name(scores)) if backend_name(mask) == "numpy" else mask
    get_xp(mask, scores)
    return mask


def mask_part(mask, *index):
    """The part ``[index]`` of what `mask` broadcasts to: an axis that it lacks or has one entry of stands for all."""
    mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    index = (slice(None),) * (4 - len(index)) + index
    return mask[tuple(part if size > 1 else slice(None) for part, size in zip(index, mask.shape, strict=True))]


def mask_bias(mask, scores, owner):
    """`mask` as an array to add to `scores`: 0 where a query may attend, -inf where it may not."""
    mask = checked_mask(mask, scores, scores.shape, owner)
    xp = get_xp(scores)
    bias = xp.zeros(mask.shape, scores.dtype)
    bias[~mask] = -xp.inf
    return bias


def in_window(xp, Tq, Tk, window):
    """Mask (Tq, Tk): True where key ``j`` is not too far back for query ``i``, ``j > i + Tk - Tq - window``."""
    return xp.arange(Tk) > xp.arange(Tq)[:, None] + (Tk - Tq - window)


def window_bias(xp, Tq, Tk, window, dtype):
    """`in_window` as an array (Tq, Tk) of 0 and -inf to add to scores."""
    bias = xp.zeros((Tq, Tk), dtype)
    bias[~in_window(xp, Tq, Tk, window)] = -xp.inf
    return bias


def causal_bias(xp, Tq, Tk, dtype):
    """`causal_mask` as an array (Tq, Tk) of 0 and -inf to add to scores; a view of a triangle that is made once."""
    n, key = max(Tq, Tk), (xp.__name__, xp.dtype(dtype).char)
    triangle = _triangles.get(key)
    if triangle is None or triangle.shape[0] < n:  # another thread may put a smaller one there: look no second time
        triangle = _triangles[key] = xp.triu(xp.full((n, n), -xp.inf, dtype), 1)
    if Tk >= Tq:
        return triangle[Tk - Tq : Tk, :Tk]
    bias = xp.zeros((Tq, Tk), dtype)
    bias[: Tq - Tk] = -xp.inf  # the first queries come before every key
    bias[Tq - Tk :] += triangle[:Tk, :Tk]
    return bias
