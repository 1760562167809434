"""``python -m benchmarks generate``: numtrans and PyTorch, one after the other in turns, on this machine."""

import argparse
import os
import sys

for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):  # they choose a slower kernel; the BLAS reads them when it loads
    os.environ.pop(name, None)


def main():
    """Run the benchmark that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    generate = commands.add_parser("generate", help="tokens a second of SmolLM2-135M, greedy, with a cache")
    generate.add_argument("--tokens", type=int, default=64, help="tokens to write (default 64)")
    generate.add_argument("--rounds", type=int, default=5, help="turns of each library (default 5)")
    generate.add_argument("--threads", type=int, default=os.cpu_count(), help="threads of both (default: the cores)")
    arguments = parser.parse_args()
    from benchmarks.generate import run

    return run(arguments.tokens, arguments.rounds, arguments.threads)


sys.exit(main())
