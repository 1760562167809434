"""Batches for sequence-to-sequence training: lists of ids of many lengths become arrays of one width.

Shapes: ``B`` examples, ``Ts`` and ``Tt`` source and target tokens of the longest example in the batch.
"""
from typing import NamedTuple

import numpy as np

from numtrans.data.vocabulary import BOS, EOS, PAD
from numtrans.errors import DataError

IGNORE = -100                       # the target that a loss leaves out, as ignore_index of CrossEntropyLoss
BATCHES_PER_CHUNK = 50              # lengths are sorted within so many batches: enough to be even, few enough to mix


def pad_batch(rows, pad_id=PAD):
    """Put lists of ids into one array, filling up the short ones on the right.

    Parameters
    ----------
    rows : list of list of int
    pad_id : int, default 0

    Returns
    -------
    ids : ndarray (B, T), int64
        T is the length of the longest row.
    lengths : ndarray (B,), int64

    Raises
    ------
    DataError
        If there are no rows.
    """
    if len(rows) == 0:
        raise DataError("pad_batch: expected at least one row, got none")
    lengths = np.array([len(row) for row in rows], np.int64)
    ids = np.full((len(rows), lengths.max()), pad_id, np.int64)
    for i, row in enumerate(rows):
        ids[i, :len(row)] = row
    return ids, lengths


def shift_targets(ids, pad_id=PAD):
    """Split whole targets into what the decoder reads and what it has to say next.

    At every position the decoder reads token t and is scored against token t + 1; if the two were the same array,
    it would only have to repeat its input.

    Parameters
    ----------
    ids : ndarray (B, T + 1) of int
        Rows ``bos y eos pad pad ...``.
    pad_id : int, default 0

    Returns
    -------
    decoder_input : ndarray (B, T)
        The row without its last column.
    labels : ndarray (B, T)
        The row without its first column, padding replaced by ``IGNORE`` (-100).

    Raises
    ------
    DataError
        If ``ids`` does not have two axes and at least two columns.
    """
    ids = np.asarray(ids)
    if ids.ndim != 2 or ids.shape[1] < 2:
        raise DataError(f"shift_targets: expected ids of shape (B, T + 1) with T >= 1, got shape {ids.shape}")
    return ids[:, :-1].copy(), np.where(ids[:, 1:] == pad_id, IGNORE, ids[:, 1:])


class Batch(NamedTuple):
    """One batch.

    ``src`` (B, Ts): source ids, padded with 0. ``tgt_in`` (B, Tt): ``bos y``, padded with 0. ``tgt_out`` (B, Tt):
    ``y eos``, filled up with -100, which the loss leaves out.
    """

    src: np.ndarray
    tgt_in: np.ndarray
    tgt_out: np.ndarray

    @property
    def src_mask(self):
        """Boolean (B, 1, 1, Ts): True where the source has a token, so that attention may look there."""
        return (self.src != PAD)[:, None, None, :]

    @property
    def num_tokens(self):
        """Number of target tokens that are scored."""
        return int((self.tgt_out != IGNORE).sum())


class Seq2SeqBatches:
    """Batches of examples of like length, in an order that depends only on the seed and the epoch.

    Each epoch has every example exactly once; the batch that is left over at the end is smaller. Shuffling: all
    examples are shuffled and cut into chunks of 50 batches; each chunk is sorted by length, so that a batch has
    little padding; then the batches are shuffled. Since nothing is remembered from one epoch to the next, a run that
    resumes at any epoch and batch goes on with the very batches it would have had.

    Parameters
    ----------
    pairs : list of (list of int, list of int)
        Source and target ids, without ``bos`` and ``eos``, as ``task.encode_pairs`` gives them.
    batch_size : int
    seed : int, default 0
    bucket : bool, default True
        Put examples of like length together.
    shuffle : bool, default True
        False keeps the given order (within chunks sorted by length, if ``bucket``), the same in each epoch.

    Raises
    ------
    DataError
        If there are no pairs, batch_size is below 1, a source is empty, or ids contain the padding id.

    Examples
    --------
    >>> batches = Seq2SeqBatches([([5, 6], [6, 5]), ([7], [7])], batch_size=2, shuffle=False, bucket=False)
    >>> batch = next(batches.epoch(0))
    >>> batch.src.tolist(), batch.tgt_in.tolist(), batch.tgt_out.tolist()
    ([[5, 6], [7, 0]], [[1, 6, 5], [1, 7, 0]], [[6, 5, 2], [7, 2, -100]])
    """

    def __init__(self, pairs, batch_size, *, seed=0, bucket=True, shuffle=True):
        if batch_size < 1:
            raise DataError(f"Seq2SeqBatches: batch_size must be at least 1, got {batch_size}")
        self.pairs = list(pairs)
        if not self.pairs:
            raise DataError("Seq2SeqBatches: expected at least one pair, got none")
        for i, (source, target) in enumerate(self.pairs):
            if len(source) == 0:
                raise DataError(f"Seq2SeqBatches: the source of pair {i} is empty; there is nothing to attend to")
            if PAD in source or PAD in target:
                raise DataError(f"Seq2SeqBatches: pair {i} contains the padding id {PAD}; give the ids unpadded")
        self.batch_size, self.seed, self.bucket, self.shuffle = batch_size, seed, bucket, shuffle

    def __len__(self):
        """Number of batches in an epoch."""
        return (len(self.pairs) + self.batch_size - 1) // self.batch_size

    def order(self, epoch=0):
        """Which examples are in which batch of an epoch.

        Parameters
        ----------
        epoch : int, default 0

        Returns
        -------
        list of list of int
            For each batch the indices of its pairs.
        """
        rng = np.random.default_rng((self.seed, epoch))
        n, size = len(self.pairs), self.batch_size
        examples = (rng.permutation(n) if self.shuffle else np.arange(n)).tolist()
        if self.bucket:
            # A chunk is a whole number of batches: only the last batch of the last chunk can be smaller.
            chunk = size * BATCHES_PER_CHUNK
            examples = [i for start in range(0, n, chunk)
                        for i in sorted(examples[start:start + chunk], key=self._lengths)]
        batches = [examples[start:start + size] for start in range(0, n, size)]
        return [batches[i] for i in rng.permutation(len(batches))] if self.shuffle and self.bucket else batches

    def epoch(self, epoch=0, start=0):
        """The batches of an epoch, one by one.

        Parameters
        ----------
        epoch : int, default 0
        start : int, default 0
            Begin with this batch: where a run that was interrupted in the middle of the epoch goes on.

        Yields
        ------
        Batch

        Raises
        ------
        DataError
            If ``start`` is negative or more than the number of batches.
        """
        if not 0 <= start <= len(self):
            raise DataError(f"Seq2SeqBatches: start must be from 0 to {len(self)}, got {start}")
        return (self._batch(indices) for indices in self.order(epoch)[start:])

    def __iter__(self):
        return self.epoch(0)

    def _lengths(self, i):
        source, target = self.pairs[i]
        return len(source), len(target)

    def _batch(self, indices):
        src, _ = pad_batch([self.pairs[i][0] for i in indices])
        whole, _ = pad_batch([[BOS, *self.pairs[i][1], EOS] for i in indices])
        tgt_in, tgt_out = shift_targets(whole)
        tgt_in[tgt_out == IGNORE] = PAD                         # the eos of a short row is never read
        return Batch(src, tgt_in, tgt_out)
