"""Write the ``.ipynb`` beside each ``.py`` of the book, or run notebooks.

The ``.py`` (jupytext, py:percent) is what is edited. The ``.ipynb`` is generated from it, without outputs, and the same
bytes come out each time.

    python notebooks/sync.py                      write each .ipynb
    python notebooks/sync.py --check              change nothing; fail if one is out of step
    python notebooks/sync.py --run FILE [...]     execute notebooks, and print the seconds each takes
    python notebooks/sync.py --run FILE --save TO the same, and keep the outputs in TO
"""

import argparse
import hashlib
import sys
import time
from pathlib import Path

import jupytext
import nbformat

from numtrans.checkpoint import write_text
from numtrans.errors import ConfigError, NumtransError

FOLDER = Path(__file__).resolve().parent
TIMEOUT = 600  # seconds for one cell


def sources():
    """The ``.py`` files that are notebooks: the chapters and the assignments."""
    return sorted([*FOLDER.glob("[0-9][0-9]-*.py"), *FOLDER.glob("assignments/*/ps*.py")])


def generated(source):
    """The text of the ``.ipynb`` that belongs to the file `source`."""
    try:
        notebook = jupytext.read(source, fmt="py:percent")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{source}: cannot be read: {error}") from error
    if "kernelspec" not in notebook.metadata:
        raise ConfigError(f"{source}: no kernelspec at the top; copy the first lines of another notebook")
    notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"], "language_info": {"name": "python"}}
    seen = set()
    for cell in notebook.cells:
        digest = hashlib.sha256(cell.source.encode()).hexdigest()
        cell.id = next(part for length in range(8, 64) if (part := digest[:length]) not in seen)
        seen.add(cell.id)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    nbformat.validate(notebook)
    return nbformat.writes(notebook) + "\n"


def run(path, save=None):
    """Execute the notebook at `path` in its folder and return the seconds it took; a failing cell raises."""
    from nbclient import NotebookClient

    try:
        notebook = nbformat.read(path, as_version=4)
    except (OSError, ValueError, nbformat.ValidationError) as error:
        raise ConfigError(f"{path}: cannot be read as a notebook (.ipynb): {str(error).splitlines()[0]}") from error
    if save is not None and not Path(save).resolve().parent.is_dir():
        raise ConfigError(f"{save}: its folder does not exist")  # told before the minutes of the run
    start = time.perf_counter()
    NotebookClient(notebook, timeout=TIMEOUT, resources={"metadata": {"path": str(Path(path).parent)}}).execute()
    if save is not None:
        write_text(save, nbformat.writes(notebook) + "\n")
    return time.perf_counter() - start


def main():
    """The command line; see the top of the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--run", nargs="+", metavar="FILE", type=Path)
    parser.add_argument("--save", metavar="TO", type=Path)
    arguments = parser.parse_args()
    if arguments.save and (not arguments.run or len(arguments.run) != 1):
        parser.error("--save goes with one notebook: --run FILE --save TO")
    for path in arguments.run or []:
        print(f"{path}: {run(path, arguments.save):.1f} s")
    if arguments.run:
        return 0
    behind = []
    for source, text in [(source, generated(source)) for source in sources()]:  # one bad file, and none is written
        target = source.with_suffix(".ipynb")
        if not target.is_file() or target.read_text(encoding="utf-8") != text:
            behind.append(target)
            if not arguments.check:
                write_text(target, text)  # whole or not at all
    verb = "is out of step with its .py" if arguments.check else "written"
    for target in behind:
        print(f"{target.relative_to(FOLDER.parent)} {verb}")
    return 1 if arguments.check and behind else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except NumtransError as error:
        sys.exit(f"sync.py: {error}")
