"""Attention of the latest token alone, the one query of a cached step.

Shapes: ``B`` batch, ``H`` heads, ``G`` key-value heads, ``Tk`` keys, ``d`` features of a query and a key, ``dv`` of a
value.
"""

from numtrans.backend import get_xp
from numtrans.layers.heads import stack_groups
from numtrans.reductions import sum_last


def attend_from_last(query, key, value, scale):
    r"""The output of `ScaledDotProductAttention` for one query of each head that sees every key.

    .. math::

        o = \mathrm{softmax}\!\left(\frac{q K^\top}{\sqrt d}\right) V

    Nothing is masked or dropped, and nothing saved for backward. The plain form asks for all of that at each call,
    which takes longer than the products of one query.

    Parameters
    ----------
    query : array (B, H, 1, d)
    key : array (B, G, Tk, d)
    value : array (B, G, Tk, dv)
    scale : float

    Returns
    -------
    output : array (B, H, 1, dv)
    weights : array (B, H, 1, Tk)
    """
    B, H, _, _ = query.shape
    P = stack_groups(query * scale, key.shape[1]) @ key.swapaxes(-1, -2)    # (B, G, H / G, Tk), the scores
    P -= P.max(axis=-1, keepdims=True)
    get_xp(P).exp(P, out=P)
    P /= sum_last(P)
    return (P @ value).reshape(B, H, 1, value.shape[-1]), P.reshape(B, H, 1, key.shape[2])


def attend_to_cache(attention, query, key, value, mask, offset, causal=None):
    """``attention(...)`` with these arguments, without gradients; by `attend_from_last` where that is the same.

    Parameters
    ----------
    attention : ScaledDotProductAttention
    query, key, value, mask, offset, causal
        As in its ``forward``.
    """
    if not sees_every_key(attention, query, key, mask):
        return attention(query, key, value, mask, offset, causal)
    scale = query.shape[-1] ** -0.5 if attention.scale is None else attention.scale
    output, P = attend_from_last(query, key, value, scale)
    attention.blocks = [(slice(0, 1), key.shape[2], P)]
    return output


def sees_every_key(attention, query, key, mask):
    """Whether `query` is one token that sees every key, with nothing added to its scores and no weight dropped."""
    Tq, Tk = query.shape[2], key.shape[2]
    in_window = attention.window is None or Tk <= attention.window
    dropping = attention.dropout.training and attention.dropout.p > 0
    return Tq == 1 and Tk > 0 and mask is None and in_window and attention.position is None and not dropping
