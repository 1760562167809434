"""``numtrans evaluate``: the numbers of a trained model on files."""

import math
import sys
from pathlib import Path

from numtrans.cli.arguments import backend, nonnegative, positive, prepare
from numtrans.errors import ConfigError

HEADS = {
    "pairs": "pairs", "tokens": "tokens", "unknown": "unknown", "loss": "loss", "perplexity": "perplexity",
    "bits_per_byte": "bits/byte", "accuracy": "accuracy", "exact_match": "exact match", "BLEU": "BLEU", "chrF": "chrF",
}  # fmt: skip
FORMATS = {
    "pairs": "{:,}", "tokens": "{:,}", "unknown": "{:,}", "loss": "{:.4f}", "perplexity": "{:,.4g}",
    "bits_per_byte": "{:.4f}", "accuracy": "{:.1%}", "exact_match": "{:.1%}", "BLEU": "{:.2f}", "chrF": "{:.2f}",
}  # fmt: skip
CELLS = str.maketrans({"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"})  # a cell of a table is one line


def add(commands):
    """Add the command to the parser."""
    evaluate = commands.add_parser(
        "evaluate", help="loss, perplexity, exact match, BLEU and chrF of a run on files",
        description="Evaluate a run on files, one line a file. Without files: on what its own task keeps apart, the "
        "test pairs or the validation part of the text.",
    )  # fmt: skip
    add = evaluate.add_argument
    add("folder", metavar="RUN", help="the folder that `numtrans demo` or `train` wrote")
    add("--data", metavar="FILE", nargs="+", help="UTF-8 texts; for a run of pairs, files with a tab between source "
        "and target")
    add("--source", metavar="FILE", help="pairs: one sentence a line, or both with a tab between")
    add("--target", metavar="FILE", help="pairs: the translations of --source, line by line")
    add("--beams", type=positive, default=1, help="pairs: beams of the search for a translation; 1 is greedy decoding "
        "(default %(default)s)")
    add("--length-penalty", type=float, help="beams: scores are divided by their length to this power; 0 favors short "
        "translations (default 1)")
    add("--out", type=Path, metavar="FILE", help="write the translations beside the references as .tsv, or with all "
        "numbers as .json")
    add("--batch", type=positive, default=64, help="rows worked through at a time, without effect on the numbers "
        "(default %(default)s)")
    add("--seed", type=nonnegative, default=0, help="what is hidden from a run of --objective mlm or span (default "
        "%(default)s)")
    add("--threads", type=positive, default=1, help="threads of the matrix products (default 1)")
    backend(evaluate)
    evaluate.set_defaults(run=run_evaluate)


def run_evaluate(arguments):
    """``numtrans evaluate``"""
    from numtrans.cli.train import task_of
    from numtrans.evaluation import add_up, evaluate_file, evaluate_task
    from numtrans.models import Transformer
    from numtrans.runs import DATA, load_run, load_settings

    run = load_run(arguments.folder)
    pairs = isinstance(run.model, Transformer)
    check(arguments, run, pairs)
    prepare(arguments.backend, arguments.threads)
    run.model.to(arguments.backend)
    options = {"batch_size": arguments.batch}
    if not pairs:
        options["seed"] = arguments.seed
    elif arguments.beams > 1:
        penalty = 1.0 if arguments.length_penalty is None else arguments.length_penalty
        options.update(num_beams=arguments.beams, length_penalty=penalty)
    if arguments.source:
        results = [evaluate_file(run, arguments.source, arguments.target, **options)]
    elif arguments.data:
        results = [evaluate_file(run, path, **options) for path in arguments.data]
    else:
        settings = load_settings(arguments.folder, ["task", "seed", "block", *DATA])
        results = [evaluate_task(run, task_of(settings), **options)]
    rows = results if len(results) == 1 else [*results, add_up(results)]
    numbers, signatures = numbers_of(rows)
    print(table([result.name for result in rows], numbers))
    for name, signature in signatures.items():
        print(f"{name}: {signature}")
    for result in results:
        if result.unknown:
            print(f"numtrans: {result.name} holds {result.unknown:,} symbols that the model has never seen; it reads "
                  "them as unknown", file=sys.stderr)  # fmt: skip
    if arguments.out:
        write(arguments.out, rows, numbers, signatures)
        print(f"written to {arguments.out}")


