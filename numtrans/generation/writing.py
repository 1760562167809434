"""Continue prompts by sampling or greedily, whole or token by token. Shapes: ``B`` rows, ``T`` tokens of a prompt."""

import numpy as np

from numtrans.checks import check_count
from numtrans.errors import ConfigError, ShapeError
from numtrans.generation.beam import beam_search
from numtrans.generation.continuation import Continuation, output_size
from numtrans.generation.prompts import even, read_prompts
from numtrans.generation.sampling import (
    check_sampling,
    check_tokens,
    draw,
    likeliest,
    penalize,
    probabilities,
    seen_tokens,
)


def translate(model, src, max_len, *, bos_id=1, eos_id=2, num_beams=1, length_penalty=1.0, cache=True):
    """The likeliest target token at each step (greedy decoding) of an encoder-decoder, or the best of a beam search.

    Parameters
    ----------
    model : Transformer or T5
        Put into evaluation mode while it writes.
    src : integer array (B, Ts)
        Source ids, padded with the ``pad_id`` of the model.
    max_len : int
        Most tokens to write, the end token included.
    bos_id, eos_id : int
        Ids that begin and end a target. (T5 begins with its padding, 0, and ends with 1.)
    num_beams, length_penalty : int, float
        As in `beam_search`; 1 beam is greedy decoding.
    cache : bool, default True
        Keep keys and values; without, each step reads all tokens again.

    Returns
    -------
    numpy.ndarray (B, T)
        Ids without the begin token. A row that has ended repeats ``eos_id``.
    """
    src = even("translate", "src", src)
    if src.ndim != 2:
        raise ShapeError(f"translate: src has shape {src.shape}, expected (rows, tokens)")
    check_tokens("translate", "bos_id", [bos_id], output_size(model))
    start, options = np.full((len(src), 1), bos_id), dict(src=src, eos_id=eos_id, cache=cache)
    if num_beams == 1:
        return generate(model, start, max_len, temperature=0, **options)[:, 1:]
    ids, _ = beam_search(model, start, max_len, num_beams=num_beams, length_penalty=length_penalty, **options)
    return ids[:, 0, 1:]


def generate(
    model, ids, max_new_tokens, *, temperature=1.0, top_k=None, top_p=None, min_p=None, repetition_penalty=1.0,
    eos_id=None, pad_id=None, stop=(), decode=None, suppress=(), mask=None, src=None, src_mask=None, context=None,
    cache=True, rng=None,
):  # fmt: skip
    """Continue the prompts `ids`, drawing one token after another.

    Parameters
    ----------
    model : GPT, Llama, Transformer or T5
        Put into evaluation mode while it writes.
    ids : integer array (B, T), or list of lists of integers
        Prompts, at least one token each. Lists may have different lengths: the shorter are padded on the left, and each
        row is continued as it would be alone. Of an encoder-decoder they are the start of the target.
    max_new_tokens : int
    temperature, top_k, top_p, min_p : optional
        What is drawn from, see `probabilities`; ``temperature=0`` takes the likeliest token.
    repetition_penalty : float, default 1.0
        Makes tokens of the row, its prompt among them, less likely, see `penalize`.
    eos_id : int or sequence of int, optional
        A row that has drawn it is over; when all are, writing ends.
    pad_id : int, optional
        Written where a row is over, by default (the first) `eos_id`, and before shorter prompts, by default 0.
    stop : str or sequence of str
        A row is over with the token that completes one of them in what it has written.
    decode : callable, optional
        Turns a list of ids into text, for `stop`.
    suppress : sequence of int
        Ids that are never written, such as that of the padding.
    mask : boolean array (B, T), optional
        False for the padding on the left of an array `ids`.
    src, src_mask : optional
        What an encoder-decoder reads, as for its ``encode``.
    context : int, optional
        Most tokens that the model sees, see `Continuation`.
    cache : bool, default True
        Keep keys and values; without, each step reads all tokens again. The logits are the same but for rounding.
    rng : numpy.random.Generator or int, optional
        Draws the tokens. The same seed gives the same text. Row ``b`` has a generator of its own, which depends on the
        seed and on ``b``: what the other rows are, or how long, plays no part.

    Returns
    -------
    numpy.ndarray (B, T + new)
    """
    ids, mask = read_prompts("generate", ids, mask, 0 if pad_id is None else pad_id)
    steps = stream(
        model, ids, max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
        repetition_penalty=repetition_penalty, eos_id=eos_id, pad_id=pad_id, stop=stop, decode=decode,
        suppress=suppress, mask=mask, src=src, src_mask=src_mask, context=context, cache=cache, rng=rng,
    )  # fmt: skip
    return np.stack([*ids.T, *steps], axis=1)


