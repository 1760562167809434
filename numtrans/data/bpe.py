"""Byte-pair encoding, the tokenizer of GPT-2, from nothing: a frequent word is one id, a rare one is several.

1. A text is cut into words, a space staying with the word after it.
2. Each word is a row of bytes; so nothing is ever unknown, and decoding gives back exactly what was encoded.
3. Training merges, over and over, the two neighbors that are most frequent in the text into one new token.
4. Encoding does the same merges again, the earliest learned first.
"""
import heapq
import re
import unicodedata
from collections import Counter
from itertools import pairwise

from numtrans.data.bytes import text_of, utf8
from numtrans.data.vocabulary import (
    BOS,
    EOS,
    NUM_SPECIAL,
    PAD,
    UNK,
    check_integer,
    describe_keys,
    each_string,
    until_eos,
)
from numtrans.errors import DataError

# GPT-2 numbers the bytes in this order: those that print as one character, then the others.
_PRINTED = [*range(33, 127), *range(161, 173), *range(174, 256)]
BYTES = [*_PRINTED, *(b for b in range(256) if b not in _PRINTED)]

# GPT-2's pattern: endings such as 's, then letters, digits or marks, each with the space before; then blanks, of which
# the last stays with the word after them.
_WORD = re.compile(r"'(?:[stmd]|re|ve|ll)| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+", re.ASCII)
_WHITE = {0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000}     # beyond ASCII


class _StandIns(dict):
    """For ``str.translate``: an ASCII character of the same kind, since ``re`` has no names for kinds of characters."""

    def __missing__(self, code):
        if code < 128:
            return code
        kind = unicodedata.category(chr(code))[0]               # letter, number, mark, symbol ...
        return self.setdefault(code, "\n" if code in _WHITE else {"L": "x", "N": "0"}.get(kind, "#"))


_STAND_INS = _StandIns()


def split_words(text):
    """Cut a text into words as GPT-2 does; joined, they are the text.

    Examples
    --------
    >>> split_words("They're 30,  no?")
    ['They', "'re", ' 30', ',', ' ', ' no', '?']
    """
    return [text[match.start():match.end()] for match in _WORD.finditer(text.translate(_STAND_INS))]


def merge(ids, pair, new, ranks=None):
    """Replace the neighbors `pair` by the id `new`, from left to right.

    With `ranks` (pair -> rank), stop where `new` makes a pair that was learned before `pair`: its turn is now.
    """
    out, i, end = [], 0, len(ids)
    while i < end:
        if ids[i] != pair[0] or i + 1 == end or ids[i + 1] != pair[1]:
            out.append(ids[i])
            i += 1
            continue
        out.append(new)
        i += 2
        if ranks is not None and any(ranks.get(near, ranks[pair]) < ranks[pair]
                                     for near in pairwise([*out[-2:], *ids[i:i + 1]])):
            break
    return out + ids[i:]


