"""``python -m benchmarks generate``: tokens a second, greedy, batch 1, with a cache, against transformers on PyTorch.

The bound is the speed of the memory: each token needs every weight once, and 124 million of them do not fit a cache.
"""

import dataclasses
import tempfile

import numpy as np

from benchmarks.common import note, options, print_machine, print_times, save, shown
from numtrans.bench import Contestant, compete, median_seconds, ratio
from numtrans.checkpoint import check_folder
from numtrans.cli.arguments import positive

NUMTRANS, GENERATE, LOOP, MEMORY = "numtrans", "transformers generate", "PyTorch loop", "reading the weights"
MODELS = {"gpt2": "GPT-2 124M", "smollm2": "SmolLM2-135M"}


def add(commands):
    """Add the command to the parser."""
    command = commands.add_parser("generate", help="tokens a second against transformers and the speed of the memory")
    command.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), help="what writes")
    command.add_argument("--tokens", type=positive, default=64, help="tokens to write")
    options(command)
    command.set_defaults(run=run)


def run(arguments):
    """Time each model, print a table, write the results; the status is 1 if the libraries wrote different tokens."""
    print_machine()
    check_folder(arguments.out)
    different = False
    for name in arguments.models:
        with tempfile.TemporaryDirectory() as folder:
            about = write_model(name, folder)
            results = measure(folder, about, arguments)
        results |= about | {"tokens": arguments.tokens, "threads": arguments.threads}
        print(f"\n{MODELS[name]} ({about['weights']}), float32, prompt of {len(about['prompt'])} tokens, "
              f"{arguments.tokens} written greedily, {arguments.threads} thread(s)")  # fmt: skip
        save(arguments.out, f"generate-{name}", {}, results)
        report(results)
        different = different or not same_tokens(results)
        if results["interrupted"]:
            break
    return 130 if results["interrupted"] else 1 if different else 0


def write_model(name, folder):
    """Write a model for both libraries to `folder`.

    Returns
    -------
    dict
        ``prompt`` (token ids), ``bytes`` (of weights that a token needs) and ``weights``, what they are.
    """
    from numtrans.models import GPT, Llama
    from numtrans.models.presets import preset
    from numtrans.pretrained import from_pretrained, load_tokenizer, save_pretrained
    from numtrans.pretrained.packages import where

    prompt, weights = list(range(100, 105)), "random weights"
    if name == "gpt2":
        model = GPT(dataclasses.replace(preset("gpt2"), dropout=0.0), rng=0)
        unread = model.embedding.position.W.data.nbytes  # one row of it is read
    elif (path := where("smollm2")) is not None:
        model, unread, weights = from_pretrained(path), 0, "its own weights"
        prompt = [int(i) for i in load_tokenizer(path).encode("The capital of France is")]
    else:
        model, unread = Llama(preset("smollm2-135m"), rng=0), 0
    save_pretrained(model, folder)
    total = sum(parameter.data.nbytes for parameter in model.parameters())
    return {"prompt": prompt, "bytes": total - unread, "weights": weights}


def measure(folder, about, arguments):
    """What `compete` returned."""
    threads, read = arguments.threads, {"megabytes": about["bytes"] / 1e6}
    given = {"folder": folder, "prompt": about["prompt"], "tokens": arguments.tokens}
    contestants = [
        Contestant(NUMTRANS, "numtrans.bench._numtrans:generate_from", given, threads),
        Contestant(GENERATE, "numtrans.bench._pytorch:generate_from", given, threads),
        Contestant(LOOP, "numtrans.bench._pytorch:loop_from", given, threads),
        Contestant(MEMORY, "numtrans.bench._products:read_memory", read, threads),
    ]
    return compete(contestants, arguments.rounds, want=2, budget=5.0, say=note)


def same_tokens(results):
    """Whether all that wrote have written the same."""
    written = [results["contestants"][name]["first"] for name in (NUMTRANS, GENERATE, LOOP)]
    return len({tuple(tokens) for tokens in written if tokens}) <= 1


def quicker_peer(results):
    """The quicker of the two forms in PyTorch; None if neither ran."""
    seconds = {name: median_seconds(results, name)[0] for name in (GENERATE, LOOP)}
    seconds = {name: value for name, value in seconds.items() if np.isfinite(value)}
    return min(seconds, key=seconds.get) if seconds else None


def bound_share(results, name):
    """Tokens a second as a share of what the memory allows: one pass over the weights for each token."""
    return results["tokens"] / ratio(results, name, MEMORY)["median"]


def report(results):
    """Print tokens a second, their ratio and the share of the bound."""
    peer = quicker_peer(results)
    print_times(results, peer or NUMTRANS, 1.0, "s")
    for name in (NUMTRANS, GENERATE, LOOP):
        rate = results["tokens"] / median_seconds(results, name)[0]
        attention = results["contestants"][name]["facts"].get("attention")
        also = f" (attention: {attention})" if attention else ""
        bound = shown(bound_share(results, name), ".0%")
        print(f"  {name:22s} {shown(rate, '.1f'):>6s} tokens/s, {bound} of the bound{also}")
    seconds = median_seconds(results, MEMORY)[0]
    size = results["bytes"]
    speed = shown(size / seconds / 1e9, ".1f")
    print(f"  bound: {shown(1 / seconds, '.1f')} tokens/s, {size / 1e6:.0f} MB at {speed} GB/s")
    if peer:
        print(f"  tokens/s of {NUMTRANS} over those of {peer}: {shown(1 / ratio(results, NUMTRANS, peer)['median'])}")
    if not same_tokens(results):
        print("  the libraries wrote different tokens")
