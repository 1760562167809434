"""A run: one folder with all that is needed to use a trained model again. What the command line does, as functions.

``config.json`` holds the task, the configuration of the model, the vocabularies and the settings of the training;
``model.safetensors`` the weights; `Trainer` adds ``history.jsonl`` and ``checkpoint.safetensors``.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from numtrans.backend import backend_name, to_device, to_numpy
from numtrans.checkpoint import load_weights, save_weights, write_json
from numtrans.data import (
    OBJECTIVES,
    UNK,
    DateTask,
    PairTask,
    Seq2SeqBatches,
    SequenceTask,
    TextTask,
    pad_batch,
    vocabulary_from_dict,
)
from numtrans.errors import CheckpointError, ConfigError, NonFiniteError
from numtrans.generation import translate
from numtrans.layers import checkpoint_layers
from numtrans.losses import CrossEntropyLoss
from numtrans.models import BERT, GPT, T5, BERTConfig, GPTConfig, T5Config, Transformer, TransformerConfig
from numtrans.module import no_grad
from numtrans.optim import AdamW, no_decay, warmup_cosine
from numtrans.training import Trainer

CONFIG, WEIGHTS = "config.json", "model.safetensors"
KINDS = {
    "Transformer": (Transformer, TransformerConfig), "GPT": (GPT, GPTConfig), "BERT": (BERT, BERTConfig),
    "T5": (T5, T5Config),
}  # fmt: skip

# A small model that reads dates after about a minute on two cores: what `numtrans demo` trains.
DEFAULTS = dict(
    layers=2, d_model=64, heads=4, d_ff=None, dropout=0.0, block=64, batch=64, steps=2000, lr=4e-3, warmup=200,
    final_lr=0.01, beta2=0.98, weight_decay=0.01, label_smoothing=0.0, clip=1.0, norm_placement="pre", norm="layer",
    feedforward="relu", position="sinusoidal", micro_batches=1, recompute=False, evaluate_every=500,
    save_every=500,
)  # fmt: skip

# A character model learns with nanoGPT's settings for a small CPU run.
TEXT_DEFAULTS = dict(
    layers=4, d_model=128, batch=12, lr=1e-3, warmup=100, final_lr=0.1, beta2=0.99, weight_decay=0.1,
    feedforward="gelu_tanh", position="learned", objective="clm", tokenizer="char",
)  # fmt: skip

# What a masked language model is, and an encoder-decoder that fills in spans: their architecture leaves no choice.
ARCHITECTURES = {
    "mlm": dict(norm_placement="post", norm="layer", position="learned"),
    "span": dict(norm_placement="pre", norm="rms", position="t5"),
}

TASKS = ("dates", "copy", "reverse", "sort", "text", "pairs")
LATER = ("tokenizer", "vocab_size", "objective")  # settings that the runs of earlier versions do not have
DATA = ("text", "source", "target", "level", *LATER)  # settings that say what the data of a task are


def default_settings(task="dates", **changes):
    """All settings of a run of `task`, as `make_run` takes them: the defaults of the command line, with `changes`.

    Parameters
    ----------
    task : {"dates", "copy", "reverse", "sort", "text", "pairs"}
    **changes
        Settings with another value, named as the options of ``numtrans train``: ``steps=500``, ``d_model=32``.

    Returns
    -------
    dict

    Raises
    ------
    ConfigError
        If there is no such task, or a change names no setting.

    Examples
    --------
    >>> default_settings("dates", steps=500)["steps"]
    500
    """
    if task not in TASKS:
        raise ConfigError(f"unknown task {task!r}; the tasks are {', '.join(TASKS)}")
    defaults = {**DEFAULTS, **(TEXT_DEFAULTS if task == "text" else {})}
    defaults.update(ARCHITECTURES.get(changes.get("objective"), {}))
    settings = {"task": task, **dict.fromkeys(DATA), "seed": 0, "backend": "numpy", **defaults}
    unknown = sorted(set(changes) - set(settings))
    if unknown:
        raise ConfigError(f"unknown settings {', '.join(unknown)}; the settings are {', '.join(settings)}")
    return {**settings, **changes}


@dataclass
class Run:
    """A model with its vocabularies (the same one twice for a language model) and its settings."""

    model: object
    source_vocab: object
    target_vocab: object
    settings: dict

    def translate(self, texts, max_len=None, *, num_beams=1, length_penalty=1.0):
        """The translation of each of `texts`, as strings: greedy, or with more beams the best of a beam search.

        At most `max_len` tokens are written, by default one more than the longest target of the training has.
        """
        self.check_model(Transformer, "translate")
        rows = [self.source_vocab.encode(text) for text in texts]
        if not all(rows):
            raise ConfigError(f"translate: text {rows.index([]) + 1} of {len(rows)} is empty")
        max_len = self.settings.get("longest_target", 100) + 1 if max_len is None else max_len
        src, _ = pad_batch(rows)
        written = translate(self.model, src, max_len, num_beams=num_beams, length_penalty=length_penalty)
        return [self.target_vocab.decode(row) for row in written]

    def check_model(self, kind, command):
        """Raise unless the model is a `kind`, as `command` needs it; the message says what the model is good for."""
        if isinstance(self.model, kind):
            return
        if isinstance(self.model, Transformer):
            what = f"a translator; use `numtrans translate`, not `numtrans {command}`"
        elif isinstance(self.model, GPT):
            what = f"a language model; use `numtrans sample`, not `numtrans {command}`"
        else:
            what = (f"a model that fills in hidden tokens (objective {self.settings.get('objective')}) and writes no "
                    f"texts, as `numtrans {command}` asks for")  # fmt: skip
        raise ConfigError(f"this run holds {what}")

    def save(self, folder):
        """Write ``config.json`` and ``model.safetensors`` into `folder`."""
        save_weights(self.model, Path(folder) / WEIGHTS)
        self.write_config(folder)

    def write_config(self, folder):
        """Write ``config.json`` into `folder`."""
        write_json(Path(folder) / CONFIG, {**self.description(), "settings": self.settings})

    def description(self):
        """What the weights mean: the model, its sizes and its vocabularies, as JSON can hold it."""
        return {
            "model": type(self.model).__name__,
            "config": self.model.config.to_dict(),
            "source_vocab": self.source_vocab.to_dict(),
            "target_vocab": self.target_vocab.to_dict(),
        }


def load_run(folder):
    """Read a run that `Run.save` wrote, in evaluation mode.

    Raises
    ------
    CheckpointError
        If the folder is no run, or a file in it is broken.
    """
    config = _read_config(folder)
    try:
        kind, config_kind = KINDS[config["model"]]
        run = Run(
            kind(config_kind(**config["config"]), rng=0),
            vocabulary_from_dict(config["source_vocab"]),
            vocabulary_from_dict(config["target_vocab"]),
            config["settings"],
        )
        c = run.model.config
        if isinstance(run.model, Transformer):
            sizes, fitting = (c.src_vocab_size, c.tgt_vocab_size), (len(run.source_vocab), len(run.target_vocab))
        else:
            sizes, fitting = c.vocab_size, make_objective(run.settings, run.target_vocab).vocab_size
    except (ValueError, KeyError, TypeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise CheckpointError(f"{Path(folder) / CONFIG}: not the configuration of a run ({what})") from error
    if sizes != fitting:
        raise CheckpointError(f"{Path(folder) / CONFIG}: the vocabularies do not have the sizes {sizes} of the model")
    load_weights(run.model, Path(folder) / WEIGHTS)
    run.model.eval()
    return run


def load_settings(folder, names):
    """The settings of the run in `folder`, for going on with its training; each of `names` must be there."""
    settings = {**dict.fromkeys(LATER), "recompute": False, **_read_config(folder)["settings"]}
    missing = [name for name in names if name not in settings]
    if missing:
        raise CheckpointError(f"{Path(folder) / CONFIG}: the settings lack {', '.join(missing)}")
    return settings


def check_same(run, folder):
    """Raise unless `run`, made anew from its data, has the sizes and vocabularies of the one in `folder`."""
    before, now = _read_config(folder), json.loads(json.dumps(run.description()))
    for name in ("source_vocab", "target_vocab"):  # an earlier version wrote subwords in another form
        if isinstance(before.get(name), dict) and "tokenizer" in before[name]:
            before[name] = vocabulary_from_dict(before[name]).to_dict()
    changed = [name for name in now if before.get(name) != now[name]]
    if before["settings"].get("data_digest", run.settings.get("data_digest")) != run.settings.get("data_digest"):
        changed.append("the data")  # other data can have the same vocabulary; bytes always have
    if changed:
        raise CheckpointError(
            f"{folder}: cannot go on, {', '.join(changed)} differ from those of the run. Has the data file changed?"
        )


def _read_config(folder):
    path = Path(folder) / CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{folder}: not the folder of a run, there is no {CONFIG} in it") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    if not isinstance(config, dict) or not isinstance(config.get("settings"), dict):
        raise CheckpointError(f"{path}: not the configuration of a run (no settings)")
    return config


# ---- tasks: where batches come from, and how a model is judged


def make_task(
    name, *, text=None, source=None, target=None, level="word", tokenizer="char", vocab_size=None, block=64, seed=0
):  # fmt: skip
    """The data set called `name`: dates, copy, reverse, sort, text or pairs."""
    size = {} if vocab_size is None else {"vocab_size": vocab_size}
    if size and (name == "text" and tokenizer != "bpe"):
        raise ConfigError(f"vocab_size has no meaning with the tokenizer {tokenizer!r}, only with 'bpe'")
    if name == "dates":
        return DateTask(seed=seed)
    if name in ("copy", "reverse", "sort"):
        return SequenceTask(name, seed=seed)
    if name == "text":
        return TextTask(text, block=block, tokenizer=tokenizer, **size)
    if name == "pairs":
        if source is None:
            raise ConfigError("--task pairs needs --source FILE (tab-separated), or --source FILE --target FILE")
        return PairTask(source, target, level=level, seed=seed, **size)
    raise ConfigError(f"unknown task {name!r}")


def data_digest(task):
    """A number in hexadecimal that tells the data of `task` from others: a hash of all its ids or pairs."""
    if isinstance(task, TextTask):
        parts = [part.astype("<i8").tobytes() for part in (task.train, task.valid)]
    else:
        parts = [json.dumps(part).encode() for part in (task.train, task.valid, task.test)]
    return hashlib.sha256(b"\n".join(parts)).hexdigest()[:16]


class StepBatches:
    """Batches of a sequence-to-sequence task by the number of the step, as `Trainer` wants them."""

    def __init__(self, pairs, batch_size, seed=0):
        self.batches = Seq2SeqBatches(pairs, batch_size, seed=seed)
        self.epoch, self.order = None, None

    def batch(self, step):
        """Inputs (source, shifted target) and the targets of `step`, counted from 1."""
        epoch, place = divmod(step - 1, len(self.batches))
        if epoch != self.epoch:
            self.epoch, self.order = epoch, list(self.batches.epoch(epoch))
        batch = self.order[place]
        return (batch.src, batch.tgt_in), batch.tgt_out


def make_objective(settings, vocab):
    """What a language model with these settings learns from a text: an object of `numtrans.data.OBJECTIVES`."""
    name = settings.get("objective") or "clm"
    if not isinstance(name, str) or name not in OBJECTIVES:
        raise ConfigError(f"unknown objective {name!r}; the objectives are {', '.join(OBJECTIVES)}")
    return OBJECTIVES[name](len(vocab), settings.get("block", 1))


class TextBatches:
    """Random rows of a text, made into examples by an objective, by the number of the step."""

    def __init__(self, task, batch_size, seed=0, objective=None):
        self.task, self.batch_size, self.seed = task, batch_size, seed
        self.objective = objective or OBJECTIVES["clm"](len(task.vocab), task.block)

    def batch(self, step):
        """Inputs and targets of `step`, counted from 1."""
        rng = np.random.default_rng((self.seed, step))
        return self.objective(self.task.rows(rng, self.batch_size, self.objective.length), rng)

    def held_out(self):
        """Batches over the whole validation part; what is hidden in them is the same each time."""
        size = max(64, self.batch_size)
        if self.objective.name == "clm":
            return (((x,), y) for x, y in self.task.eval_batches(size))
        rows = enumerate(self.task.whole_rows(size, self.objective.length))
        return (self.objective(part, np.random.default_rng((self.seed, 0, i))) for i, part in rows)


def token_sums(model, batches):
    """What `model` makes of all counted tokens of `batches` of (inputs, targets): sums, of which one takes the mean.

    Returns
    -------
    nats : float
        Sum of the cross-entropies, in float64.
    tokens : int
        Number of targets that count.
    right : int
        How many of them have the largest logit.
    """
    loss, nats, tokens, right = CrossEntropyLoss(reduction="none"), 0.0, 0, 0
    for inputs, targets in batches:
        logits = model(*inputs)                                                     # (B, T, V)
        losses = to_numpy(loss(logits, to_device(targets, backend_name(logits))))   # (B, T)
        loss.clear()
        nats += float(losses.sum(dtype=np.float64))
        tokens += int((targets != loss.ignore_index).sum())
        right += int((to_numpy(logits.argmax(axis=-1)) == targets).sum())
    return nats, tokens, right


def mean_loss(model, batches):
    """Mean cross-entropy (nats) over all counted tokens of `batches` of (inputs, targets)."""
    nats, tokens, _ = token_sums(model, batches)
    return nats / tokens


def translate_all(run, sources, batch_size=100, **options):
    """The translations of many texts, in their order; those of like length share a batch.

    Parameters
    ----------
    run : Run
    sources : list of str
    batch_size : int, default 100
    **options
        Passed on to `Run.translate`.

    Returns
    -------
    list of str
    """
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    written = [None] * len(sources)
    for start in range(0, len(order), batch_size):
        chosen = order[start : start + batch_size]
        for i, text in zip(chosen, run.translate([sources[i] for i in chosen], **options)):
            written[i] = text
    return written


def is_exact(vocab, written, target):
    """Whether the text `written` by a model equals `target`, which is compared as the vocabulary spells it."""
    ids = vocab.encode(target)
    return UNK not in ids and written == vocab.decode(ids)


def exact_match(run, pairs, batch_size=100):
    """Share of `pairs` whose translation equals the target in every character, and the translations.

    A target of words is compared as the vocabulary spells it: spaces around marks do not count, unknown words never
    match.
    """
    written = translate_all(run, [source for source, _ in pairs], batch_size)
    right = sum(is_exact(run.target_vocab, text, target) for text, (_, target) in zip(written, pairs))
    return right / len(pairs), written


def validation(run, task, batch_size):
    """The function that `Trainer` calls for the numbers of the validation set."""
    if isinstance(task, TextTask):
        batches = TextBatches(task, batch_size, run.settings["seed"], make_objective(run.settings, task.vocab))
        return lambda: {"valid_loss": mean_loss(run.model, batches.held_out())}
    held_out = Seq2SeqBatches(task.encode_pairs(task.valid), 100, shuffle=False)

    def validate():
        loss = mean_loss(run.model, [((b.src, b.tgt_in), b.tgt_out) for b in held_out])
        return {"valid_loss": loss, "exact_match": exact_match(run, task.valid)[0]}

    return validate


# ---- making and training a run


def make_run(task, settings):
    """A new model for `task`, drawn from the seed, with the sizes in `settings` (see the options of the command)."""
    s = settings
    shape = dict(
        d_model=s["d_model"], num_heads=s["heads"], d_ff=s["d_ff"] or 4 * s["d_model"], dropout=s["dropout"],
        norm_placement=s["norm_placement"], norm=s["norm"], feedforward=s["feedforward"], position=s["position"],
    )  # fmt: skip
    rng, digest = np.random.default_rng(s["seed"]), {"data_digest": data_digest(task)}
    if isinstance(task, TextTask):
        model = make_language_model(make_objective(s, task.vocab), s, shape, rng)
        return Run(model, task.vocab, task.vocab, s | digest)
    targets = [task.encode_pair(*pair)[1] for pair in task.train + task.valid + task.test]
    longest = max(len(row) for row in targets)
    sources = max(len(task.encode_pair(*pair)[0]) for pair in task.train + task.valid + task.test)
    config = TransformerConfig(
        len(task.source_vocab), len(task.target_vocab), num_encoder_layers=s["layers"], num_decoder_layers=s["layers"],
        max_len=max(longest + 1, sources, 64), **shape,
    )  # fmt: skip
    settings = {**s, **digest, "longest_target": longest}
    return Run(Transformer(config, rng=rng), task.source_vocab, task.target_vocab, settings)


def make_language_model(objective, settings, shape, rng):
    """The model for an objective: GPT for the next token, BERT for masked tokens, T5 for spans."""
    s, vocab_size = settings, objective.vocab_size
    for name, value in ARCHITECTURES.get(objective.name, {}).items():
        if s[name] != value:
            raise ConfigError(f"{name}={s[name]!r} has no meaning with the objective {objective.name!r}: its model has "
                              f"{name}={value!r}")
    if objective.name == "clm":
        return GPT(GPTConfig(vocab_size, max_len=s["block"], num_layers=s["layers"], **shape), rng=rng)
    sizes = {name: shape[name] for name in ("d_model", "num_heads", "d_ff", "dropout", "feedforward")}
    if objective.name == "mlm":
        config = BERTConfig(
            vocab_size, max_len=s["block"], num_layers=s["layers"], token_types=1, head="mlm", **sizes
        )  # fmt: skip
        return BERT(config, rng=rng)
    config = T5Config(
        vocab_size, d_kv=max(s["d_model"] // s["heads"], 1), num_encoder_layers=s["layers"],
        num_decoder_layers=s["layers"], **sizes,
    )  # fmt: skip
    return T5(config, rng=rng)


def make_trainer(run, out, *, overwrite=False, **parallel):
    """A `Trainer` with AdamW, warm-up and a cosine, as the settings of the run say.

    `parallel` are the arguments ``workers``, ``worker_kind`` and ``comm`` of `Trainer`.
    """
    s = run.settings
    if s.get("recompute"):  # the runs of earlier versions do not have it
        checkpoint_layers(run.model)
    loss = CrossEntropyLoss(label_smoothing=s["label_smoothing"])
    optimizer = AdamW(no_decay(run.model, s["weight_decay"]), lr=s["lr"], betas=(0.9, s["beta2"]))
    warmup = min(s["warmup"], s["steps"])
    return Trainer(
        run.model, loss, optimizer, out=out, overwrite=overwrite, micro_batches=s["micro_batches"],
        **parallel,
        schedule=lambda step: warmup_cosine(step, s["lr"], warmup, s["steps"], s["lr"] * s["final_lr"]),
        evaluate_every=s["evaluate_every"], save_every=s["save_every"], max_grad_norm=s["clip"],
    )  # fmt: skip


def train_run(run, task, out, *, resume=False, overwrite=False, **parallel):
    """Train `run` on `task` and leave model, configuration and history in the folder `out`; returns the trainer.

    `parallel` as in `make_trainer`; of several ranks of MPI, rank 0 writes.
    """
    s = run.settings
    trainer = make_trainer(run, out, overwrite=overwrite, **parallel)
    writes = trainer.shards.rank == 0
    if resume:
        check_same(run, out)
        trainer.resume()
        if s["steps"] < trainer.step:
            raise ConfigError(f"the run in {out} is at step {trainer.step} already; --steps {s['steps']} is fewer")
    trainer.agree(s["steps"], settings={name: s[name] for name in DEFAULTS if name in s})  # before a file is changed
    if not resume:
        trainer.start()
    if writes and not resume:
        (Path(out) / WEIGHTS).unlink(missing_ok=True)  # those of a run that is overwritten
    if writes:
        run.write_config(out)
    if isinstance(task, TextTask):
        batches = TextBatches(task, s["batch"], s["seed"], make_objective(s, task.vocab))
    else:
        batches = StepBatches(task.encode_pairs(task.train), s["batch"], s["seed"])
    run.model.to(s["backend"])
    trainer.fit(batches, s["steps"], validation(run, task, s["batch"]))
    if not all(np.isfinite(array).all() for array in run.model.state_dict().values()):
        raise NonFiniteError(f"{out}: training ended with weights that are not finite; {WEIGHTS} was not written")
    if writes:
        run.save(out)
    run.model.eval()
    return trainer


def cross_attention(run, text):
    """Translate `text` and look: its translation, the weights of each decoder layer (H, Tt, Ts), and the labels.

    Returns
    -------
    translation : str
    weights : list of arrays (H, Tt, Ts)
    written, read : list of str
        Labels of the rows and the columns.
    """
    (translation,) = run.translate([text])
    source, target = run.source_vocab.encode(text), run.target_vocab.encode(translation)
    with no_grad():
        run.model(np.array([source]), np.array([[1, *target]]))
    weights = [layer.cross_attention.sublayer.attention_weights[0] for layer in run.model.decoder.layers]
    run.model.drop_transient()
    written = [run.target_vocab.decode([i]) for i in target] + ["end"]
    read = [run.source_vocab.decode([i]) for i in source]
    return translation, weights, written, [label if label.strip() else "\u2423" for label in read]  # a blank
