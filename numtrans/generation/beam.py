"""Beam search: keep the best few beginnings.

Shapes: ``B`` rows, ``K`` beams, ``T`` tokens of a prompt, ``V`` vocabulary.
"""

import numpy as np

from numtrans.checks import check_count, is_number
from numtrans.errors import ConfigError
from numtrans.generation.continuation import Continuation, output_size
from numtrans.generation.prompts import read_prompts
from numtrans.generation.sampling import check_tokens
from numtrans.layers.softmax import log_softmax

LARGEST_EXPONENT = 700  # of e in float64, with some room


def beam_search(
    model, ids, max_new_tokens, *, num_beams=4, num_return=1, length_penalty=1.0, early_stopping=False, eos_id=None,
    pad_id=None, suppress=(), mask=None, src=None, src_mask=None, context=None, cache=True,
):  # fmt: skip
    r"""Look for likely continuations of `ids`, where greedy decoding takes the likeliest token each time.

    Of all continuations by one token of the ``K`` live beams the ``2K`` likeliest are looked at, by their sum of log
    probabilities. Those among the first ``K`` that end (with `eos_id`, or after `max_new_tokens`) are finished; the
    ``K`` best others live on. Finished ones compete by

    .. math::

        \text{score} = \frac{1}{n^{\alpha}} \sum_{t=1}^{n} \log p(y_t \mid y_{<t})

    over the ``n`` tokens written, the end among them and the prompt not; the best ``K`` are kept. Search starts from
    one beam: from ``K`` equal ones the same token would be taken ``K`` times. Keys and values in the cache follow the
    beams. The rules are those of Hugging Face.

    Parameters
    ----------
    model, ids, max_new_tokens, eos_id, pad_id, suppress, mask, src, src_mask, context, cache
        As in `generate`.
    num_beams : int, default 4
        ``K``. 1 is greedy decoding, which ends with its first hypothesis.
    num_return : int, default 1
        Hypotheses to return for each row, at most `num_beams`.
    length_penalty : float, default 1.0
        :math:`\alpha`. 0 compares sums, which favors short hypotheses; 1 means. (Wu et al. 2016, arXiv:1609.08144,
        divide by another function of the length.)
    early_stopping : {False, True, "never"}, default False
        When to end with ``K`` finished hypotheses. True: at once. False: when the best live beam, scored at its length
        now, is no better than the worst of them. "never": when it could not become better even if all its further
        tokens were certain.

    Returns
    -------
    ids : numpy.ndarray (B, num_return, T + new)
        The best first. What ended before the longest is filled with `pad_id`, by default `eos_id`.
    scores : numpy.ndarray (B, num_return)
    """
    check_beams(num_beams, num_return, length_penalty, early_stopping, max_new_tokens)
    ids, real = read_prompts("beam_search", ids, mask, 0 if pad_id is None else pad_id)
    vocab_size = output_size(model)
    ends = check_tokens("beam_search", "eos_id", eos_id, vocab_size)
    suppress = check_tokens("beam_search", "suppress", suppress, vocab_size)
    check_tokens("beam_search", "pad_id", pad_id, vocab_size)
    if len(set(suppress)) == vocab_size:
        raise ConfigError("beam_search: suppress holds every token, so that none may come")
    text = Continuation(
        model, ids, real, src=src, src_mask=src_mask, room=max_new_tokens, context=context, cache=cache
    )
    early_stopping = "never" if early_stopping == "never" else bool(early_stopping)
    early_stopping = True if num_beams == 1 else early_stopping
    finished = [Finished(num_beams, length_penalty, early_stopping, max_new_tokens) for _ in ids]
    if finished:
        search(text, max_new_tokens, num_beams, ends, suppress, finished)
    model.drop_transient()
    found = [part.best(num_return) for part in finished]
    longest = max((len(tokens) for row in found for _, tokens in row), default=0)
    fill = pad_id if pad_id is not None else ends[0] if ends else 0
    out = np.full((len(ids), num_return, ids.shape[1] + longest), fill)
    out[:, :, : ids.shape[1]] = ids[:, None]
    for row, hypotheses in zip(out, found):
        for line, (_, tokens) in zip(row, hypotheses):
            line[ids.shape[1] : ids.shape[1] + len(tokens)] = tokens
    return out, np.array([[score for score, _ in row] for row in found]).reshape(len(ids), num_return)


