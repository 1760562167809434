"""One long text for a language model: the next token, such as a character, is predicted from those before.

Shapes: ``N`` tokens of a split, ``B`` rows, ``T`` = block, the tokens in a row.
"""
from pathlib import Path

import numpy as np

from numtrans.data.batching import IGNORE
from numtrans.data.tokenizer import make_vocabulary
from numtrans.data.vocabulary import check_integer
from numtrans.errors import DataError

TOKENIZERS = ("char", "byte", "bpe")
DEFAULT_TEXT = "the topics of Python's help()"                  # how errors name the text that comes with Python
_TYPEWRITER = str.maketrans({                                   # curly quotes, long dashes, the dots, the hard space
    "\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2013": "-", "\u2014": "--", "\u2026": "...",
    "\xa0": " "})


def load_text(path=None):
    """Read a text.

    Parameters
    ----------
    path : str, Path or None, default None
        A UTF-8 file; a byte order mark is dropped, line ends become ``\\n``. None takes the English text that every
        Python carries in ``pydoc_data.topics`` (what ``help("FLOAT")`` prints), about 450,000 characters: topics in
        alphabetical order, typographic quotes and dashes as on a typewriter. It differs a little between versions
        of Python.

    Returns
    -------
    str

    Raises
    ------
    DataError
        If the file is missing, a folder, unreadable, empty, binary (a zero byte) or not UTF-8; the message names
        the file and the byte.
    """
    if path is None:
        try:
            from pydoc_data.topics import topics
        except ImportError as error:
            raise DataError("load_text: this Python has no pydoc_data.topics; give the path of a text file") from error
        text = "\n\n".join(topics[name].strip() for name in sorted(topics))
        return _unix_line_ends(text).translate(_TYPEWRITER) + "\n"
    path = Path(path)
    if path.is_dir():
        raise DataError(f"load_text: {path} is a folder; expected a text file")
    if not path.exists():
        raise DataError(f"load_text: there is no file {path}")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"load_text: {path} cannot be read: {error.strerror}") from error
    # UTF-8 allows a zero byte, but no text has one: it is the surest sign of a binary file.
    if b"\0" in data:
        raise DataError(f"load_text: {path} is a binary file (zero at byte {data.index(0)}); expected UTF-8 text")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"load_text: {path} is not UTF-8 text: byte {error.start} is 0x{data[error.start]:02x} "
                        f"({error.reason}); save it as UTF-8") from error
    text = _unix_line_ends(text.removeprefix("\ufeff"))
    if not text.strip():
        raise DataError(f"load_text: {path} is empty" + (" (only spaces and line ends)" if text else ""))
    return text


def _unix_line_ends(text):
    return text.replace("\r\n", "\n").replace("\r", "\n")


