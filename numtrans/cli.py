"""The command line: ``numtrans demo | train | translate | sample | gradcheck | course``. It holds no mathematics."""

import argparse
import os
import sys
import time
from pathlib import Path

from numtrans import __version__
from numtrans.errors import ConfigError, NumtransError
from numtrans.runs import DATA, DEFAULTS, TASKS, default_settings

FRENCH_DATE = "le 14 juillet 1989"

DATA_OF = {"text": ("text",), "pairs": ("source", "target", "level")}


def main(argv=None):
    """Run the command in `argv` (``sys.argv`` by default) and return the exit status."""
    for stream in (sys.stdout, sys.stderr):  # a console that lacks a letter shows its code, and nothing is lost
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    arguments = parser().parse_args(argv)
    try:
        return arguments.run(arguments) or 0
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (NumtransError, ImportError, OSError) as error:
        print(f"numtrans: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nnumtrans: stopped", file=sys.stderr)
        return 130


def parser():
    """The parser of all commands."""
    top = argparse.ArgumentParser(
        prog="numtrans", description="A Transformer in NumPy with every backward pass written by hand."
    )
    top.add_argument("--version", action="version", version=f"numtrans {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    demo = commands.add_parser(
        "demo", help="check the gradients, then watch a Transformer learn to read dates (about two minutes)",
        description="Check the gradient of each component, train a Transformer that turns dates as people write them "
        "into ISO 8601, test it on dates it has not seen, and draw its loss and its attention.",
    )  # fmt: skip
    common(demo)
    demo.add_argument("--steps", type=positive, default=DEFAULTS["steps"], help="training steps (default %(default)s)")
    demo.set_defaults(run=run_demo)

    train = commands.add_parser(
        "train", help="train a model on dates, toy sequences, a text, or sentence pairs",
        description="Train a model. Ctrl-C saves and ends; --resume goes on from there.",
    )  # fmt: skip
    common(train)
    train_options(train)
    train.set_defaults(run=run_train)

    translate = commands.add_parser("translate", help="translate texts with a trained encoder-decoder")
    translate.add_argument("folder", metavar="RUN", help="the folder that `numtrans demo` or `train` wrote")
    translate.add_argument("texts", nargs="+", metavar="TEXT", help='such as "3rd of march 2021"')
    translate.add_argument("--attention", metavar="FILE.png", help="draw the cross-attention of the first text")
    translate.set_defaults(run=run_translate)

    sample = commands.add_parser("sample", help="write text with a trained language model")
    sample.add_argument("folder", metavar="RUN", help="the folder that `numtrans train --task text` wrote")
    sample.add_argument("--prompt", default="\n", help="the text to continue (default: a line break)")
    sample.add_argument("--length", type=positive, default=500, help="characters to write (default %(default)s)")
    sample.add_argument("--temperature", type=float, default=0.8, help="0 takes the likeliest (default %(default)s)")
    sample.add_argument("--top-k", type=positive, help="draw from the K likeliest characters only")
    sample.add_argument("--top-p", type=float, help="draw from the likeliest that make up this probability")
    sample.add_argument("--seed", type=nonnegative, default=0, help="same seed, same text (default %(default)s)")
    for command in (translate, sample):
        backend(command)
    sample.set_defaults(run=run_sample)

    check = commands.add_parser(
        "gradcheck", help="prove the backward passes against numeric differences",
        description="Check the gradient of each component in float64 with a random cotangent. Exit status 1 if one "
        "fails.",
    )  # fmt: skip
    check.add_argument("components", nargs="*", metavar="COMPONENT", help="names or parts of names, such as LayerNorm")
    check.add_argument("--all", action="store_true", help="every component and both models")
    check.add_argument("--list", action="store_true", help="print the names and end")
    check.add_argument("--details", action="store_true", help="one line for each tensor")
    check.add_argument("--seed", type=nonnegative, default=0, help="seed of all random numbers (default %(default)s)")
    check.set_defaults(run=run_gradcheck)

    course = commands.add_parser("course", help="make the student's copy of an assignment").add_subparsers(
        dest="course", required=True, metavar="COMMAND"
    )
    build = course.add_parser(
        "build", help="take the solutions and the hidden tests out of a teacher's notebook",
        description="Write the student's copy of an assignment: each solution is replaced by what is to be written, "
        "hidden tests and outputs are removed. A file that may hold a student's work is not touched.",
    )  # fmt: skip
    build.add_argument("notebook", metavar="FILE.ipynb", help="the teacher's notebook, such as ps5-layernorm.ipynb")
    build.add_argument("--out", required=True, metavar="DIR", help="folder of the copy, which has the same name")
    build.set_defaults(run=run_course_build)
    return top


