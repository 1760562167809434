"""A trained model on data: what each token costs, and what it writes.

Every number is a ratio of sums over tokens or pairs, so it depends neither on the size of the batches nor on how the
data are split into files.

Shapes: ``N`` tokens of a text, ``B`` rows, ``T`` tokens in a row.
"""

import numpy as np

from numtrans.data import UNK, Seq2SeqBatches, TextTask, load_pairs, load_text
from numtrans.data.text import eval_batches
from numtrans.errors import ConfigError, DataError
from numtrans.evaluation.result import Evaluation
from numtrans.generation import evaluating
from numtrans.models import Transformer
from numtrans.runs import data_digest, is_exact, make_objective, token_sums, translate_all


def evaluate_file(run, path, target=None, **options):
    """Evaluate a run on a file: a UTF-8 text for a model of texts, pairs for an encoder-decoder of pairs.

    Parameters
    ----------
    run : Run
    path : str or Path
        A text; or pairs, see :func:`numtrans.data.load_pairs`.
    target : str or Path, optional
        The translations of the lines of `path`.
    **options
        Those of `evaluate_pairs` or `evaluate_text`.

    Returns
    -------
    Evaluation

    Raises
    ------
    DataError
        If a file is missing, empty, no text, or holds no pairs as it should; the message names file and line.
    """
    if not isinstance(run.model, Transformer):
        if target is not None:
            raise ConfigError(f"evaluate: this run holds a {type(run.model).__name__}, which reads one text, no pairs")
        return evaluate_text(run, load_text(path), name=str(path), **options)
    name = str(path) if target is None else f"{path}, {target}"
    return evaluate_pairs(run, load_pairs(path, target), name=name, **options)


def evaluate_task(run, task, **options):
    """Evaluate a run on what its own task keeps apart: the test pairs, or the validation part of a text.

    Raises
    ------
    DataError
        If the data of `task` are not those of the run, since its data file has changed.
    """
    text = isinstance(task, TextTask)
    own = (task.vocab, task.vocab) if text else (task.source_vocab, task.target_vocab)
    digest = run.settings.get("data_digest")  # runs of earlier versions have none
    if own != (run.source_vocab, run.target_vocab) or digest not in (None, data_digest(task)):
        raise DataError("evaluate: the data of the run have changed since it was trained, so that what it kept apart "
                        "is not known; name the file to evaluate on")  # fmt: skip
    if text:
        return evaluate_tokens(run, task.valid, name="validation part", **options)
    return evaluate_pairs(run, task.test, name="test split", **options)


def evaluate_text(run, text, *, name="text", batch_size=64, seed=0):
    """`evaluate_tokens` for the tokens of a text."""
    return evaluate_tokens(run, run.target_vocab.encode(text), name=name, batch_size=batch_size, seed=seed)


def evaluate_tokens(run, ids, *, name="text", batch_size=64, seed=0):
    """Evaluate a model of texts on one long row of tokens.

    The text is read in rows as long as the model was trained on. A GPT predicts every token but the first exactly once;
    the first tokens of a row have little before them to go by. A BERT or a T5 predicts what its objective hides; what
    that is depends on `seed` and the place in the text alone. The end of the text that fills no row is a shorter row;
    a single token, in which nothing can be hidden, is left out.

    Parameters
    ----------
    run : Run
        Of a GPT, BERT or T5.
    ids : integer array (N,)
    name : str
        For the result and for errors.
    batch_size : int, default 64
        Rows that are worked through at a time; without effect on the result.
    seed : int, default 0

    Returns
    -------
    Evaluation

    Raises
    ------
    ConfigError
        If the run holds an encoder-decoder of pairs.
    DataError
        If there are fewer than two tokens, or all are unknown to a model that hides tokens.
    """
    if isinstance(run.model, Transformer):
        raise ConfigError("evaluate: this run holds an encoder-decoder of pairs, not a model of texts")
    ids = np.asarray(ids, np.int64)
    if len(ids) < 2:
        raise DataError(f"evaluate: {name} has {len(ids)} tokens, expected at least 2")
    _check_batch_size(batch_size)
    objective, size = make_objective(run.settings, run.target_vocab), None
    if objective.name == "clm":
        block = min(run.model.config.max_len, len(ids) - 1)
        batches = (((x,), y) for x, y in eval_batches(ids, block, batch_size))
        size = _size(run.target_vocab, ids[1:])
    else:
        batches = hidden_batches(objective, ids, batch_size, seed)
    with evaluating(run.model):
        nats, tokens, right = token_sums(run.model, batches)
    if not tokens:
        raise DataError(f"evaluate: {name} has no token that the objective {objective.name!r} can hide")
    return Evaluation(name, nats, tokens, right, int((ids == UNK).sum()), size)


