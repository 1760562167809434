"""``numtrans train``."""

from pathlib import Path

from numtrans.cli.arguments import common, nonnegative, positive, prepare, share
from numtrans.data import OBJECTIVES
from numtrans.data.text import TOKENIZERS
from numtrans.errors import ConfigError
from numtrans.runs import DATA, DEFAULTS, TASKS, default_settings

DATA_OF = {
    "text": ("text", "tokenizer", "vocab_size", "objective"), "pairs": ("source", "target", "level", "vocab_size"),
}  # fmt: skip
FILES = ("text", "source", "target")


def add(commands):
    """Add the command to the parser."""
    train = commands.add_parser(
        "train", help="train a model on dates, toy sequences, a text, or sentence pairs",
        description="Train a model. Ctrl-C saves and ends; --resume goes on from there.",
    )  # fmt: skip
    common(train)
    train_options(train)
    train.set_defaults(run=run_train)


def train_options(train):
    """Options of `train`; those without a value here have one for each task."""
    add = train.add_argument
    add("--task", choices=TASKS, help="what to learn (default dates)")
    add("--text", metavar="FILE", help="with --task text: a UTF-8 file (default: the help texts of Python itself)")
    add("--source", metavar="FILE", help="with --task pairs: one sentence a line, or both with a tab between")
    add("--target", metavar="FILE", help="with --task pairs: the translations, line by line")
    add("--level", choices=("word", "char", "subword"), help="with --task pairs: what a token is (default word)")
    add("--tokenizer", choices=TOKENIZERS, help="with --task text: what a token is (default char)")
    add("--vocab-size", type=positive, help="most ids of --tokenizer bpe (default 1000), or of --task pairs (8000)")
    add("--objective", choices=tuple(OBJECTIVES), help="with --task text: predict the next token with a GPT, masked "
        "tokens with a BERT, or cut-out spans with a T5 (default clm)")
    add("--worker-kind", choices=("threads", "processes"), default="threads",
        help="what the workers are (default threads; processes on Linux)")
    add("--resume", action="store_true", help="go on with the run in --out, with its own settings")
    add("--overwrite", action="store_true", help="begin anew in a folder that holds a run")
    add("--steps", type=positive, help="training steps, those before a resume included")
    add("--layers", type=positive, help="layers (of the encoder and of the decoder)")
    add("--d-model", type=positive, help="width")
    add("--heads", type=positive, help="attention heads")
    add("--d-ff", type=positive, help="width of the feed-forward networks (default 4 times --d-model)")
    add("--block", type=positive, help="with --task text: tokens the model sees")
    add("--batch", type=positive, help="examples in a step")
    add("--micro-batches", type=positive, help="pieces a batch is worked through in, to need less memory")
    add("--recompute", action="store_true", default=None, help="keep the inputs of the layers only, and compute the "
        "rest again in backward: less memory, more time, the same weights")
    add("--dropout", type=float, help="share of units dropped in training")
    add("--lr", type=float, help="highest learning rate")
    add("--final-lr", type=share, help="last learning rate, as a share of --lr")
    add("--warmup", type=nonnegative, help="steps in which the learning rate rises")
    add("--weight-decay", type=share, help="decoupled weight decay of matrices (AdamW)")
    add("--beta2", type=float, help="decay of the second moment of AdamW")
    add("--clip", type=float, help="largest norm of the gradient")
    add("--label-smoothing", type=float, help="share of the target spread over all classes")
    add("--norm-placement", choices=("pre", "post"), help="norm before or after each sublayer")
    add("--norm", choices=("layer", "rms"), help="LayerNorm or RMSNorm")
    add("--feedforward", metavar="NAME", help="relu, gelu, silu, swiglu, geglu, reglu, bilinear ...")
    add("--position", choices=("sinusoidal", "learned", "rope", "shaw", "t5", "alibi"), help="position encoding")
    add("--evaluate-every", type=positive, help="steps between evaluations")
    add("--save-every", type=positive, help="steps between checkpoints")


def run_train(arguments):
    """``numtrans train``"""
    from numtrans.checkpoint import CheckpointError, read_arrays
    from numtrans.inspect.plots import plot_loss
    from numtrans.parallel.mpi import world
    from numtrans.runs import exact_match, load_settings, make_run, train_run

    if arguments.resume and arguments.out is None:
        raise ConfigError("--resume needs --out DIR, the folder of the run")
    task_name = arguments.task or "dates"
    out = arguments.out or Path("runs") / task_name
    if arguments.resume:
        fixed = [*DATA, "task", *(name for name in DEFAULTS if name not in ("steps", "recompute"))]
        given = [f"--{name.replace('_', '-')}" for name in fixed if getattr(arguments, name) is not None]
        if given:
            raise ConfigError(f"--resume goes on with the settings of the run, so {', '.join(given)} cannot be given")
        if not (out / "checkpoint.safetensors").exists():
            raise CheckpointError(f"{out}: nothing to resume, there is no checkpoint.safetensors in it")
        read_arrays(out / "checkpoint.safetensors")
        settings = load_settings(out, ["task", "seed", *DATA, *DEFAULTS])
        settings["backend"] = arguments.backend
        settings["steps"] = arguments.steps or settings["steps"]
        settings["recompute"] = arguments.recompute or settings["recompute"]
    else:
        settings = settings_of(arguments, task_name)
    comm = world()
    prepare(settings["backend"], arguments.threads)
    task = task_of(settings)
    run = make_run(task, settings)
    if comm is None or comm.rank == 0:
        print(f"{type(run.model).__name__} with {run.model.num_parameters():,} parameters, {settings['steps']} steps")
    trainer = train_run(
        run, task, out, resume=arguments.resume, overwrite=arguments.overwrite, workers=arguments.workers,
        worker_kind=arguments.worker_kind, comm=comm,
    )  # fmt: skip
    if trainer.shards.rank:  # rank 0 of MPI writes and tells the rest
        return 0
    history = trainer.history
    if history["loss"]:
        plot_loss(history, out / "loss.png")
    if trainer.interrupted:
        print(f"stopped at step {trainer.step} and saved. Go on with: numtrans train --out {out} --resume")
    elif history.get("valid_loss"):
        print(f"validation loss {history['valid_loss'][-1]:.4f} (best {min(history['valid_loss']):.4f})")
    if not trainer.interrupted and hasattr(task, "test"):
        print(f"test set: {100 * exact_match(run, task.test)[0]:.1f} % exact match")
    print(f"written to {out}")
    return 130 if trainer.interrupted else 0


def settings_of(arguments, task):
    """All settings of a run: what was asked for, and for the rest the defaults of the task."""
    names = set(default_settings(task)) - {"task"}
    asked = {name: value for name, value in vars(arguments).items() if name in names and value is not None}
    for name in DATA:
        if name in asked and name not in DATA_OF.get(task, ()):
            raise ConfigError(f"--{name.replace('_', '-')} has no meaning with --task {task}")
        if asked.get(name) and name in FILES:
            asked[name] = str(Path(asked[name]).resolve())
    return default_settings(task, **asked)


def task_of(settings):
    """The data set that `settings` name."""
    from numtrans.runs import make_task

    given = {name: settings[name] for name in (*DATA, "block", "seed") if name != "objective"}
    return make_task(settings["task"], **{name: value for name, value in given.items() if value is not None})