def backend(command):
    """The option of the array library."""
    command.add_argument("--backend", choices=("numpy", "cupy"), default="numpy", help="CPU or GPU (default numpy)")


def common(command):
    """Options that `demo` and `train` share."""
    backend(command)
    command.add_argument("--seed", type=nonnegative, default=0, help="seed of all random numbers (default %(default)s)")
    command.add_argument(
        "--threads", type=positive, default=1,
        help="threads of the matrix products; one is fastest for models as small as the defaults (default 1)",
    )  # fmt: skip
    command.add_argument("--out", type=Path, metavar="DIR", help="folder of the results (default runs/...)")


def train_options(train):
    """Options of `train`; those without a value here have one for each task."""
    add = train.add_argument
    add("--task", choices=TASKS, help="what to learn (default dates)")
    add("--text", metavar="FILE", help="with --task text: a UTF-8 file (default: the help texts of Python itself)")
    add("--source", metavar="FILE", help="with --task pairs: one sentence a line, or both with a tab between")
    add("--target", metavar="FILE", help="with --task pairs: the translations, line by line")
    add("--level", choices=("word", "char", "subword"), help="with --task pairs: what a token is (default word)")
    add("--resume", action="store_true", help="go on with the run in --out, with its own settings")
    add("--overwrite", action="store_true", help="begin anew in a folder that holds a run")
    add("--steps", type=positive, help="training steps, those before a resume included")
    add("--layers", type=positive, help="layers (of the encoder and of the decoder)")
    add("--d-model", type=positive, help="width")
    add("--heads", type=positive, help="attention heads")
    add("--d-ff", type=positive, help="width of the feed-forward networks (default 4 times --d-model)")
    add("--block", type=positive, help="with --task text: characters the model sees")
    add("--batch", type=positive, help="examples in a step")
    add("--micro-batches", type=positive, help="pieces a batch is worked through in, to need less memory")
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


def positive(text):
    """A whole number of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected 1 or more")
    return value


def nonnegative(text):
    """A whole number of at least 0."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text}: expected 0 or more")
    return value


def settings_of(arguments, task):
    """All settings of a run: what was asked for, and for the rest the defaults of the task."""
    names = set(default_settings(task)) - {"task"}
    asked = {name: value for name, value in vars(arguments).items() if name in names and value is not None}
    for name in DATA:
        if name in asked and name not in DATA_OF.get(task, ()):
            raise ConfigError(f"--{name} has no meaning with --task {task}")
        if asked.get(name) and name != "level":
            asked[name] = str(Path(asked[name]).resolve())
    return default_settings(task, **asked)


def task_of(settings):
    """The data set that `settings` name."""
    from numtrans.runs import make_task

    names = (*DATA, "block", "seed")
    return make_task(settings["task"], **{name: settings[name] for name in names if settings[name] is not None})


def prepare(backend, threads):
    """What the process does once before training: find the backend, keep freed memory, set the threads of the BLAS."""
    from threadpoolctl import threadpool_limits

    from numtrans.backend import load_backend
    from numtrans.memory import keep_freed_memory

    load_backend(backend)
    keep_freed_memory()
    threadpool_limits(threads, "blas")


def share(text):
    """A number from 0 to 1."""
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text}: expected a number from 0 to 1")
    return value


# ---- the commands


