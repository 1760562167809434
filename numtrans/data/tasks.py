"""What every sequence-to-sequence task offers, and the three smallest of them: copy, reverse, sort."""
import string

import numpy as np

from numtrans.data.vocabulary import Vocabulary
from numtrans.errors import DataError


class Seq2SeqTask:
    """Pairs of strings in three splits, and the vocabularies that turn them into ids.

    Parameters
    ----------
    train, valid, test : list of (str, str)
        Source and target strings.
    source_vocab, target_vocab : Tokenizer

    Attributes
    ----------
    train, valid, test, source_vocab, target_vocab
        As given.
    """

    def __init__(self, train, valid, test, source_vocab, target_vocab):
        self.train, self.valid, self.test = train, valid, test
        self.source_vocab, self.target_vocab = source_vocab, target_vocab

    def encode_pair(self, source, target):
        """The ids of one pair, without ``bos`` and ``eos`` (the batches add them to the target).

        Parameters
        ----------
        source, target : str

        Returns
        -------
        tuple of two lists of int
        """
        return self.source_vocab.encode(source), self.target_vocab.encode(target)

    def encode_pairs(self, pairs):
        """:meth:`encode_pair` over a list of pairs, such as ``task.train``."""
        return [self.encode_pair(source, target) for source, target in pairs]


# In the order of their code points, so that sorted() of Python is the right answer of the sort task.
SYMBOLS = string.digits + string.ascii_uppercase + string.ascii_lowercase
_ANSWERS = {
    "copy": lambda source: source,
    "reverse": lambda source: source[::-1],
    "sort": lambda source: "".join(sorted(source)),
}


class SequenceTask(Seq2SeqTask):
    """Copy, reverse or sort a random string: the smallest tasks that show whether a Transformer learns at all.

    Lengths are drawn evenly from ``min_len`` to ``max_len`` and symbols evenly from the first ``vocab_size`` of
    ``0-9A-Za-z``. All sources of the three splits differ, so no test string has been seen in training.

    Parameters
    ----------
    kind : {"copy", "reverse", "sort"}
        What the target is. ``"sort"`` sorts by code point: digits, upper case, lower case.
    seed : int, default 0
    vocab_size : int, default 10
        Number of different symbols, from 2 to 62. 10 are the digits.
    min_len, max_len : int, defaults 1 and 10
        Shortest and longest string.
    n_train, n_valid, n_test : int, defaults 10000, 500 and 500
        Number of pairs.

    Raises
    ------
    DataError
        If a value is out of range, or there are fewer different strings than pairs are asked for.
    """

    def __init__(self, kind, seed=0, vocab_size=10, min_len=1, max_len=10, n_train=10_000, n_valid=500, n_test=500):
        if kind not in _ANSWERS:
            raise DataError(f"SequenceTask: kind must be one of {', '.join(_ANSWERS)}, got {kind!r}")
        if not 2 <= vocab_size <= len(SYMBOLS):
            raise DataError(f"SequenceTask: vocab_size must be from 2 to {len(SYMBOLS)}, got {vocab_size}")
        if not 1 <= min_len <= max_len:
            raise DataError(f"SequenceTask: expected 1 <= min_len <= max_len, got min_len={min_len}, "
                            f"max_len={max_len}")
        if min(n_train, n_valid, n_test) < 0:
            raise DataError("SequenceTask: n_train, n_valid and n_test must not be negative, "
                            f"got {n_train}, {n_valid} and {n_test}")
        total = n_train + n_valid + n_test
        space = sum(vocab_size ** length for length in range(min_len, max_len + 1))
        if total > space:
            raise DataError(f"SequenceTask: {total} different strings are asked for, but only {space} exist with "
                            f"{vocab_size} symbols and lengths {min_len} to {max_len}")
        self.kind = kind
        rng = np.random.default_rng(seed)
        # Drawing and throwing repeats away is quick while many strings are left; else list them all and shuffle.
        draw = _draw_some if 4 * total <= space else _draw_from_all
        sources = draw(rng, SYMBOLS[:vocab_size], min_len, max_len, total)
        pairs = [(source, _ANSWERS[kind](source)) for source in sources]
        vocab = Vocabulary.from_characters([SYMBOLS[:vocab_size]])
        super().__init__(pairs[n_valid + n_test:], pairs[:n_valid], pairs[n_valid:n_valid + n_test], vocab, vocab)


def _draw_some(rng, symbols, min_len, max_len, total):
    seen = {}                                                   # a dict keeps the order of drawing, a set does not
    while len(seen) < total:
        lengths = rng.integers(min_len, max_len + 1, size=total)
        picks = rng.integers(len(symbols), size=(total, max_len))
        for length, row in zip(lengths.tolist(), picks.tolist(), strict=True):
            seen["".join(symbols[i] for i in row[:length])] = True
            if len(seen) == total:
                break
    # Short strings are used up early; shuffled, every split has its share of every length.
    sources = list(seen)
    return [sources[i] for i in rng.permutation(total)]


def _draw_from_all(rng, symbols, min_len, max_len, total):
    every, longest = [], [""]
    for length in range(1, max_len + 1):
        longest = [head + symbol for head in longest for symbol in symbols]
        if length >= min_len:
            every += longest
    return [every[i] for i in rng.permutation(len(every))[:total]]