class BytePairEncoder:
    """Byte-pair encoding with merges that are given, or learned by :meth:`train`.

    Ids 0 to 3 are special, 4 to 259 the bytes (in GPT-2's order), and each merge adds one id; unless its token is
    there already, made of two other parts.

    Parameters
    ----------
    merges : iterable of (int, int)
        The ids of the two parts of each merge, the first one learned first.

    Attributes
    ----------
    merges : list of (int, int)
    tokens : list of bytes
        What each id from 4 on stands for.

    Raises
    ------
    DataError
        If a merge is given twice, or uses an id that is special or not made by the bytes and the merges before it.

    References
    ----------
    Sennrich, Haddow and Birch (2016), Neural Machine Translation of Rare Words with Subword Units, arXiv:1508.07909.
    Radford et al. (2019), Language models are unsupervised multitask learners.
    """

    pad, bos, eos, unk = PAD, BOS, EOS, UNK
    level = "subword"

    def __init__(self, merges=()):
        self.tokens = [bytes([b]) for b in BYTES]
        self._ids = {token: i for i, token in enumerate(self.tokens, start=NUM_SPECIAL)}
        self.merges, self._ranks, self._words = [], {}, {}
        for pair in merges:
            self._learn(tuple(pair))

    def _learn(self, pair):
        """Add a merge, the latest one, and return the id of its token."""
        if len(pair) != 2 or not all(isinstance(i, int) and NUM_SPECIAL <= i < len(self) for i in pair):
            raise DataError(f"BytePairEncoder: merge {len(self.merges)} must be two ids from {NUM_SPECIAL} to "
                            f"{len(self) - 1}, got {pair}")
        if pair in self._ranks:
            raise DataError(f"BytePairEncoder: merge {len(self.merges)} is {pair}, which was given before")
        token = self.token(pair[0]) + self.token(pair[1])
        if token not in self._ids:
            self._ids[token] = len(self)
            self.tokens.append(token)
        self._ranks[pair] = len(self.merges)
        self.merges.append(pair)
        self._words.clear()
        return self._ids[token]

    @classmethod
    def train(cls, texts, vocab_size=8000):
        """Learn the merges from some texts: always the most frequent pair of neighbors within words.

        Of pairs that are equally frequent, the one with the smallest left id comes first, then the smallest right id;
        so do Hugging Face's ``tokenizers``.

        Parameters
        ----------
        texts : iterable of str
        vocab_size : int, default 8000
            At most so many ids, the four special ones and the 256 bytes included. Short texts give fewer.

        Returns
        -------
        BytePairEncoder

        Raises
        ------
        DataError
            If ``vocab_size`` is below 260, or `texts` is a single string.
        """
        encoder = cls()
        check_integer("BytePairEncoder.train", "vocab_size", vocab_size, 1)
        if vocab_size < len(encoder):
            raise DataError(f"BytePairEncoder.train: vocab_size must be at least {len(encoder)} (the special ids and "
                            f"all bytes), got {vocab_size}")
        words = Counter(word for text in each_string("BytePairEncoder.train", texts) for word in split_words(text))
        rows, times = [encoder._bytes(word) for word in words], list(words.values())
        counts, places = Counter(), {}                          # pair -> how often, and in which rows

        def count(row, sign):
            for pair in pairwise(rows[row]):
                counts[pair] += sign * times[row]
                places.setdefault(pair, set()).add(row)

        for row in range(len(rows)):
            count(row, 1)
        queue = [(-n, pair) for pair, n in counts.items()]
        heapq.heapify(queue)
        while queue and len(encoder) < vocab_size:
            n, pair = heapq.heappop(queue)
            if n == 0 or -n != counts[pair]:                    # has changed since, and stands elsewhere in the queue
                continue
            new, changed = encoder._learn(pair), set()
            for row in places.pop(pair):
                before = set(pairwise(rows[row]))
                if pair in before:
                    count(row, -1)
                    rows[row] = merge(rows[row], pair, new)
                    count(row, 1)
                    changed |= before.union(pairwise(rows[row]))
            for near in changed:
                heapq.heappush(queue, (-counts[near], near))
        return encoder

    def __len__(self):
        return NUM_SPECIAL + len(self.tokens)

    def __eq__(self, other):
        return isinstance(other, BytePairEncoder) and self.merges == other.merges

    def __repr__(self):
        return f"BytePairEncoder({len(self)} ids)"

    def token(self, i):
        """The bytes of an id from 4 on."""
        return self.tokens[i - NUM_SPECIAL]

    def encode(self, text):
        """Turn a text into ids. Neither ``bos`` nor ``eos`` is added."""
        utf8("BytePairEncoder.encode", text)                    # refuses what is no text
        return [i for word in split_words(text) for i in self._encode_word(word)]

    def _encode_word(self, word):
        ids = self._words.get(word)
        if ids is None:
            ids = self._bytes(word)
            while ranks := [self._ranks[pair] for pair in pairwise(ids) if pair in self._ranks]:
                pair = self.merges[min(ranks)]
                ids = merge(ids, pair, self._ids[self.token(pair[0]) + self.token(pair[1])], self._ranks)
            if len(word) < 64:                                  # words come again, long rows of marks do not
                self._words[word] = ids
        return ids

    def _bytes(self, word):
        return [self._ids[bytes([b])] for b in utf8("BytePairEncoder", word)]

    def decode(self, ids):
        """Turn ids back into a text. Stops at ``eos``; skips ``pad`` and ``bos``; ``unk`` becomes U+FFFD.

        Bytes that are not UTF-8, such as half of a character, become U+FFFD, too.
        """
        known = until_eos("BytePairEncoder.decode", ids, len(self))
        return text_of(None if i == UNK else self.token(i) for i in known)

    def to_dict(self):
        """What JSON needs to make this vocabulary again, for ``config.json``."""
        return {"level": self.level, "merges": [list(pair) for pair in self.merges]}

    @classmethod
    def from_dict(cls, data):
        """The vocabulary that :meth:`to_dict` described; or a run of an earlier version, with ``tokenizers``' JSON."""
        try:
            if "tokenizer" in data:
                return cls._from_tokenizers(data["tokenizer"]["model"])
            return cls(data["merges"])
        except DataError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"BytePairEncoder.from_dict: expected a dict with 'merges', got {describe_keys(data)}"
                            ) from error

    @classmethod
    def _from_tokenizers(cls, model):
        encoder, vocab = cls(), model["vocab"]
        for parts in model["merges"]:
            left, right = parts.split(" ") if isinstance(parts, str) else parts
            made = encoder._learn((vocab[left], vocab[right]))
            if made != vocab[left + right]:
                raise DataError(f"BytePairEncoder.from_dict: the token {left + right!r} has id {vocab[left + right]}, "
                                f"expected {made}: not a vocabulary of numtrans")
        return encoder