def run_demo(arguments):
    """``numtrans demo``"""
    from numtrans.inspect.plots import plot_attention, plot_loss
    from numtrans.runs import cross_attention, exact_match, make_run, train_run

    prepare(arguments.backend, arguments.threads)
    print("1. Is each backward pass right? Analytic against numeric gradients, float64:\n")
    if not check_components(demo_components(), seed=arguments.seed):
        return 1
    settings = settings_of(arguments, "dates")
    task = task_of(settings)
    run = make_run(task, settings)
    out = arguments.out or Path("runs/demo")
    print(
        f"\n2. Train a Transformer of {run.model.num_parameters():,} parameters on {len(task.train):,} dates, written "
        f"as people write them, for {settings['steps']} steps:\n"
    )
    start = time.perf_counter()
    trainer = train_run(run, task, out, overwrite=True)
    if trainer.interrupted:
        print(f"   stopped at step {trainer.step} and saved. Go on with: numtrans train --out {out} --resume")
        return 130
    print(f"   {time.perf_counter() - start:.0f} s, loss {trainer.history['loss'][-1]:.4f}")
    share, written = exact_match(run, task.test)
    print(f"\n3. {len(task.test)} dates it has not seen: {100 * share:.1f} % exact match. Ten of them:\n")
    for (text, truth), answer in list(zip(task.test, written))[:10]:
        print(f"   {text:40s} {answer:12s}" + ("" if answer == truth else f" wrong, it is {truth}"))
    last = trainer.history["loss"][-1]
    plot_loss(trainer.history, out / "loss.png", title=f"The loss falls to {last:.1g} nats per character")
    translation, weights, rows, columns = cross_attention(run, FRENCH_DATE)
    title = f'Where the decoder looks in "{FRENCH_DATE}" as it writes {translation}'
    plot_attention(weights, rows, columns, out / "attention.png", title=title)
    print(f"\n4. Written to {out}:\n")
    for name, what in {
        "loss.png": "the loss at each step",
        "attention.png": f'what each head attends to in "{FRENCH_DATE}"',
        "history.jsonl": "the numbers behind loss.png",
        "model.safetensors": "the weights",
        "config.json": "sizes, vocabularies, settings",
    }.items():
        print(f"   {out / name}  {what}")
    print(f'\nTry:  numtrans translate {out} "3rd of march 2021"')
    return 0


def run_train(arguments):
    """``numtrans train``"""
    from numtrans.checkpoint import CheckpointError, read_arrays
    from numtrans.inspect.plots import plot_loss
    from numtrans.runs import exact_match, load_settings, make_run, train_run

    if arguments.resume and arguments.out is None:
        raise ConfigError("--resume needs --out DIR, the folder of the run")
    task_name = arguments.task or "dates"
    out = arguments.out or Path("runs") / task_name
    if arguments.resume:
        fixed = [*DATA, "task", *(name for name in DEFAULTS if name != "steps")]
        given = [f"--{name.replace('_', '-')}" for name in fixed if getattr(arguments, name) is not None]
        if given:
            raise ConfigError(f"--resume goes on with the settings of the run, so {', '.join(given)} cannot be given")
        if not (out / "checkpoint.safetensors").exists():
            raise CheckpointError(f"{out}: nothing to resume, there is no checkpoint.safetensors in it")
        read_arrays(out / "checkpoint.safetensors")
        settings = load_settings(out, ["task", "seed", *DATA, *DEFAULTS])
        settings["backend"] = arguments.backend
        settings["steps"] = arguments.steps or settings["steps"]
    else:
        settings = settings_of(arguments, task_name)
    prepare(settings["backend"], arguments.threads)
    task = task_of(settings)
    run = make_run(task, settings)
    print(f"{type(run.model).__name__} with {run.model.num_parameters():,} parameters, {settings['steps']} steps")
    trainer = train_run(run, task, out, resume=arguments.resume, overwrite=arguments.overwrite)
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


def run_translate(arguments):
    """``numtrans translate``"""
    from numtrans.inspect.plots import plot_attention
    from numtrans.runs import cross_attention, load_run

    run = load_run(arguments.folder)
    run.model.to(arguments.backend)
    warn_unknown(run.source_vocab, arguments.texts)
    for text, answer in zip(arguments.texts, run.translate(arguments.texts)):
        print(answer if len(arguments.texts) == 1 else f"{text}\t{answer}")
    if arguments.attention:
        translation, weights, rows, columns = cross_attention(run, arguments.texts[0])
        title = f'Where the decoder looks in "{arguments.texts[0]}" as it writes {translation}'
        plot_attention(weights, rows, columns, arguments.attention, title=title)


