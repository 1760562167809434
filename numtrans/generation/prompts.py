"""Prompts of different lengths in one array, padded on the left. Shapes: ``B`` rows, ``T`` tokens."""

import numpy as np

from numtrans.backend import to_numpy
from numtrans.errors import DtypeError, ShapeError


def read_prompts(owner, ids, mask=None, pad_id=0):
    """The prompts as one array, and which of its tokens are real.

    Parameters
    ----------
    owner : str
        Named in errors.
    ids : integer array (B, T), or sequence of sequences of integers
        Sequences may have different lengths: the shorter ones are padded on the left, so that all end together and
        the next token of each has the same place.
    mask : boolean array (B, T), optional
        With an array: True = real token, False = padding, which is on the left.
    pad_id : int
        Fills the places before shorter sequences. The model never sees it.

    Returns
    -------
    ids : numpy.ndarray (B, T)
    real : boolean numpy.ndarray (B, T), or None if all are
    """
    if isinstance(ids, (list, tuple)) and ids and all(even(owner, "a prompt", row).ndim == 1 for row in ids):
        rows = [np.asarray(to_numpy(row)) for row in ids]
        real = np.arange(max(map(len, rows))) >= max(map(len, rows)) - np.array([len(row) for row in rows])[:, None]
        if mask is not None and not real.all():
            raise ShapeError(f"{owner}: prompts of different lengths and a mask, expected one of the two")
        padded = np.full(real.shape, pad_id)
        for b, row in enumerate(rows):
            check_integers(owner, row)
            padded[b, real.shape[1] - len(row) :] = row
        ids, mask = padded, real if mask is None else mask
    ids = even(owner, "ids", ids)
    if ids.ndim != 2 or ids.shape[1] == 0:
        raise ShapeError(
            f"{owner}: ids have shape {ids.shape}, expected (rows, tokens) with at least one token, or a list of "
            "prompts, each a list of ids"
        )
    check_integers(owner, ids)
    if mask is None:
        return ids, None
    real = even(owner, "mask", mask)
    if real.dtype.kind not in "biuf":
        raise DtypeError(f"{owner}: mask has dtype {real.dtype}, expected True and False")
    real = real.astype(bool)
    if real.shape != ids.shape:
        raise ShapeError(f"{owner}: mask has shape {real.shape}, expected {ids.shape}, one entry a token")
    if not real[:, -1].all() or (np.diff(real.astype(int), axis=1) < 0).any():
        raise ShapeError(
            f"{owner}: mask has padding behind a real token, or a row without one; expected padding on the left: "
            "False, then True to the end"
        )
    return ids, None if real.all() else real


def even(owner, name, value):
    """`value` as a NumPy array; raise unless its rows are of one length."""
    try:
        return np.asarray(to_numpy(value))
    except ValueError as error:
        raise ShapeError(
            f"{owner}: {name} cannot be read as an array ({error}); expected rows of integers, each a list"
        ) from error


def check_integers(owner, ids):
    """Raise unless `ids` are integers."""
    if ids.size and ids.dtype.kind not in "iu":
        raise DtypeError(f"{owner}: ids have dtype {ids.dtype}, expected integers")
