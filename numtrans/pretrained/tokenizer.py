"""Tokenizers of pretrained models, through Hugging Face's ``tokenizers``: byte pairs, WordPiece and unigram.

``tokenizers`` does the work and is part of the extra ``pretrained``; this file finds the vocabulary in a folder or a
file, and the special ids. Shapes: ``B`` texts, ``T`` tokens of the longest.
"""

import json
import operator
from pathlib import Path

import numpy as np

from numtrans.data.bpe import BYTES
from numtrans.data.vocabulary import check_integer
from numtrans.errors import CheckpointError, DataError
from numtrans.pretrained.gguf_vocabulary import make_tokenizer, read_metadata
from numtrans.pretrained.tokenizer_files import SPECIAL, find_file, import_tokenizers, read_file

# GPT-2 writes bytes as letters: those that print as themselves, the others as the letters from 256 on.
_BYTE_OF = {chr(b) if i < 188 else chr(256 + i - 188): b for i, b in enumerate(BYTES)}


class PretrainedTokenizer:
    """A tokenizer of the ``tokenizers`` package, and what a model has to know about its ids.

    Made by `load_tokenizer`.

    Parameters
    ----------
    tokenizer : tokenizers.Tokenizer
    **ids : int or None
        ``bos``, ``eos``, ``pad``, ``unk``, ``mask``, ``cls``, ``sep``.

    Attributes
    ----------
    bos_id, eos_id, pad_id, unk_id, mask_id, cls_id, sep_id : int or None
        None where the vocabulary has no such token.
    backend : tokenizers.Tokenizer
        For all that this class does not offer.
    """

    level = "pretrained"

    def __init__(self, tokenizer, **ids):
        unknown = sorted(set(ids) - set(SPECIAL))
        if unknown:
            raise DataError(f"PretrainedTokenizer: unknown special ids {', '.join(unknown)}, expected {SPECIAL}")
        # Files may ask for rows of one length, which is not for a single text.
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self.backend = tokenizer
        self._size = max(tokenizer.get_vocab().values(), default=-1) + 1
        if not self._size:
            raise DataError("PretrainedTokenizer: the vocabulary is empty")
        for name in SPECIAL:
            value = ids.get(name)
            setattr(self, f"{name}_id", None if value is None else int(value))

    def __len__(self):
        return self._size

    def __eq__(self, other):
        return isinstance(other, PretrainedTokenizer) and self.to_dict() == other.to_dict()

    def __repr__(self):
        ids = ", ".join(f"{name}={i}" for name, i in self.special_ids.items())
        return f"PretrainedTokenizer({len(self)} ids, {type(self.backend.model).__name__}, {ids})"

    @property
    def special_ids(self):
        """Name -> id of the special tokens that there are, such as ``{"bos": 1, "eos": 2}``."""
        ids = {name: getattr(self, f"{name}_id") for name in SPECIAL}
        return {name: i for name, i in ids.items() if i is not None}

    def encode(self, text, add_special_tokens=True):
        """Turn a text into ids.

        Parameters
        ----------
        text : str
            Names of special tokens in it, such as ``<|endoftext|>``, become their ids.
        add_special_tokens : bool, default True
            Put around it what the model expects, such as ``[CLS]`` and ``[SEP]``, or ``bos``.

        Returns
        -------
        list of int
        """
        _check_text("encode", text)
        return self.backend.encode(text, add_special_tokens=add_special_tokens).ids

    def encode_batch(self, texts, *, padding_side="right", add_special_tokens=True, max_len=None):
        """Turn texts into rows of one length.

        Parameters
        ----------
        texts : list of str
        padding_side : {"right", "left"}, default "right"
            Left for a model that goes on writing at the end.
        add_special_tokens : bool, default True
        max_len : int, optional
            Longer texts are cut at their end; what is put around them stays.

        Returns
        -------
        ids : ndarray (B, T), int64
            Filled up with ``pad_id``; or with ``eos_id`` or 0 where the vocabulary has none, which the mask hides.
        mask : boolean ndarray (B, T)
            True = token of the text.
        """
        if not isinstance(texts, (list, tuple)) or not texts:
            got = "none" if isinstance(texts, (list, tuple)) else "one string" if isinstance(texts, str) else None
            raise DataError("PretrainedTokenizer.encode_batch: expected a list of at least one string, got "
                            f"{got or type(texts).__name__}")  # fmt: skip
        if max_len is not None:
            check_integer("PretrainedTokenizer.encode_batch", "max_len", max_len, 1)
        if padding_side not in ("right", "left"):
            raise DataError("PretrainedTokenizer.encode_batch: padding_side must be 'right' or 'left', got "
                            f"{padding_side!r}")  # fmt: skip
        for text in texts:
            _check_text("encode_batch", text)
        rows = [self._cut(text, add_special_tokens, max_len) for text in texts]
        T = max(len(row) for row in rows)
        fill = next((i for i in (self.pad_id, self.eos_id) if i is not None), 0)
        ids, mask = np.full((len(rows), T), fill, np.int64), np.zeros((len(rows), T), bool)
        for i, row in enumerate(rows):
            place = slice(0, len(row)) if padding_side == "right" else slice(T - len(row), T)
            ids[i, place], mask[i, place] = row, True
        return ids, mask

    def _cut(self, text, add_special_tokens, max_len):
        ids = self.backend.encode(text, add_special_tokens=False).ids
        around = self.backend.num_special_tokens_to_add(False) if add_special_tokens else 0
        if max_len is not None and max_len <= around:
            raise DataError(f"PretrainedTokenizer.encode_batch: max_len must be more than the {around} special tokens, "
                            f"got {max_len}")  # fmt: skip
        if max_len is None or len(ids) + around <= max_len:
            return self.encode(text, add_special_tokens)
        try:
            self.backend.enable_truncation(max_len)
            return self.encode(text, add_special_tokens)
        finally:
            self.backend.no_truncation()

    def decode(self, ids, skip_special_tokens=True):
        """Turn ids back into a text. Special tokens are left out, unless ``skip_special_tokens`` is False."""
        return self.backend.decode(self._checked("decode", ids), skip_special_tokens=skip_special_tokens)

    def tokens(self, ids):
        """Each id as a string, for the labels of a picture: bytes as text, a blank in front where a word begins.

        A token of bytes that are no whole character has U+FFFD for them.
        """
        spelled = [self.backend.id_to_token(i) or "" for i in self._checked("tokens", ids)]
        if type(self.backend.decoder).__name__ == "ByteLevel":
            return [_as_text(token) for token in spelled]
        return [token.replace("\u2581", " ") for token in spelled]

    def _checked(self, who, ids):
        """`ids` as Python integers; raise unless all are in the vocabulary."""
        try:
            ids = [operator.index(i) for i in ids]
        except TypeError as error:
            raise DataError(f"PretrainedTokenizer.{who}: expected a row of integers, got {ids!r:.60}") from error
        wrong = [i for i in ids if not 0 <= i < len(self)]
        if wrong:
            raise DataError(f"PretrainedTokenizer.{who}: ids must be from 0 to {len(self) - 1}, got {wrong[0]}")
        return ids

    def to_dict(self):
        """What JSON needs to make this tokenizer again."""
        return {"level": self.level, "tokenizer": json.loads(self.backend.to_str()), "ids": self.special_ids}

    @classmethod
    def from_dict(cls, data):
        """The tokenizer that :meth:`to_dict` described."""
        tokenizers = import_tokenizers()
        if not isinstance(data, dict) or "tokenizer" not in data:
            raise DataError("PretrainedTokenizer.from_dict: expected a dict with 'tokenizer' and 'ids'")
        try:
            return cls(tokenizers.Tokenizer.from_str(json.dumps(data["tokenizer"])), **data.get("ids", {}))
        except DataError:
            raise
        except Exception as error:  # what `tokenizers` raises has no class of its own
            raise DataError(f"PretrainedTokenizer.from_dict: not a tokenizer: {error}") from error