def hidden_batches(objective, ids, batch_size, seed=0):
    """Batches of masked tokens or of spans over all of `ids` (N,), drawn row by row.

    Yields
    ------
    inputs : tuple of arrays (B, T)
    targets : array (B, T')
    """
    length = objective.length
    whole = ids[: len(ids) // length * length].reshape(-1, length)
    rest = ids[whole.size :]
    for rows, first in ((whole, 0), (rest[None], len(whole))):
        if rows is not whole and rows.shape[1] < 2:
            break
        for start in range(0, len(rows), batch_size):
            numbered = enumerate(rows[start : start + batch_size], first + start)
            made = [objective(row[None], np.random.default_rng((seed, 0, i))) for i, row in numbered]
            inputs, targets = zip(*made)
            yield tuple(np.concatenate(part) for part in zip(*inputs)), np.concatenate(targets)


def evaluate_pairs(run, pairs, *, name="pairs", batch_size=64, **decoding):
    """Evaluate an encoder-decoder on pairs: the loss of the targets, and the translations it writes itself.

    Parameters
    ----------
    run : Run
        Of a Transformer.
    pairs : list of (str, str)
    name : str
        For the result and for errors.
    batch_size : int, default 64
        Pairs of like length that are worked through at a time; without effect on the result.
    **decoding
        How translations are written, as `Run.translate` takes it.

    Returns
    -------
    Evaluation

    Raises
    ------
    ConfigError
        If the run holds a model of texts.
    DataError
        If there are no pairs, a source has no token, or a pair is longer than a learned position table.
    """
    if not isinstance(run.model, Transformer):
        raise ConfigError(f"evaluate: this run holds a {type(run.model).__name__}, a model of texts, not of pairs")
    if not pairs:
        raise DataError(f"evaluate: {name} has no pairs")
    _check_batch_size(batch_size)
    sources, references = map(list, zip(*pairs))
    ids = [(run.source_vocab.encode(source), run.target_vocab.encode(target)) for source, target in pairs]
    _check_lengths(run.model.config, ids, name)
    batches = Seq2SeqBatches(ids, batch_size, shuffle=False).epoch()
    with evaluating(run.model):
        nats, tokens, right = token_sums(run.model, (((b.src, b.tgt_in), b.tgt_out) for b in batches))
    written = translate_all(run, sources, batch_size, **decoding)
    exact = [is_exact(run.target_vocab, text, target) for text, target in zip(written, references)]
    unknown = sum(side.count(UNK) for pair in ids for side in pair)
    return Evaluation(name, nats, tokens, right, unknown, None, sources, references, written, exact)


def _check_batch_size(batch_size):
    if batch_size < 1:
        raise ConfigError(f"evaluate: batch_size must be at least 1, got {batch_size}")


def _check_lengths(config, ids, name):
    """Raise if a pair does not fit into a table of learned positions; other positions have no end."""
    if config.position != "learned":
        return
    for number, (source, target) in enumerate(ids, start=1):
        for side, length in (("source", len(source)), ("target", len(target) + 1)):
            if length > config.max_len:
                raise DataError(f"evaluate: the {side} of pair {number} of {name} has {length} tokens, but the model "
                                f"has positions for {config.max_len} only")  # fmt: skip


def _size(vocab, ids):
    """Bytes of UTF-8 that the tokens `ids` spell; None if one is unknown."""
    if UNK in ids:
        return None
    if vocab.level == "byte":
        return len(ids)
    spell = vocab.token if vocab.level == "subword" else lambda i: vocab.decode([i]).encode("utf-8")
    kinds, counts = np.unique(ids, return_counts=True)
    return sum(len(spell(int(i))) * int(n) for i, n in zip(kinds, counts))
