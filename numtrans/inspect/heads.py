r"""What the weights of a head can do, whatever the text: the ranks of its two maps.

Shapes: ``D`` = d_model, ``H`` heads, ``G`` key-value heads, ``d`` features of a query and a key, ``dv`` of a value.

A head uses its four matrices only in pairs (Elhage et al. 2021). With rows as vectors, :math:`x_i W^{QK} x_j^\top` is
the score of key j for query i before the scale, and :math:`x_j W^{OV}` is what a key that is attended to adds to the
output:

.. math::

    W^{QK}_h = W^Q_h W^{K\top}_h, \qquad W^{OV}_h = W^V_h W^O_h, \qquad \text{both } (D, D) \text{ and of rank} \le d
"""

import numpy as np

from numtrans.backend import to_numpy
from numtrans.errors import ConfigError, NonFiniteError, ShapeError
from numtrans.layers.multi_head_attention import MultiHeadAttention


def head_ranks(attention):
    r"""Effective and stable rank of the two maps of each head.

    .. math::

        r_{\mathrm{eff}} = \exp \Bigl( -\sum_i p_i \log p_i \Bigr), \quad p_i = \frac{\sigma_i}{\sum_k \sigma_k},
        \qquad r_{\mathrm{stable}} = \frac{\sum_i \sigma_i^2}{\max_i \sigma_i^2}

    over the singular values :math:`\sigma` of the map. Both are k for a map with k equal singular values, and at most
    the rank. Biases take no part. With rotary positions :math:`W^{QK}` is the map between two tokens at one place.

    Parameters
    ----------
    attention : MultiHeadAttention

    Returns
    -------
    dict
        ``ov``, ``qk``, ``ov_stable`` and ``qk_stable``, each an array (H,); 0 for a map that is zero.

    References
    ----------
    Roy and Vetterli (2007), The effective rank, EUSIPCO; Rudelson and Vershynin (2007), Sampling from large matrices
    (stable rank); Elhage et al. (2021), A mathematical framework for Transformer circuits.
    """
    values = head_singular_values(attention)
    ranks = {name: effective_rank(s) for name, s in values.items()}
    return ranks | {f"{name}_stable": stable_rank(s) for name, s in values.items()}


def head_singular_values(attention):
    r"""Singular values of the two maps of each head, largest first.

    A map is a product A B of a tall and a wide matrix. With :math:`A = Q_a R_a` and :math:`B^\top = Q_b R_b` it is
    :math:`Q_a (R_a R_b^\top) Q_b^\top`, which has the singular values of the small matrix in brackets: no (D, D) matrix
    is made.

    Parameters
    ----------
    attention : MultiHeadAttention
        Of H heads; those of a group share their key and value.

    Returns
    -------
    dict
        ``ov``, an array (H, min(D, dv)), and ``qk``, an array (H, min(D, d)), float64.
    """
    if not isinstance(attention, MultiHeadAttention):
        raise ConfigError(f"head_ranks: a {type(attention).__name__}, expected a MultiHeadAttention")
    H, G = attention.num_heads, attention.num_kv_heads
    q = _by_head(attention.q_proj.W.data, H)                                # (H, D, d)
    k = _by_head(attention.k_proj.W.data, G).repeat(H // G, axis=0)         # (H, D, d)
    v = _by_head(attention.v_proj.W.data, G).repeat(H // G, axis=0)         # (H, D, dv)
    o = _by_head(attention.out_proj.W.data.T, H)                            # (H, D, dv), transposed
    return {"ov": _product_singular_values(v, o), "qk": _product_singular_values(q, k)}


def effective_rank(singular_values):
    """Exponential of the entropy of `singular_values` (..., n), scaled to sum 1; 0 if all are 0."""
    s = _checked("effective_rank", singular_values)
    total = s.sum(axis=-1, keepdims=True)
    p = s / np.where(total > 0, total, 1)
    entropy = -(p * np.log(np.where(p > 0, p, 1))).sum(axis=-1)
    return np.where(total[..., 0] > 0, np.exp(entropy), 0.0)


def stable_rank(singular_values):
    """Squared Frobenius norm over squared spectral norm, from `singular_values` (..., n); 0 if all are 0."""
    s = _checked("stable_rank", singular_values)
    largest = s.max(axis=-1, keepdims=True)
    return ((s / np.where(largest > 0, largest, 1)) ** 2).sum(axis=-1)


def _checked(who, singular_values):
    """Singular values as a float64 array (..., n); raise if they are none."""
    s = np.asarray(singular_values, np.float64)
    if s.ndim == 0 or s.shape[-1] == 0:
        raise ShapeError(f"{who}: singular_values have shape {s.shape}, expected (..., n) with n of at least 1")
    if not (np.isfinite(s) & (s >= 0)).all():
        raise NonFiniteError(f"{who}: singular_values must be finite and not negative")
    return s


def _by_head(W, heads):
    """The columns of `W` (D, heads * d) as float64 (heads, D, d)."""
    W = to_numpy(W).astype(np.float64)
    if not np.isfinite(W).all():
        raise NonFiniteError("head_ranks: a matrix of the attention holds values that are not finite")
    return W.reshape(len(W), heads, -1).transpose(1, 0, 2)


def _product_singular_values(a, b):
    """Singular values of a_h b_h^T for `a` and `b` (H, D, n)."""
    R_a, R_b = np.linalg.qr(a, mode="r"), np.linalg.qr(b, mode="r")         # (H, min(D, n), n)
    return np.linalg.svd(R_a @ R_b.swapaxes(-1, -2), compute_uv=False)