def _as_text(token):
    if not set(token) <= _BYTE_OF.keys():  # an added token, which stands as it is
        return token
    return bytes(_BYTE_OF[letter] for letter in token).decode("utf-8", errors="replace")


def load_tokenizer(path):
    """Read the tokenizer of a pretrained model.

    Parameters
    ----------
    path : str or Path
        A folder with ``tokenizer.json``, or ``vocab.txt`` (BERT), or ``vocab.json`` and ``merges.txt`` (GPT-2), or one
        ``.gguf`` file; or one of these files.

    Returns
    -------
    PretrainedTokenizer

    Raises
    ------
    CheckpointError
        If there is no such file, or it cannot be read. Files of SentencePiece (``.model``) are not read.
    ImportError
        If the ``tokenizers`` package is not installed.
    """
    import_tokenizers()
    path = Path(path)
    if not path.exists():
        raise CheckpointError(f"{path}: no such file or folder")
    file = find_file(path) if path.is_dir() else path
    tokenizer, ids = make_tokenizer(read_metadata(file), file) if file.suffix == ".gguf" else read_file(file)
    try:
        return PretrainedTokenizer(tokenizer, **ids)
    except DataError as error:
        raise CheckpointError(f"{file}: {error}") from error


def _check_text(who, text):
    if not isinstance(text, str):
        raise DataError(f"PretrainedTokenizer.{who}: expected a string, got {type(text).__name__}")
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise DataError(f"PretrainedTokenizer.{who}: the text holds half of a surrogate pair, which is no character")
