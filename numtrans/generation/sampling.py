"""From logits to a token: temperature, top-k, top-p, min-p, repetition penalty. On the host, in float64.

Shapes: ``B`` rows, ``V`` vocabulary.
"""

from numbers import Integral

import numpy as np

from numtrans.checks import check_count, is_number
from numtrans.errors import ConfigError, NonFiniteError, ShapeError


def probabilities(logits, temperature=1.0, top_k=None, top_p=None, min_p=None):
    r"""What a token is drawn from: :math:`p = \mathrm{softmax}(z / \tau)` of `logits` (B, V), cut and rescaled.

    The cuts are made in the order of the arguments, and what is left sums to one again.

    Parameters
    ----------
    logits : array (B, V)
        ``-inf`` for a token that must not come.
    temperature : float, default 1.0
        :math:`\tau`. 0 leaves the likeliest token alone; of equal ones the first.
    top_k : int, optional
        Keep the `top_k` likeliest tokens; all, if there are no more.
    top_p : float, optional
        Keep the fewest likeliest tokens whose probabilities reach `top_p`: a token stays if those before it do not
        reach it, so the one that crosses the threshold stays (Holtzman et al. 2020, arXiv:1904.09751).
    min_p : float, optional
        Keep the tokens with :math:`p \ge \text{min\_p} \cdot \max p` (Nguyen et al. 2024, arXiv:2407.01082).

    Raises
    ------
    ConfigError
        For a value without meaning, or a row without a token that may come.
    NonFiniteError
        If a logit is NaN or infinity.
    ShapeError
        If `logits` are not (B, V).
    """
    check_sampling("probabilities", temperature, top_k, top_p, min_p)
    z = np.asarray(logits, np.float64)
    token = likeliest(z, "probabilities")[:, None]                          # (B, 1)
    if temperature == 0:
        return (np.arange(z.shape[-1]) == token).astype(np.float64)
    largest = np.take_along_axis(z, token, axis=-1)
    with np.errstate(over="ignore"):  # a tiny temperature sends all but the largest to -inf, which is right
        p = np.exp((z - largest) / temperature)
    p /= p.sum(axis=-1, keepdims=True)
    if top_k is not None and top_k < z.shape[-1]:
        p[~largest_of(z, top_k)] = 0
        p /= p.sum(axis=-1, keepdims=True)
    if top_p is not None and top_p < 1:
        for row in p:
            row[~nucleus(row, top_p)] = 0
    if min_p is not None:
        p[p < min_p * p.max(axis=-1, keepdims=True)] = 0
    return p / p.sum(axis=-1, keepdims=True)


def likeliest(logits, owner="likeliest"):
    """The token (B,) with the largest of `logits` (B, V) in each row; of equal ones the first.

    Raises as `probabilities`; `owner` is named in errors.
    """
    if logits.ndim != 2 or logits.shape[1] == 0:
        raise ShapeError(f"{owner}: logits have shape {logits.shape}, expected (B, V) with at least one token")
    token = logits.argmax(axis=-1)  # the place of a NaN, if there is one
    largest = np.take_along_axis(logits, token[:, None], axis=-1)           # (B, 1)
    check_finite(owner, largest)
    if np.isneginf(largest).any():
        raise ConfigError(f"{owner}: every token of a row has the logit -inf, so that none may come")
    return token


def largest_of(z, k):
    """Boolean (B, V): the `k` largest of each row of `z` (B, V); of equal ones the first."""
    last = np.partition(z, -k, axis=-1)[:, -k, None]                        # the k-th largest
    above, equal = z > last, z == last
    return above | (equal & (equal.cumsum(axis=-1) <= k - above.sum(axis=-1, keepdims=True)))


def nucleus(p, top_p):
    """Boolean (V,): the fewest likeliest tokens of `p` (V,) whose sum reaches `top_p`."""
    # tokens below (1 - top_p) / V have less than 1 - top_p together, so the others reach top_p: sort no more than them
    places = np.flatnonzero(p >= (1 - top_p) / len(p))
    order = places[np.argsort(-p[places], kind="stable")]                   # likeliest first
    ranked = p[order]
    keep = np.zeros(len(p), bool)
    keep[order[ranked.cumsum() - ranked < top_p]] = True
    return keep


def draw(p, u):
    """The token of each row of `p` (B, V) at which the cumulated probability passes `u` (B,), numbers in [0, 1)."""
    cumulated = np.cumsum(p, axis=-1)
    return (cumulated <= np.asarray(u)[:, None] * cumulated[:, -1:]).sum(axis=-1)


def penalize(logits, seen, penalty):
    r"""Make tokens that have come less likely: :math:`z / \theta` if :math:`z > 0`, else :math:`z \theta`.

    Parameters
    ----------
    logits : array (B, V)
    seen : boolean array (B, V)
        The tokens that have come in each row; padding is none of them.
    penalty : float
        :math:`\theta`; 1 changes nothing (Keskar et al. 2019, CTRL, arXiv:1909.05858).
    """
    return np.where(seen, np.where(logits > 0, logits / penalty, logits * penalty), logits)


def check_sampling(owner, temperature=1.0, top_k=None, top_p=None, min_p=None, repetition_penalty=1.0):
    """Raise `ConfigError` for a value without meaning; `owner` is named in the message."""
    rules = {
        "temperature": (temperature, lambda x: 0 <= x < np.inf, "a number of at least 0"),
        "top_p": (top_p, lambda x: 0 < x <= 1, "above 0 and at most 1"),
        "min_p": (min_p, lambda x: 0 <= x <= 1, "at least 0 and at most 1"),
        "repetition_penalty": (repetition_penalty, lambda x: 0 < x < np.inf, "a number above 0"),
    }
    for name, (value, fits, expected) in rules.items():
        if (value is None and name in ("top_p", "min_p")) or (is_number(value) and fits(value)):
            continue
        raise ConfigError(f"{owner}: {name} is {value!r}, expected {expected}")
    if top_k is not None:
        check_count(owner, "top_k", top_k, 1)


def check_finite(owner, logits):
    """Raise `NonFiniteError` if one of `logits` is NaN or infinity; -inf is a token that must not come."""
    if not (logits < np.inf).all():
        raise NonFiniteError(f"{owner}: the logits are not finite; look for NaN or infinity in the weights")


def check_tokens(owner, name, tokens, vocab_size):
    """`tokens`, an integer, several or None, as a list; raise unless they are in the vocabulary."""
    tokens = [] if tokens is None else list(tokens) if np.iterable(tokens) else [tokens]
    for token in tokens:
        if not is_number(token, Integral) or not 0 <= token < vocab_size:
            raise ConfigError(f"{owner}: {name} holds {token!r}, expected ids from 0 to {vocab_size - 1}")
    return tokens


def seen_tokens(ids, real, vocab_size):
    """Boolean (B, V): the tokens of `ids` (B, T) in each row, where `real` (B, T), if given, is True."""
    if ids.size and not 0 <= ids.min() <= ids.max() < vocab_size:
        raise ShapeError(f"seen_tokens: ids reach from {ids.min()} to {ids.max()}, expected 0 to {vocab_size - 1}")
    seen = np.zeros((len(ids), vocab_size), bool)
    rows = np.arange(len(ids))[:, None] + np.zeros_like(ids)
    keep = np.ones(ids.shape, bool) if real is None else real
    seen[rows[keep], ids[keep]] = True
    return seen
