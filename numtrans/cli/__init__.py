"""The command line ``numtrans``: one file a command, and no mathematics.

Each file has ``add(commands)``, which adds its command to the parser.
"""

import argparse
import os
import sys

from numtrans import __version__
from numtrans.cli import bench, check, course, demo, evaluate, inspecting, pretrained, train, write
from numtrans.errors import NumtransError
from numtrans.parallel.mpi import check_alone

# files, in the order of the help
COMMANDS = (demo, train, write, evaluate, pretrained, check, inspecting, course, bench)


def main(argv=None):
    """Run the command in `argv` (``sys.argv`` by default) and return the exit status."""
    for stream in (sys.stdout, sys.stderr):  # a console that lacks a letter shows its code, and nothing is lost
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    arguments = parser().parse_args(argv)
    try:
        if arguments.run is not train.run_train:
            check_alone(arguments.command)
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
    for command in COMMANDS:
        command.add(commands)
    return top
