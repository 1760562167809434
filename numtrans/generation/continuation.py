"""Sequences that a model continues, and what it has read of them.

Shapes: ``B`` rows, ``T`` tokens so far, ``V`` vocabulary.
"""

import contextlib

import numpy as np

from numtrans.backend import to_numpy
from numtrans.checks import check_count
from numtrans.errors import ConfigError
from numtrans.generation.sampling import check_finite
from numtrans.module import no_grad


class Continuation:
    """Token ids that grow, and the logits of the next token of each row.

    With a cache, the model reads each token once. A row that is padded on the left gets the mask and the positions that
    make it what it would be alone.

    Parameters
    ----------
    model : GPT, Llama, Transformer or T5
    ids : integer array (B, T)
        The prompts; of an encoder-decoder the start of the target.
    real : boolean array (B, T), optional
        False for the padding on the left.
    src, src_mask : optional
        For an encoder-decoder, as for its ``encode``.
    room : int
        Tokens to come, for which the cache makes room at once.
    context : int, optional
        Most tokens that a decoder-only model sees, the latest; by default ``config.max_len``, and no limit for
        positions that are relative (``"rope"``, ``"shaw"``, ``"t5"``, ``"alibi"`` of a `GPTConfig`). From there on all
        of them are read again for each token, because every token has another position, or other tokens before it.
    cache : bool, default True
        False reads all tokens again each time.
    """

    def __init__(self, model, ids, real=None, *, src=None, src_mask=None, room=0, context=None, cache=True):
        self.model, self.ids, self.real = model, ids, real
        self.parts = list(model.modules())
        self.name = name = type(model).__name__
        two = hasattr(model, "encode")
        if not hasattr(model, "make_cache"):
            raise ConfigError(f"{name} cannot write, expected a decoder-only model or an encoder-decoder")
        if two != (src is not None):
            raise ConfigError(f"{name}: expected {'src, the tokens to read' if two else 'no src, it has no encoder'}")
        position = getattr(model.config, "position", None)
        self.absolute = position in ("learned", "sinusoidal")
        self.context = self.check_context(context, two, position)
        self.memory = self.src_mask = None
        if two:
            with evaluating(model):
                self.memory, self.src_mask = model.encode(src, src_mask)
            if len(self.memory) != len(ids):
                raise ConfigError(f"{name}: src has {len(self.memory)} rows, expected {len(ids)} as the prompts")
        total = ids.shape[1] + room
        self.cache = model.make_cache(max(1, min(total, self.context or total))) if cache else None

    def check_context(self, context, two, position):
        """The most tokens that the model sees, None for no limit."""
        if two:
            if context is not None:
                raise ConfigError(f"{self.name}: got context={context}, expected none for an encoder-decoder")
            return None
        limit = None if position in ("rope", "shaw", "t5", "alibi") else self.model.config.max_len
        if context is not None:
            check_count(self.name, "context", context, 1)
        if context is not None and not 1 <= context <= (limit or context):
            raise ConfigError(f"{self.name}: context is {context}, expected 1 to {limit or 'any number'}")
        return limit if context is None else context

    def logits(self):
        """Logits (B, V) of the token after the latest, a NumPy array in float64."""
        T = self.ids.shape[1]
        first = 0 if self.context is None else max(0, T - self.context)
        if first:
            self.cache = None
        start = first if self.cache is None else self.cache.length
        mask, options = None, {}
        if self.real is not None:
            real = self.real[:, first:]
            mask = real[:, None, None]                                      # (B, 1, 1, T)
            if self.absolute:  # the first real token of each row has position 0
                options["positions"] = np.maximum(real.cumsum(axis=1) - 1, 0)[:, start - first :]
        new = self.ids[:, start:]
        with evaluating(self.model, self.parts):
            if self.memory is None:
                h = self.model.hidden(new, mask, cache=self.cache, **options)
                logits = self.model.output(h[:, -1:])[:, 0]
            else:
                logits = self.model.decode(new, self.memory, self.src_mask, mask, cache=self.cache, **options)[:, -1]
        logits = to_numpy(logits).astype(np.float64)                        # (B, V)
        check_finite(self.name, logits)
        return logits

    def extend(self, tokens):
        """Add one token (B,) to each row."""
        self.ids = np.concatenate([self.ids, tokens[:, None]], axis=1)      # (B, T + 1)
        if self.real is not None:
            self.real = np.concatenate([self.real, np.ones((len(self.ids), 1), bool)], axis=1)

    def select(self, rows, *, memory=True):
        """Row ``i`` becomes what row ``rows[i]`` was, with all that was read of it.

        Without `memory` that of the encoder stays where it is, for rows that change places with others of one source.
        """
        self.ids = self.ids[rows]
        self.real = None if self.real is None else self.real[rows]
        if memory and self.memory is not None:
            self.memory = self.memory[rows]
            if self.src_mask is not None and len(self.src_mask) > 1:
                self.src_mask = self.src_mask[rows]
        if self.cache is not None:
            self.cache.select(rows, memory=memory)


def output_size(model):
    """Number of tokens that `model` can write."""
    config = getattr(model, "config", None)
    if config is None:
        raise ConfigError(f"{type(model).__name__} cannot write, expected a decoder-only model or an encoder-decoder")
    return config.tgt_vocab_size if hasattr(config, "tgt_vocab_size") else config.vocab_size


@contextlib.contextmanager
def evaluating(model, parts=None):
    """Evaluation mode without gradients; afterwards each part is in the mode that it was in.

    `parts`, by default those of ``model.modules()``, saves the search for them where it is entered for each token.
    """
    in_training = [part for part in (model.modules() if parts is None else parts) if part.training]
    for part in in_training:
        part.training = False
    try:
        with no_grad():
            yield
    finally:
        for part in in_training:
            part.training = True
