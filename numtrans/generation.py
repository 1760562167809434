"""Writing with a trained model, one token after another. Shapes: ``B`` rows, ``T`` tokens so far, ``V`` vocabulary."""

import contextlib

import numpy as np

from numtrans.backend import to_numpy
from numtrans.errors import ConfigError, ShapeError
from numtrans.module import no_grad


def translate(model, src, max_len, *, bos_id=1, eos_id=2):
    """The likeliest target token at each step (greedy decoding) of an encoder-decoder.

    Parameters
    ----------
    model : Transformer
        Put into evaluation mode while it writes.
    src : integer array (B, Ts)
        Source ids, padded with the ``pad_id`` of the model.
    max_len : int
        Most tokens to write, the end token included.
    bos_id, eos_id : int
        Ids that begin and end a target.

    Returns
    -------
    numpy.ndarray (B, T)
        Ids without the begin token. A row that has ended repeats ``eos_id``.
    """
    tgt = np.full((len(src), 1), bos_id)
    ended = np.zeros(len(src), bool)
    with evaluating(model):
        memory, src_mask = model.encode(src)
        while tgt.shape[1] <= max_len and not ended.all():
            logits = to_numpy(model.decode(tgt, memory, src_mask)[:, -1])           # (B, V)
            token = np.where(ended, eos_id, logits.argmax(axis=-1))
            ended |= token == eos_id
            tgt = np.concatenate([tgt, token[:, None]], axis=1)                     # (B, T + 1)
        model.clear()
    return tgt[:, 1:]


def generate(
    model, ids, max_new_tokens, *, temperature=1.0, top_k=None, top_p=None, eos_id=None, suppress=(), rng=None
):  # fmt: skip
    """Continue `ids` with a decoder-only model.

    Parameters
    ----------
    model : GPT
        Put into evaluation mode while it writes. It sees at most the latest ``model.config.max_len`` tokens.
    ids : integer array (B, T)
        Prompts of one length, at least one token.
    max_new_tokens : int
    temperature : float, default 1.0
        Logits are divided by it; 0 takes the likeliest token.
    top_k : int, optional
        Draw from the `top_k` likeliest tokens only.
    top_p : float, optional
        Draw from the fewest likeliest tokens whose probabilities reach `top_p` (Holtzman et al. 2020,
        arXiv:1904.09751).
    eos_id : int, optional
        A row that has drawn it repeats it; when all have, writing ends.
    suppress : sequence of int
        Ids that are never written, such as that of the padding.
    rng : numpy.random.Generator or int, optional
        Draws the tokens.

    Returns
    -------
    numpy.ndarray (B, T + new)
    """
    ids = np.asarray(to_numpy(ids))
    if ids.ndim != 2 or ids.shape[1] == 0:
        raise ShapeError(f"generate: ids have shape {ids.shape}, expected (rows, tokens) with at least one token")
    if not 0 <= temperature < np.inf or (top_k is not None and top_k < 1) or (top_p is not None and not 0 < top_p <= 1):
        raise ConfigError(
            f"generate: temperature={temperature}, top_k={top_k}, top_p={top_p}; expected temperature >= 0, "
            "top_k >= 1, 0 < top_p <= 1"
        )
    rng = np.random.default_rng(rng)
    ended = np.zeros(len(ids), bool)
    with evaluating(model):
        for _ in range(max_new_tokens):
            logits = to_numpy(model(ids[:, -model.config.max_len :])[:, -1])        # (B, V)
            logits = logits.astype(np.float64)
            logits[:, list(suppress)] = -np.inf
            token = draw(logits, temperature, top_k, top_p, rng)
            if eos_id is not None:
                token = np.where(ended, eos_id, token)
                ended |= token == eos_id
            ids = np.concatenate([ids, token[:, None]], axis=1)
            if eos_id is not None and ended.all():
                break
        model.clear()
    return ids


def draw(logits, temperature, top_k, top_p, rng):
    """One token for each row of `logits` (B, V)."""
    if temperature == 0:
        return logits.argmax(axis=-1)
    order = np.argsort(-logits, axis=-1, kind="stable")                             # likeliest first
    scores = np.take_along_axis(logits, order, axis=-1)
    p = np.exp((scores - scores[:, :1]) / temperature)
    if top_k is not None:
        p[:, top_k:] = 0
    p /= p.sum(axis=-1, keepdims=True)
    if top_p is not None:  # a token stays if those before it do not reach top_p, so the one that crosses it stays
        p[p.cumsum(axis=-1) - p >= top_p] = 0
        p /= p.sum(axis=-1, keepdims=True)
    place = (p.cumsum(axis=-1) < rng.random((len(p), 1)) * (1 - 1e-12)).sum(axis=-1)
    place = np.minimum(place, (p > 0).sum(axis=-1) - 1)
    return np.take_along_axis(order, place[:, None], axis=-1)[:, 0]


@contextlib.contextmanager
def evaluating(model):
    """Evaluation mode without gradients; afterwards the mode is as before."""
    training = model.training
    model.eval()
    try:
        with no_grad():
            yield
    finally:
        model.train(training)
