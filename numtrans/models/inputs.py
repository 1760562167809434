"""What models ask of token ids and masks. Shapes: ``B`` batch, ``H`` heads, ``T`` tokens."""

import numpy as np

from numtrans.backend import backend_name, to_device
from numtrans.errors import ShapeError
from numtrans.layers.embedding import as_array
from numtrans.layers.masks import causal_mask, check_boolean, check_fits, padding_mask


def check_ids(owner, name, ids, max_len=None, start=0):
    """`ids` as an array; raise unless it is (batch, tokens), with at most `max_len` tokens after `start` earlier ones.

    `owner` and `name` go into the message.
    """
    ids = as_array(ids, owner, name)
    if ids.ndim != 2:
        raise ShapeError(f"{owner}: {name} {_have(name)} shape {tuple(ids.shape)}, expected (batch, tokens)")
    if max_len is not None and start + ids.shape[1] > max_len:
        after = f" after {start} in the cache" if start else ""
        raise ShapeError(
            f"{owner}: {name} {_have(name)} {ids.shape[1]} tokens{after}, expected at most max_len={max_len}"
        )
    return ids


def check_pair(owner, src, tgt):
    """`src` and `tgt` as arrays; raise unless both are (batch, tokens), of one batch."""
    src, tgt = check_ids(owner, "src", src), check_ids(owner, "tgt", tgt)
    if len(tgt) != len(src):
        raise ShapeError(f"{owner}: tgt has {len(tgt)} rows, expected {len(src)} as src")
    return src, tgt


def key_mask(owner, ids, mask, pad_id):
    """The mask of attention to the tokens `ids` (B, T).

    Parameters
    ----------
    owner : str
        Named in errors.
    ids : integer array (B, T)
    mask : boolean array (B, T), or one that broadcasts to the scores, or None
        True = real token.
    pad_id : int or None
        Without a mask, the tokens with this id are hidden.

    Returns
    -------
    boolean array (B, 1, 1, T), or the mask given, or None
    """
    if mask is None:
        return None if pad_id is None else padding_mask(ids=ids, pad_id=pad_id)
    return by_token(owner, mask, np.shape(ids))


def by_token(owner, mask, shape):
    """`mask` as one that broadcasts to the scores: (B, 1, 1, T) for one entry a token, `shape` = (B, T); None stays."""
    if mask is None:
        return None
    mask = check_boolean(mask, owner)
    if mask.ndim != 2:
        return mask
    if mask.shape != tuple(shape):
        raise ShapeError(
            f"{owner}: mask has shape {tuple(mask.shape)}, expected {tuple(shape)}, one entry a token, or "
            "(batch, heads, queries, keys)"
        )
    return mask[:, None, None, :]


def target_mask(owner, tgt, tgt_mask, num_heads, start=0):
    """What `tgt_mask`, which broadcasts to (B, H, T, start + T), hides besides the causal mask; None if there is none.

    `tgt` (B, T) follows `start` tokens. The layers of a decoder are causal without a mask, which makes no (T, T) array.
    """
    if tgt_mask is None:
        return None
    B, T = np.shape(tgt)
    tgt_mask = check_boolean(tgt_mask, owner)
    check_fits(tgt_mask, (B, num_heads, T, start + T), owner, "tgt_mask")
    return to_device(causal_mask(T, start + T), backend_name(tgt_mask)) & tgt_mask


def _have(name):
    return "have" if name == "ids" else "has"
