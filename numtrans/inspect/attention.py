"""What an attention head does, in numbers: how spread out, how sharp, how far, and how unlike the other heads.

Shapes: ``B`` batch, ``H`` heads, ``Tq`` queries, ``Tk`` keys. All results are NumPy, one value a head.
"""

import numpy as np

from numtrans.backend import to_numpy
from numtrans.errors import ConfigError, ShapeError


def attention_entropy(weights, query_mask=None):
    r"""Mean entropy of the attention distributions of each head, in nats.

    .. math::

        E_h = \frac{1}{N} \sum_{b, i} \Bigl( -\sum_j P_{bhij} \log P_{bhij} \Bigr), \qquad 0 \log 0 = 0

    0 if every query attends to a single key, :math:`\log T_k` if every query attends to all alike. A masked key has
    weight 0 and adds nothing.

    Parameters
    ----------
    weights : array (B, H, Tq, Tk) or (H, Tq, Tk)
        Such as ``attn.attention_weights``; each row sums to 1, or is 0 if its query has no key left.
    query_mask : boolean array (B, Tq), optional
        True = the query counts: for padded queries, ``ids != pad_id``. All count by default. A query without a key
        never counts.

    Returns
    -------
    numpy.ndarray (H,)
        NaN for a head without a query that counts.
    """
    P, counts = checked_weights(weights, query_mask)
    return _mean(_entropy(P), counts)


def attention_maximum(weights, query_mask=None):
    r"""Mean of the largest weight of each query, a head: 1 if every query attends to a single key.

    .. math:: M_h = \frac{1}{N} \sum_{b, i} \max_j P_{bhij}

    Parameters and result as for `attention_entropy`.
    """
    P, counts = checked_weights(weights, query_mask)
    return _mean(P.max(axis=-1, initial=0), counts)


def attention_distance(weights, query_mask=None):
    r"""Mean distance between query and key, weighted by attention, of each head, in tokens.

    .. math:: D_h = \frac{1}{N} \sum_{b, i} \sum_j P_{bhij}\, |i - j|

    Both are counted from 0. In self-attention it is how far a head looks; in cross-attention, where queries and keys
    are places in two different sequences, it is only the difference of their indices.

    Parameters and result as for `attention_entropy`.
    """
    P, counts = checked_weights(weights, query_mask)
    Tq, Tk = P.shape[-2:]
    distance = np.abs(np.arange(Tq)[:, None] - np.arange(Tk))               # (Tq, Tk)
    return _mean((P * distance).sum(axis=-1), counts)


def previous_token_score(weights, query_mask=None):
    r"""Mean weight of each head on the token before the query: 1 if no query attends to anything else.

    .. math:: R_h = \frac{1}{N} \sum_{b,\, i \ge 1} P_{b h i, i-1}

    Self-attention only. The first token has none before it and does not count; nor does a token whose predecessor is
    padding, by `query_mask`.

    Parameters and result as for `attention_entropy`.

    Raises
    ------
    ShapeError
        If the queries are not as many as the keys.
    """
    P, counts, token = _checked_self(weights, query_mask)
    score = np.zeros(P.shape[:3])                                           # (B, H, T)
    score[..., 1:] = np.diagonal(P, -1, axis1=-2, axis2=-1)
    before = np.zeros_like(token)                                           # (B, T)
    before[:, 1:] = token[:, :-1]
    return _mean(score, counts & before[:, None])


def induction_score(weights, ids, query_mask=None):
    r"""Mean weight of each head on what followed the query's token where it stood before.

    .. math::

        I_h = \frac{1}{N} \sum_{b, i} \sum_{j \in F_{bi}} P_{bhij}, \qquad
        F_{bi} = \{ j + 1 : j < i,\; t_{bj} = t_{bi} \}

    A head that reads ``A B ... A`` and looks at ``B`` can predict that ``B`` comes again; it scores 1. Only queries
    whose token occurred before count. A head that attends evenly to the tokens so far scores by chance the mean of
    :math:`|F_{bi}| / (i + 1)`: measure on random tokens, repeated once, where it is small.

    Parameters
    ----------
    weights : array (B, H, T, T) or (H, T, T)
        Of self-attention.
    ids : integer array (B, T), or (T,) for one text
        The tokens.
    query_mask : boolean array (B, T), optional
        True = a real token, for padded batches.

    Returns
    -------
    numpy.ndarray (H,)
        NaN if no token repeats an earlier one.

    Raises
    ------
    ShapeError
        If the queries are not as many as the keys, or the ids do not fit.

    References
    ----------
    Olsson et al. (2022), In-context learning and induction heads, arXiv:2209.11895 ("prefix matching").
    """
    P, counts, token = _checked_self(weights, query_mask)
    try:
        ids = to_numpy(ids)
    except ValueError as error:
        raise ShapeError(f"ids are rows of unequal lengths, expected (batch, tokens) = {token.shape}") from error
    ids = ids[None] if ids.ndim == 1 else ids
    if ids.shape != token.shape or ids.dtype.kind not in "iu":
        raise ShapeError(
            f"ids have shape {ids.shape} and dtype {ids.dtype}, expected integers (batch, tokens) = {token.shape}"
        )
    same = np.tril(ids[:, :, None] == ids[:, None, :], -1) & token[:, None]  # (B, T, T): token j < i is token i
    follows = np.zeros_like(same)
    follows[..., 1:] = same[..., :-1]
    score = (P * follows[:, None]).sum(axis=-1)                             # (B, H, T)
    return _mean(score, counts & follows.any(axis=-1)[:, None])