def stream(
    model, ids, max_new_tokens, *, temperature=1.0, top_k=None, top_p=None, min_p=None, repetition_penalty=1.0,
    eos_id=None, pad_id=None, stop=(), decode=None, suppress=(), mask=None, src=None, src_mask=None, context=None,
    cache=True, rng=None,
):  # fmt: skip
    """As `generate`, but an iterator over the new tokens, (B,) at each step, as they are drawn.

    Arguments are checked at once. Between two steps the model is as it was before, so that it can be used otherwise.
    """
    owner = "generate"
    check_sampling(owner, temperature, top_k, top_p, min_p, repetition_penalty)
    check_count(owner, "max_new_tokens", max_new_tokens, 0)
    ids, real = read_prompts(owner, ids, mask, 0 if pad_id is None else pad_id)
    vocab_size = output_size(model)
    ends, suppress = (check_tokens(owner, name, tokens, vocab_size)
                      for name, tokens in (("eos_id", eos_id), ("suppress", suppress)))  # fmt: skip
    check_tokens(owner, "pad_id", pad_id, vocab_size)
    fill = pad_id if pad_id is not None else ends[0] if ends else 0
    stop = check_stop(owner, stop, decode)
    text = Continuation(
        model, ids, real, src=src, src_mask=src_mask, room=max_new_tokens, context=context, cache=cache
    )
    generators = make_generator(owner, rng).spawn(len(ids))
    seen = None if repetition_penalty == 1 else seen_tokens(ids, real, vocab_size)
    rows = np.arange(len(ids))

    def steps():
        ended, start = np.zeros(len(ids), bool), ids.shape[1]
        for n in range(max_new_tokens):
            logits = text.logits()                                          # (B, V)
            logits[:, suppress] = -np.inf
            if seen is not None:
                logits = penalize(logits, seen, repetition_penalty)
            if temperature == 0:
                token = likeliest(logits, owner)                            # (B,)
            else:
                p = probabilities(logits, temperature, top_k, top_p, min_p)  # (B, V)
                token = draw(p, [generator.random() for generator in generators])
            token = np.where(ended, fill, token)                            # (B,)
            ended |= np.isin(token, ends)
            text.extend(token)
            if seen is not None:
                seen[rows, token] = True
            for b in rows[~ended] if stop else ():
                written = decode(text.ids[b, start:].tolist())
                if not isinstance(written, str):
                    raise ConfigError(f"{owner}: decode returned {type(written).__name__}, expected a string")
                ended[b] = any(end in written for end in stop)
            if ended.all() or n + 1 == max_new_tokens:
                model.drop_transient()
            yield token
            if ended.all():
                return

    return steps()


def make_generator(owner, rng):
    """The generator that `rng`, one or a seed, stands for."""
    try:
        return np.random.default_rng(rng)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{owner}: rng is {rng!r}, expected a Generator or an integer of at least 0") from error


def check_stop(owner, stop, decode):
    """`stop` as a list of strings; raise unless they are, and come with `decode`."""
    stop = list(stop) if np.iterable(stop) and not isinstance(stop, str) else [stop]
    if not all(isinstance(end, str) and end for end in stop):
        raise ConfigError(f"{owner}: stop is {stop!r}, expected strings of at least one character")
    if stop and not callable(decode):
        raise ConfigError(f"{owner}: stop strings need decode, a function from a list of ids to text")
    return stop
