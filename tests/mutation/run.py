"""Plant each mistake of `mutations.py` in a copy of the package and show what catches it.

    python tests/mutation/run.py [--only ID ...] [--jobs 2] [--limit 120]

First `gradcheck` on the components that the mistake touches; if they pass, the test files that are named for it. The
table goes to results.md (with --only the rows of the others stay). Exit status 1 if a mistake survives, 2 if the
unchanged code fails.
"""

import argparse
import compileall
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mutations import MUTATIONS
from tqdm import tqdm

NOTHING, NOT_RUN = "**nothing**", "not run"
HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

CHECK = """
import sys, warnings
warnings.simplefilter("ignore")
import numtrans
assert numtrans.__file__.startswith(sys.argv[1]), numtrans.__file__
from numtrans.components import components
from numtrans.gradcheck import gradcheck
print("IMPORTED")
names = sys.argv[2:]
try:
    for component in components():
        if component.name in names:
            if not gradcheck(component.module, *component.inputs, **component.kwargs):
                print(f"CAUGHT {component.name}")
                break
except Exception as error:
    print(f"CAUGHT {component.name}: {type(error).__name__}")
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="ID", help="plant these only")
    parser.add_argument("--jobs", type=int, default=2, help="mutations at a time")
    parser.add_argument("--limit", type=float, default=120, help="seconds for a check or a run of the tests")
    args = parser.parse_args()
    chosen = [m for m in MUTATIONS if args.only is None or m.id in args.only]
    if not chosen:
        parser.error(f"no such mutation; the ids are {', '.join(m.id for m in MUTATIONS)}")
    start = time.time()
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "base"
        copy_sources(base)
        broken = catch(base, sorted({c for m in chosen for c in m.checked()}),
                       sorted({t for m in chosen for t in m.tested()}), 10 * args.limit)  # fmt: skip
        if broken:
            print(f"the unchanged code fails: {broken}")
            return 2
        with ThreadPoolExecutor(args.jobs) as pool:
            found = list(tqdm(pool.map(lambda m: plant(m, base, args.limit), chosen), total=len(chosen), disable=None))
    survivors = [m.id for m, caught in zip(chosen, found) if not caught]
    for mutation, caught in zip(chosen, found):
        if args.only or not caught:
            print(f"{mutation.id}: {caught or 'SURVIVES'}")
    write_results({m.id: caught or NOTHING for m, caught in zip(chosen, found)})
    print(f"{len(chosen)} planted, {len(chosen) - len(survivors)} caught in {time.time() - start:.0f} s")
    if survivors:
        print("survivors:", *survivors)
    return 1 if survivors else 0


def copy_sources(base):
    """The package and the tests as they are now, compiled once for all copies."""
    ignore = shutil.ignore_patterns("__pycache__", "mutation", "cupy_standin", "data")
    shutil.copytree(ROOT / "numtrans", base / "numtrans", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "tests", base / "tests", ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", base)
    compileall.compile_dir(base / "numtrans", quiet=2)


def plant(mutation, base, limit):
    """What catches `mutation`, in words; None if nothing does."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        shutil.copytree(base, copy)
        path = copy / "numtrans" / mutation.file
        path.write_text(mutation.apply(path.read_text(encoding="utf-8")), encoding="utf-8")
        for stale in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            stale.unlink()
        try:
            return catch(copy, mutation.checked(), mutation.tested(), limit)
        except RuntimeError as error:
            print(f"{mutation.id}: {error}")
            return None


def catch(folder, names, tests, limit):
    """What notices that the package in `folder` is wrong: the gradient check of a component, or a test."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}

    def run(*command):
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=limit)

    try:
        if names:
            done = run(sys.executable, "-c", CHECK, str(folder), *names)
            if "IMPORTED" not in done.stdout:
                raise RuntimeError(f"the mutant does not import, which proves nothing:\n{done.stderr}")
            caught = re.search(r"CAUGHT (.*)", done.stdout)
            if caught:
                return f"gradcheck: {caught[1]}"
            if done.returncode:
                raise RuntimeError(done.stderr)
        if tests:
            paths = [f"tests/{path}" for path in tests]
            done = run(sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *paths)
            if done.returncode == 1:
                failed = re.search(r"^(?:FAILED|ERROR) tests/(.+?)(?: - .*)?$", done.stdout, re.M)
                name = failed[1] if failed else "name not found in pytest's output"
                return f"test: {name}".replace("|", "/")
            if done.returncode:
                output = f"{done.stdout[-2000:]}\n{done.stderr[-1000:]}"
                raise RuntimeError(f"pytest ended with {done.returncode}:\n{output}")
    except subprocess.TimeoutExpired:
        return "time limit"
    return None


def write_results(found):
    """Put what was `found` (id -> what caught it) into results.md; rows of mutations that did not run are kept."""
    path = HERE / "results.md"
    if path.exists():
        rows = [line.strip("| ").split(" | ") for line in path.read_text(encoding="utf-8").splitlines()]
        found = {**{row[0]: row[-1] for row in rows if len(row) == 4}, **found}
    found = {mutation.id: found.get(mutation.id, NOT_RUN) for mutation in MUTATIONS}
    counts = {
        "caught by the gradient checker": sum(caught.startswith("gradcheck") for caught in found.values()),
        "by a test": sum(caught.startswith(("test:", "time limit")) for caught in found.values()),
        "survive": sum(caught == NOTHING for caught in found.values()),
        "not run": sum(caught == NOT_RUN for caught in found.values()),
    }
    lines = [
        "# Mutation proof",
        "",
        "Written by `python tests/mutation/run.py`. Mistakes planted, one at a time: "
        f"{len(found)}. Of these {', '.join(f'{n} {what}' for what, n in counts.items())}.",
        "",
        "| id | file | mistake | caught by |",
        "|---|---|---|---|",
    ]
    lines += [f"| {m.id} | {m.file} | {m.mistake} | {found[m.id]} |" for m in MUTATIONS]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
