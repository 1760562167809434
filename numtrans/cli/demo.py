"""``numtrans demo``: gradients, a Transformer that learns dates, pictures."""

import sys
import time
from pathlib import Path

from numtrans.cli.arguments import common, positive, prepare
from numtrans.cli.check import check_components
from numtrans.cli.train import settings_of, task_of
from numtrans.runs import DEFAULTS

FRENCH_DATE = "le 14 juillet 1989"


def add(commands):
    """Add the command to the parser."""
    demo = commands.add_parser(
        "demo", help="check the gradients, then watch a Transformer learn to read dates (about two minutes)",
        description="Check the gradient of each component, train a Transformer that turns dates as people write them "
        "into ISO 8601, test it on dates it has not seen, and draw its loss and its attention.",
    )  # fmt: skip
    common(demo)
    demo.add_argument("--steps", type=positive, default=DEFAULTS["steps"], help="training steps (default %(default)s)")
    demo.set_defaults(run=run_demo)


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
    # the steps are so short that threads would wait for the interpreter as long as they save; forks are for Linux
    kind = "processes" if sys.platform.startswith("linux") and arguments.backend == "numpy" else "threads"
    trainer = train_run(run, task, out, overwrite=True, workers=arguments.workers, worker_kind=kind)
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


def demo_components():
    """The components that the date translator is made of."""
    from numtrans.components import components

    used = (
        "Linear", "TiedLinear", "Embedding, scaled", "ReLU", "Softmax", "LayerNorm", "SinusoidalPositionalEncoding",
        "ScaledDotProductAttention", "MultiHeadAttention, self", "MultiHeadAttention, cross", "FeedForward",
        "Residual, pre-norm", "EncoderLayer, pre-norm", "DecoderLayer, pre-norm", "CrossEntropyLoss",
    )  # fmt: skip
    return [component for component in components() if component.name in used]