def attention_patterns(weights, query_mask=None, ids=None):
    """What each head does, in numbers: the measures above, of the same weights.

    Parameters
    ----------
    weights, query_mask
        As for `attention_entropy`.
    ids : integer array (B, T), optional
        The tokens of self-attention, for the two scores that need them to be one sequence.

    Returns
    -------
    dict
        ``entropy``, ``maximum`` and ``distance``, each an array (H,); with `ids` also ``previous`` and ``induction``.
    """
    measures = {"entropy": attention_entropy, "maximum": attention_maximum, "distance": attention_distance}
    patterns = {name: measure(weights, query_mask) for name, measure in measures.items()}
    if ids is not None:
        patterns["previous"] = previous_token_score(weights, query_mask)
        patterns["induction"] = induction_score(weights, ids, query_mask)
    return patterns


def head_divergence(weights, query_mask=None):
    r"""Mean Jensen-Shannon divergence between the attention distributions of each pair of heads, in nats.

    .. math::

        J_{gh} = \frac{1}{N} \sum_{b, i} \Bigl( \mathrm{E}\bigl[\tfrac{1}{2}(P_{bgi} + P_{bhi})\bigr]
        - \tfrac{1}{2} \mathrm{E}[P_{bgi}] - \tfrac{1}{2} \mathrm{E}[P_{bhi}] \Bigr)

    with the entropy :math:`\mathrm{E}`. 0 if the two heads attend alike, :math:`\log 2` if no key has weight in both.

    Parameters as for `attention_entropy`. A query counts for a pair if it counts for both heads.

    Returns
    -------
    numpy.ndarray (H, H)
        Symmetric, with zeros on the diagonal (NaN where no query counts).

    References
    ----------
    Lin (1991), Divergence measures based on the Shannon entropy, IEEE Transactions on Information Theory 37(1).
    """
    P, counts = checked_weights(weights, query_mask)
    own = _entropy(P)                                                       # (B, H, Tq)
    H = P.shape[1]
    J = np.empty((H, H))
    for g in range(H):
        middle = _entropy((P[:, g, None] + P) / 2)                          # (B, H, Tq)
        J[g] = _mean(np.maximum(middle - (own[:, g, None] + own) / 2, 0), counts & counts[:, g, None])
    return J


def checked_weights(weights, query_mask):
    """The weights as float64 (B, H, Tq, Tk), and which queries count, (B, H, Tq); raise if they are no weights."""
    if weights is None:
        raise ConfigError(
            "weights are None: attention keeps none before its first forward, after clear(), or in tiles; "
            "a layer made with block_size=0 never does"
        )
    try:
        P = to_numpy(weights)
        if P.dtype.kind == "c":
            raise TypeError("they are complex")
        P = P.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ShapeError(f"weights are no array of numbers (batch, heads, queries, keys): {error}") from error
    P = P[None] if P.ndim == 3 else P
    if P.ndim != 4:
        raise ShapeError(f"weights have shape {np.shape(weights)}, expected (batch, heads, queries, keys)")
    total = P.sum(axis=-1)                                                  # (B, H, Tq)
    # 1e-2: a row of float16 misses 1 by less
    if not ((P >= 0).all() and ((total == 0) | (np.abs(total - 1) < 1e-2)).all()):
        raise ConfigError("weights must be 0 or more and not NaN, and each row must sum to 1, or be 0 throughout")
    counts = total > 0
    if query_mask is not None:
        query_mask = to_numpy(query_mask)
        if query_mask.shape != (P.shape[0], P.shape[2]):
            raise ShapeError(
                f"query_mask has shape {query_mask.shape}, expected (batch, queries) = {(P.shape[0], P.shape[2])}"
            )
        if query_mask.dtype != bool:
            raise ConfigError(f"query_mask has dtype {query_mask.dtype}, expected bool: True = the query counts")
        counts = counts & query_mask[:, None]
    return P, counts


def _checked_self(weights, query_mask):
    """`checked_weights` of self-attention, and which tokens are real, (B, T)."""
    P, counts = checked_weights(weights, query_mask)
    B, _, Tq, Tk = P.shape
    if Tq != Tk:
        raise ShapeError(f"weights have {Tq} queries and {Tk} keys, expected as many: self-attention of one sequence")
    return P, counts, np.ones((B, Tq), bool) if query_mask is None else to_numpy(query_mask)


def _entropy(P):
    return -(P * np.log(np.where(P > 0, P, 1))).sum(axis=-1)


def _mean(values, counts):
    """Mean over batch and queries of those that count, (B, H, Tq) -> (H,)."""
    N = counts.sum(axis=(0, 2))
    total = np.where(counts, values, 0).sum(axis=(0, 2))
    return np.where(N > 0, total / np.maximum(N, 1), np.nan)