def check(arguments, run, pairs):
    """Raise for options that do not go together or do not suit the run, before any work."""
    from numtrans.checkpoint import check_folder

    kind = type(run.model).__name__
    if arguments.data and (arguments.source or arguments.target):
        raise ConfigError("evaluate: give --data, or --source and --target, not both")
    if arguments.target and not arguments.source:
        raise ConfigError("evaluate: --target needs --source, the sentences that it translates")
    if arguments.source and not pairs:
        raise ConfigError(f"evaluate: --source is for pairs, but this run holds a {kind}, which reads texts: --data")
    if not pairs and (arguments.beams > 1 or arguments.length_penalty is not None):
        raise ConfigError(f"evaluate: --beams and --length-penalty are for translations, but this run holds a {kind}")
    if arguments.length_penalty is not None and arguments.beams == 1:
        raise ConfigError("evaluate: --length-penalty compares beams; give --beams 2 or more")
    if arguments.out is None:
        return
    if arguments.out.suffix not in (".tsv", ".json"):
        raise ConfigError(f"evaluate: --out {arguments.out} must end in .tsv (translations) or .json (and all numbers)")
    if arguments.out.suffix == ".tsv" and not pairs:
        raise ConfigError(f"evaluate: this run holds a {kind}, which writes no translations; --out takes .json here")
    check_folder(arguments.out.parent)


def numbers_of(rows):
    """The numbers of each evaluation by name, with BLEU and chrF where there are translations, and the signatures."""
    from numtrans.evaluation import corpus_scores

    numbers, signatures = [result.numbers() for result in rows], {}
    try:
        for result, values in zip(rows, numbers):
            if result.written:
                scores, signatures = corpus_scores(result.written, result.references)
                values.update(scores)
    except ImportError as error:
        print(f"numtrans: {error}", file=sys.stderr)
    return numbers, signatures


def table(names, numbers):
    """The numbers in columns, a row for each name; those that no row has are left out."""
    columns = [column for column in HEADS if any(column in values for values in numbers)]
    cells = [["", *(HEADS[column] for column in columns)]]
    for name, values in zip(names, numbers):
        given = {column: values.get(column) for column in columns}
        cells.append([name, *("-" if v is None else FORMATS[column].format(v) for column, v in given.items())])
    widths = [max(map(len, column)) for column in zip(*cells)]
    lines = (
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:]))]) for row in cells
    )
    return "\n".join(lines)


def write(path, rows, numbers, signatures):
    """Write the translations, and for ``.json`` all numbers, whole or not at all."""
    from numtrans.checkpoint import write_json, write_text

    if path.suffix == ".json":
        files = [{"name": result.name, **finite(values), "translations": list(translations(result))}
                 for result, values in zip(rows, numbers)]  # fmt: skip
        for total in files[1:][-1:]:  # the total repeats no translation
            del total["translations"]
        write_json(path, {"results": files, "signatures": signatures})
        return
    lines = [["file", "source", "reference", "translation", "exact"]]
    for result in rows[:-1] or rows:
        for pair in translations(result):
            texts = (pair[part].translate(CELLS) for part in ("source", "reference", "translation"))
            lines.append([result.name.translate(CELLS), *texts, str(int(pair["exact"]))])
    write_text(path, "".join("\t".join(line) + "\n" for line in lines))


def translations(result):
    """Each pair of an evaluation with what the model wrote."""
    columns = zip(result.sources, result.references, result.written, result.exact)
    for source, reference, translation, exact in columns:
        yield {"source": source, "reference": reference, "translation": translation, "exact": exact}


def finite(values):
    """`values` as JSON can hold them: null for what is no finite number."""
    return {name: v if v is None or math.isfinite(v) else None for name, v in values.items()}