def search(text, max_new_tokens, K, ends, suppress, finished):
    """Continue `text` (B rows) with K beams for each row; put what ends into `finished`, one `Finished` a row.

    A beam that is not there (a row has fewer than K continuations) has the sum -inf.
    """
    B, start = len(text.ids), text.ids.shape[1]
    total = np.zeros((B, 1))                                                # one beam each, with sum 0
    for n in range(1, max_new_tokens + 1):
        logits = text.logits()                                              # (B * k, V)
        logits[:, suppress] = -np.inf
        k, V = total.shape[1], logits.shape[1]
        sums = (total[:, :, None] + log_softmax(logits).reshape(B, k, V)).reshape(B, k * V)
        order = np.argsort(-sums, axis=1, kind="stable")[:, : 2 * K]        # best first
        beam, token = order // V, order % V
        sums = np.take_along_axis(sums, order, axis=1)                      # (B, 2K)
        over = np.isin(token, ends) | (n == max_new_tokens)
        for b, part in enumerate(finished):
            for i in np.flatnonzero(over[b, :K] & np.isfinite(sums[b, :K])):
                written = text.ids[b * k + beam[b, i], start:]
                part.add(sums[b, i], [*written.tolist(), int(token[b, i])])
        # the best K of the others, in their order, live on
        sums = np.where(over, -np.inf, sums)
        live = np.argsort(-sums, axis=1, kind="stable")[:, :K]
        live = live[:, : max(1, int(np.isfinite(np.take_along_axis(sums, live, axis=1)).sum(axis=1).max()))]
        total, beam, token = (np.take_along_axis(array, live, axis=1) for array in (sums, beam, token))
        for b, part in enumerate(finished):
            part.look(total[b, 0], n)
        if all(part.closed for part in finished):
            return
        # with the number of beams unchanged, a row keeps its place in the encoder's memory
        text.select((beam + k * np.arange(B)[:, None]).reshape(-1), memory=total.shape[1] != k)
        text.extend(token.reshape(-1))


class Finished:
    """The best finished hypotheses of one row.

    Parameters
    ----------
    K, length_penalty, early_stopping, max_new_tokens
        As in `beam_search`.
    """

    def __init__(self, K, length_penalty, early_stopping, max_new_tokens):
        self.K, self.alpha, self.early_stopping, self.max_new_tokens = K, length_penalty, early_stopping, max_new_tokens
        self.found = []  # (score, tokens), best first
        self.closed = False

    def add(self, total, tokens):
        """A hypothesis with the sum `total` of log probabilities over its `tokens`."""
        if not self.closed:
            self.found.append((float(normalized(total, len(tokens), self.alpha)), tokens))
            self.found.sort(key=lambda hypothesis: -hypothesis[0])
            del self.found[self.K :]

    def look(self, total, n):
        """Close the row if its best live beam, with the sum `total` over `n` tokens, cannot change the result."""
        full = len(self.found) == self.K
        longest = self.max_new_tokens if self.early_stopping == "never" and self.alpha > 0 else n
        hopeless = full and normalized(total, longest, self.alpha) <= self.found[-1][0]
        self.closed |= bool(n == self.max_new_tokens or np.isneginf(total) or hopeless)
        self.closed |= full and self.early_stopping is True

    def best(self, count):
        """The best `count` as a list of (score, tokens)."""
        if len(self.found) < count:
            raise ConfigError(
                f"beam_search: num_return is {count}, but there are only {len(self.found)} hypotheses: too few tokens "
                "may come, or max_new_tokens is too small"
            )
        return self.found[:count]


def normalized(total, length, alpha):
    r"""The score ``total / length**alpha`` of a hypothesis: `total` over its `length` tokens without the prompt."""
    return total / length**alpha


def check_beams(num_beams, num_return, length_penalty, early_stopping, max_new_tokens):
    """Raise `ConfigError` for values without meaning."""
    for name, value in (("num_beams", num_beams), ("num_return", num_return), ("max_new_tokens", max_new_tokens)):
        check_count("beam_search", name, value, 1)
    if num_return > num_beams:
        raise ConfigError(
            f"beam_search: num_beams={num_beams}, num_return={num_return}; expected no more returned than there are "
            "beams"
        )
    # the longest hypothesis is divided by max_new_tokens ** length_penalty, which has to be a number
    if not is_number(length_penalty) or not abs(length_penalty) * np.log(max_new_tokens) < LARGEST_EXPONENT:
        raise ConfigError(
            f"beam_search: length_penalty is {length_penalty!r}, expected a finite number so small that "
            f"{max_new_tokens} tokens to this power are one too"
        )
    known = "never" if isinstance(early_stopping, str) else early_stopping
    if not isinstance(early_stopping, (bool, np.bool_, str)) or early_stopping != known:
        raise ConfigError(f"beam_search: early_stopping is {early_stopping!r}, expected False, True or 'never'")
