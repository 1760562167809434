"""``python -m benchmarks COMMAND``: numtrans and its peers in turns, on this machine; writes JSON and a picture."""

import argparse
import os
import signal
import sys

from benchmarks import attention, demo, generate, growth, imports, memory, profile, table, train
from numtrans.errors import NumtransError

# files, in the order of the help
COMMANDS = (train, attention, generate, memory, imports, growth, demo, profile, table)


def main(argv=None):
    """Run the benchmark that the command line names and return the exit status."""
    top = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add(commands)
    arguments = top.parse_args(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what has been measured is written
    try:
        status = arguments.run(arguments) or 0
        sys.stdout.flush()  # where the reader has gone, it is known here and not after the end
        return status
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (NumtransError, ImportError, OSError) as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nbenchmarks: stopped", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
