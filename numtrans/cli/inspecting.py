"""``numtrans inspect``."""

from numtrans.cli.arguments import positive
from numtrans.errors import ConfigError


def add(commands):
    """Add the command to the parser."""
    inspect = commands.add_parser(
        "inspect", help="parameters, operations and memory of a published model",
        description="Print the sizes of a model, its parameters by part beside their closed form, the operations of a "
        "token, and the memory of weights, cache and training. No weights are made.",
    )  # fmt: skip
    inspect.add_argument("preset", nargs="?", metavar="PRESET", help="such as gpt2; --list prints the names")
    inspect.add_argument("--list", action="store_true", help="print the presets with their parameters and end")
    inspect.add_argument(
        "--tokens", type=positive, metavar="N",
        help="tokens of a sequence (default: the longest that the model takes, 512 if it has no limit)",
    )  # fmt: skip
    inspect.add_argument("--batch", type=positive, default=1, metavar="N", help="sequences (default %(default)s)")
    inspect.set_defaults(run=run_inspect)


def run_inspect(arguments):
    """``numtrans inspect``"""
    from numtrans.inspect import summary
    from numtrans.models import count_parameters
    from numtrans.models.presets import PRESETS

    if arguments.list:
        for name in PRESETS:
            print(f"{name:18s} {count_parameters(name):14,d}")
        return
    if arguments.preset is None:
        raise ConfigError("inspect: name a preset; --list prints the names")
    print(summary(arguments.preset, arguments.tokens, arguments.batch))