def run_sample(arguments):
    """``numtrans sample``"""
    import numpy as np

    from numtrans.data import BOS, EOS, PAD, UNK
    from numtrans.generation import generate
    from numtrans.models import GPT
    from numtrans.runs import load_run

    run = load_run(arguments.folder)
    if not isinstance(run.model, GPT):
        raise ConfigError("this run holds a translator; use `numtrans translate`, not `numtrans sample`")
    run.model.to(arguments.backend)
    warn_unknown(run.source_vocab, [arguments.prompt])
    prompt = run.source_vocab.encode(arguments.prompt)
    if not prompt:
        raise ConfigError("sample: --prompt is empty, expected at least one character")
    ids = generate(
        run.model, np.array([prompt]), arguments.length, temperature=arguments.temperature, top_k=arguments.top_k,
        top_p=arguments.top_p, suppress=(PAD, BOS, EOS, UNK), rng=arguments.seed,
    )  # fmt: skip
    print(run.target_vocab.decode(ids[0]))


def warn_unknown(vocab, texts):
    """Say which of `texts` hold symbols that the model has never seen."""
    from numtrans.data import UNK

    for text in texts:
        if UNK in vocab.encode(text):
            print(f"numtrans: {text!r} holds symbols that the model has never seen; it reads them as unknown",
                  file=sys.stderr)  # fmt: skip


def run_gradcheck(arguments):
    """``numtrans gradcheck``"""
    from numtrans.components import components

    everything = components(arguments.seed)
    if arguments.list:
        print("\n".join(component.name for component in everything))
        return 0
    if not arguments.components and not arguments.all:
        raise ConfigError("gradcheck: name components, or ask for --all; --list prints the names")
    chosen = everything
    if not arguments.all:
        names = [name.lower() for name in arguments.components]
        chosen = [c for c in everything if any(name in c.name.lower() for name in names)]
        unknown = [name for name in arguments.components if not any(name.lower() in c.name.lower() for c in everything)]
        if unknown:
            raise ConfigError(f"gradcheck: no component is called {', '.join(unknown)}; --list prints the names")
    return 0 if check_components(chosen, seed=arguments.seed, details=arguments.details) else 1


def run_course_build(arguments):
    """``numtrans course build``"""
    from numtrans.course import build

    print(f"written to {build(arguments.notebook, arguments.out)}")


def demo_components():
    """The components that the date translator is made of."""
    from numtrans.components import components

    used = (
        "Linear", "TiedLinear", "Embedding, scaled", "ReLU", "Softmax", "LayerNorm", "SinusoidalPositionalEncoding",
        "ScaledDotProductAttention", "MultiHeadAttention, self", "MultiHeadAttention, cross", "FeedForward",
        "Residual, pre-norm", "EncoderLayer, pre-norm", "DecoderLayer, pre-norm", "CrossEntropyLoss",
    )  # fmt: skip
    return [component for component in components() if component.name in used]


def check_components(chosen, *, seed=0, details=False):
    """Print a table of gradient checks; True if all pass."""
    from numtrans.gradcheck import gradcheck

    start, failed = time.perf_counter(), []
    print(f"   {'component':34s} tensors numbers    error  complex  float32  verdict")
    for component in chosen:
        report = gradcheck(component.module, *component.inputs, seed=seed, **component.kwargs)
        reports = [report]
        if component.analytic:
            reports.append(
                gradcheck(component.module, *component.inputs, method="complex", seed=seed, **component.kwargs)
            )
        errors = [f"{max((row.error for row in r.rows), default=0):8.0e}" for r in reports]
        single = max((row.float32_error for row in report.rows), default=0)
        passed = all(reports)
        print(
            f"   {component.name:34s} {len(report.rows):7d} {sum(row.checked for row in report.rows):7d} {errors[0]} "
            f"{errors[1] if len(errors) > 1 else '       -'} {single:8.0e}  {'pass' if passed else 'FAIL'}",
            flush=True,
        )
        if not passed:
            failed.append(component.name)
        for r in reports:
            if details or not r:
                print("\n" + "\n".join("      " + line for line in str(r).splitlines()) + "\n")
    took = time.perf_counter() - start
    if failed:
        print(f"\n   {len(failed)} of {len(chosen)} failed: {', '.join(failed)} ({took:.0f} s)")
    else:
        print(f"\n   all {len(chosen)} pass: every gradient agrees with the numeric one to 1e-7 ({took:.0f} s)")
    return not failed


if __name__ == "__main__":
    sys.exit(main())