class TextTask:
    """A text cut in two, and rows of it for a language model.

    The first part is for training, the last part, never shuffled into it, for validation.

    Parameters
    ----------
    path : str, Path or None, default None
        See :func:`load_text`.
    block : int, default 64
        Tokens in a row.
    validation : float, default 0.1
        Share of the characters, at the end of the text, that is kept for validation.
    tokenizer : {"char", "byte", "bpe"}, default "char"
        What a token is. Byte pairs are learned from the training part; characters are those of the whole text.
    vocab_size : int, default 1000
        At most so many ids, for ``"bpe"``.

    Attributes
    ----------
    vocab : Tokenizer
    train, valid : ndarray (N,) of int64
        The ids of the two parts.
    block : int

    Raises
    ------
    DataError
        As :func:`load_text`; or if an argument is out of range, or one of the parts is shorter than a row and the
        token after it.
    """

    def __init__(self, path=None, block=64, validation=0.1, tokenizer="char", vocab_size=1000):
        check_integer("TextTask", "block", block, 1)
        if not 0 < validation < 1:
            raise DataError(f"TextTask: validation must be between 0 and 1, got {validation}")
        if tokenizer not in TOKENIZERS:
            raise DataError(f"TextTask: tokenizer must be one of {', '.join(TOKENIZERS)}, got {tokenizer!r}")
        text = load_text(path)
        cut = int(len(text) * (1 - validation))
        parts = text[:cut], text[cut:]
        self.block = block
        self.vocab = make_vocabulary(tokenizer, parts if tokenizer == "char" else parts[:1], vocab_size)
        self.train, self.valid = (np.array(self.vocab.encode(part), np.int64) for part in parts)
        what = "characters" if tokenizer == "char" else "tokens"
        for part, name in ((self.train, "training"), (self.valid, "validation")):
            if len(part) < block + 1:
                raise DataError(f"TextTask: the {name} part of {path or DEFAULT_TEXT} has {len(part)} {what}, but "
                                f"block={block} needs at least {block + 1}; give a longer text or a smaller block")

    def rows(self, rng, batch_size, length, split="train"):
        """Rows from places drawn at random.

        Parameters
        ----------
        rng : numpy.random.Generator
        batch_size : int
        length : int
            Tokens in a row, at most ``block + 1``.
        split : {"train", "valid"}, default "train"

        Returns
        -------
        ndarray (B, length), int64
        """
        ids = self._ids(split)
        self._check(batch_size, length)
        starts = rng.integers(len(ids) - length + 1, size=batch_size)
        return ids[starts[:, None] + np.arange(length)]

    def whole_rows(self, batch_size, length, split="valid"):
        """Rows side by side over a whole split; what is left at its end and fills no row is left out.

        Parameters
        ----------
        batch_size : int
        length : int
            Tokens in a row, at most ``block + 1``.
        split : {"train", "valid"}, default "valid"

        Yields
        ------
        ndarray (B, length), int64
            The last batch may be smaller.
        """
        ids = self._ids(split)
        self._check(batch_size, length)
        rows = ids[:len(ids) // length * length].reshape(-1, length)
        return (rows[i:i + batch_size] for i in range(0, len(rows), batch_size))

    def batch(self, rng, batch_size, split="train"):
        """Rows from places drawn at random.

        Parameters
        ----------
        rng : numpy.random.Generator
        batch_size : int
        split : {"train", "valid"}, default "train"

        Returns
        -------
        inputs, targets : ndarray (B, T), int64
            ``targets[:, t]`` is the token after ``inputs[:, t]``.
        """
        rows = self.rows(rng, batch_size, self.block + 1, split)
        return rows[:, :-1], rows[:, 1:]

    def eval_batches(self, batch_size, split="valid"):
        """Rows side by side over a whole split: every token but the first is a target exactly once.

        The last row reaches back so that it is full; its targets that the row before has had are -100, which the
        loss leaves out.

        Parameters
        ----------
        batch_size : int
        split : {"train", "valid"}, default "valid"

        Yields
        ------
        inputs, targets : ndarray (B, T), int64
            The last batch may be smaller.
        """
        self._check(batch_size, 1)
        return eval_batches(self._ids(split), self.block, batch_size)

    def _check(self, batch_size, length):
        if batch_size < 1:
            raise DataError(f"TextTask: batch_size must be at least 1, got {batch_size}")
        if not 1 <= length <= self.block + 1:
            raise DataError(f"TextTask: length must be from 1 to block + 1 = {self.block + 1}, got {length}")

    def _ids(self, split):
        if split not in ("train", "valid"):
            raise DataError(f"TextTask: split must be 'train' or 'valid', got {split!r}")
        return self.train if split == "train" else self.valid


def eval_batches(ids, block, batch_size):
    """Rows side by side over all of `ids`: every token but the first is a target exactly once.

    Parameters
    ----------
    ids : ndarray (N,) of int
        At least ``block + 1`` of them.
    block : int
        Tokens in a row.
    batch_size : int

    Yields
    ------
    inputs, targets : ndarray (B, T)
        As `TextTask.eval_batches` describes them.
    """
    last = len(ids) - 1 - block                                 # the last place where a row and its targets fit
    starts = np.arange(0, len(ids) - 1, block)
    seen = max(starts[-1] - last, 0)
    starts[-1] = min(starts[-1], last)
    for i in range(0, len(starts), batch_size):
        at = starts[i:i + batch_size, None] + np.arange(block)                          # (B, T)
        inputs, targets = ids[at], ids[at + 1]
        if i + batch_size >= len(starts):
            targets[-1, :seen] = IGNORE
        yield inputs, targets
