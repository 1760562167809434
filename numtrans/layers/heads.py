"""Arrays of heads: products of heads that share keys, and where they are laid out in memory.

Shapes: ``B`` batch, ``H`` heads, ``G`` key-value heads, ``T`` tokens, ``n`` features of a head.
"""

from numtrans.backend import get_xp


def stack_groups(x, G):
    """(B, H, T, n) -> (B, G, H / G * T, n): the rows of the heads that share a key, one below the other."""
    B, H, T, n = x.shape
    return x if G == H else x.reshape(B, G, H // G * T, n)


def matmul_heads(a, b, out):
    """``a @ b``, the heads of a group one below the other, written into `out` (B, H, T, n)."""
    if a.shape[:3] == out.shape[:3]:
        get_xp(a).matmul(a, b, out=out)
    else:
        out[...] = (a @ b).reshape(out.shape)


def add_product(total, a, b):
    """Add ``a @ b`` to the first rows of `total`, as many as it has; if that is all, it is the first term."""
    n = a.shape[-2]
    if n == total.shape[-2]:
        get_xp(a).matmul(a, b, out=total)
    else:
        total[:, :, :n] += a @ b


def empty_by_token(xp, shape, dtype):
    """An array (B, H, T, n), laid out in memory as (B, T, H, n) so that merging heads is free."""
    B, H, T, n = shape
    return xp.empty((B, T, H, n), dtype).transpose(0, 2, 1, 3)


def join_blocks(blocks):
    """Weights (B, H, Tq, Tk) from blocks (queries, number of keys that they meet, weights); other weights are 0."""
    rows, seen, P = blocks[-1]
    if len(blocks) == 1:
        return P
    whole = get_xp(P).zeros((*P.shape[:2], rows.stop, seen), P.dtype)
    for rows, seen, P in blocks:
        whole[:, :, rows, :seen] = P
    return whole


def sum_by_input(dquery, dkey, dvalue, given):
    """One gradient for each array given: one array used as several collects the sum."""
    if given == 1:
        return dquery + dkey + dvalue
    return (dquery, dkey + dvalue) if given == 2 else (dquery, dkey, dvalue)
