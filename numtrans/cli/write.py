"""``numtrans translate`` and ``numtrans sample``: what a trained run writes."""

import sys

from numtrans.cli.arguments import backend, nonnegative, positive
from numtrans.errors import ConfigError


def add(commands):
    """Add the commands to the parser."""
    translate = commands.add_parser("translate", help="translate texts with a trained encoder-decoder")
    translate.add_argument("folder", metavar="RUN", help="the folder that `numtrans demo` or `train` wrote")
    translate.add_argument("texts", nargs="+", metavar="TEXT", help='such as "3rd of march 2021"')
    translate.add_argument("--attention", metavar="FILE.png", help="draw the cross-attention of the first text")
    backend(translate)
    translate.set_defaults(run=run_translate)

    sample = commands.add_parser("sample", help="write text with a trained language model")
    sample.add_argument("folder", metavar="RUN", help="the folder that `numtrans train --task text` wrote")
    sample.add_argument("--prompt", default="\n", help="the text to continue (default: a line break)")
    sample.add_argument("--length", type=positive, default=500, help="characters to write (default %(default)s)")
    sample.add_argument("--temperature", type=float, default=0.8, help="0 takes the likeliest (default %(default)s)")
    sample.add_argument("--top-k", type=positive, help="draw from the K likeliest characters only")
    sample.add_argument("--top-p", type=float, help="draw from the likeliest that make up this probability")
    sample.add_argument("--seed", type=nonnegative, default=0, help="same seed, same text (default %(default)s)")
    backend(sample)
    sample.set_defaults(run=run_sample)


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
    run.check_model(GPT, "sample")
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
