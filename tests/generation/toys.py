"""Models whose next-token logits are written down, for tests of what is done with logits."""

from types import SimpleNamespace

import numpy as np

from numtrans.module import Module


class LastToken:
    """The cache of `TwoTokens`: the latest token of each row."""

    def __init__(self):
        self.tokens, self.length = None, 0

    def select(self, rows, *, memory=True):
        self.tokens = self.tokens[rows]


class TwoTokens(Module):
    """Logits 2 sin(1.3 a + 2.1 b + 2.6 t + 1.2 b t) of the tokens t = 0, 1, 2 after ..., a, b; 3 never comes."""

    config = SimpleNamespace(vocab_size=4, max_len=99)

    def make_cache(self, capacity):
        return LastToken()

    def hidden(self, ids, mask=None, *, cache=None):
        a, b = (ids[:, -2] if ids.shape[1] > 1 else cache.tokens), ids[:, -1]
        if cache is not None:
            cache.tokens, cache.length = b, cache.length + ids.shape[1]
        t = np.arange(3)
        z = 2 * np.sin(1.3 * a[:, None] + 2.1 * b[:, None] + 2.6 * t + 1.2 * b[:, None] * t)
        return np.concatenate([z, np.full((len(ids), 1), -np.inf)], axis=1)[:, None]

    def output(self, h):
        return h


class Scripted(Module):
    """The next token is that of a script, (B, n), whatever the prompt; after its end the last one again."""

    def __init__(self, script, prompt_length, vocab_size=10):
        super().__init__()
        self.script, self.prompt_length = np.asarray(script), prompt_length
        self.config, self.calls = SimpleNamespace(vocab_size=vocab_size, max_len=99), 0

    def make_cache(self, capacity):
        return None

    def hidden(self, ids, mask=None, *, cache=None):
        n = min(ids.shape[1] - self.prompt_length, self.script.shape[1] - 1)
        self.calls += 1
        return np.eye(self.config.vocab_size)[self.script[:, n]][:, None] * 50

    def output(self, h):
        return h
