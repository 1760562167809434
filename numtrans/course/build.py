"""The student's copy of an assignment: solutions replaced by what is to be written, hidden tests and outputs removed.

The teacher's notebook marks its cells as nbgrader does (metadata ``nbgrader``, ``### BEGIN SOLUTION``,
``### BEGIN HIDDEN TESTS``). The first lines of each solution in code begin with ``#>``: they say what to write, and
become the message of the ``NotImplementedError`` that stands in the student's copy::

    ### BEGIN SOLUTION
    #> Write the function f: y = x ** 2, of the shape of x.
    return x ** 2
    ### END SOLUTION
"""

import json
import re
from pathlib import Path

from numtrans.checkpoint import write_text
from numtrans.errors import ConfigError

ANSWER = "YOUR ANSWER HERE"  # nbgrader's own text: an answer that is left so gets no points
SAYS = "#>"
# a mark that is spelled in another way, by hand, would be handed out with all that follows it
LEFT = re.compile(r"^\s*[#=]+\s*(BEGIN|END)\s+(SOLUTION|HIDDEN|MARK\s+SCHEME)", re.IGNORECASE | re.MULTILINE)


def build(source, out):
    """Write the student's copy of the notebook `source` into the folder `out`.

    Parameters
    ----------
    source : str or Path
        The teacher's ``.ipynb``.
    out : str or Path
        A folder; made if it is missing. The copy has the name of `source`.

    Returns
    -------
    Path
        The file that was written, or that was there with the same contents.

    Raises
    ------
    ConfigError
        If `source` is not such a notebook, or the file is there and differs: it may hold a student's work.
    """
    source, out = Path(source), Path(out)
    text = json.dumps(student_copy(_read(source)), indent=1, ensure_ascii=False, sort_keys=True) + "\n"
    target = out / source.name
    if target.exists():
        if target.resolve() == source.resolve():
            raise ConfigError(f"course build: {target} is the teacher's notebook itself; give another folder")
        if target.is_file() and target.read_bytes() == text.encode():
            return target
        raise ConfigError(
            f"course build: {target} is there and differs from a new copy: it may hold a student's work, so nothing "
            "was written. Move it away, or give another folder"
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"course build: the folder {out} cannot be made: {error.strerror or error}") from error
    write_text(target, text)
    return target


def student_copy(notebook):
    """The student's copy of a teacher's notebook, both as the dict that the ``.ipynb`` (JSON) holds.

    Raises
    ------
    ConfigError
        If a cell is marked in a way that would hand out a solution, or leave one that cannot be graded.
    """
    if not isinstance(notebook.get("metadata"), dict):
        raise ConfigError("course build: the notebook has no metadata")
    for number, cell in enumerate(notebook["cells"], 1):
        _check_form(cell, f"course build: cell {number} of the notebook")
    cells = [_student_cell(cell) for cell in notebook["cells"]]
    ids = [marks["grade_id"] for marks in map(_marks, cells) if marks]
    for name in ids:
        if ids.count(name) > 1:
            raise ConfigError(f"course build: two cells have the grade_id {name!r}")
    known = ("kernelspec", "language_info")
    metadata = {key: value for key, value in notebook["metadata"].items() if key in known}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def _read(source):
    try:
        notebook = json.loads(source.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"course build: {source} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"course build: {source} is no notebook (.ipynb): {error}") from error
    if not isinstance(notebook, dict) or notebook.get("nbformat") != 4 or not isinstance(notebook.get("cells"), list):
        raise ConfigError(f"course build: {source} is no notebook of format 4")
    return notebook


def _check_form(cell, where):
    """Raise unless `cell` has the parts of a cell of format 4.5."""
    if not isinstance(cell, dict):
        raise ConfigError(f"{where} is no cell")
    for key, kind in (("cell_type", str), ("id", str), ("metadata", dict), ("source", (str, list))):
        if not isinstance(cell.get(key), kind):
            raise ConfigError(f"{where} has no {key}, or one of the wrong kind: save it in format 4.5 (JupyterLab)")
    if not all(isinstance(line, str) for line in cell["source"]):
        raise ConfigError(f"{where} has a source that is no text")
    marks = cell["metadata"].get("nbgrader", {})
    if not isinstance(marks, dict) or not isinstance(marks.get("grade_id", ""), str):
        raise ConfigError(f"{where} has metadata nbgrader of the wrong kind")


def _marks(cell):
    """What nbgrader's metadata say of `cell`; empty for a cell that is neither graded, nor answered, nor locked."""
    marks = cell["metadata"].get("nbgrader", {})
    return marks if any(marks.get(key) for key in ("grade", "solution", "locked")) else {}


def _student_cell(cell):
    text, marks, code = "".join(cell["source"]), _marks(cell), cell["cell_type"] == "code"
    where = f"cell {marks.get('grade_id') or text.strip().partition(chr(10))[0]!r}"
    if marks and not marks.get("grade_id"):
        raise ConfigError(f"course build: {where} has no grade_id")
    if marks.get("grade") and "points" not in marks:
        raise ConfigError(f"course build: {where} is graded and has no points")
    text, solutions = _without(text, "SOLUTION", where, _what_to_write if code else lambda *_: [ANSWER])
    text, hidden = _without(text, "HIDDEN TESTS", where, lambda *_: [])
    if left := LEFT.search(text):
        raise ConfigError(
            f"course build: {where}: the mark {left.group().strip()!r} is not known; "
            "### BEGIN SOLUTION and ### BEGIN HIDDEN TESTS are, and their ends"
        )
    if bool(solutions) != bool(marks.get("solution")):
        raise ConfigError(f"course build: {where} is marked as a solution and has none, or has one and is not marked")
    if hidden and not marks.get("grade"):
        raise ConfigError(f"course build: {where} has hidden tests and is not graded")
    metadata = dict(cell["metadata"])
    if marks:  # JupyterLab keeps the student from deleting the cell, and from editing one that is not to be answered
        metadata["deletable"] = False
        if not marks.get("solution"):
            metadata["editable"] = False
    made = {"cell_type": cell["cell_type"], "id": cell["id"], "metadata": metadata, "source": text.splitlines(True)}
    if "attachments" in cell:
        made["attachments"] = cell["attachments"]  # the pictures of a cell of text
    return {**made, "execution_count": None, "outputs": []} if code else made


def _without(text, what, where, replace):
    """`text` with each region ``### BEGIN what`` to ``### END what`` replaced, and the number of regions."""
    kept, region, count = [], None, 0
    for line in text.split("\n"):
        begins, ends = f"### BEGIN {what}" in line, f"### END {what}" in line
        if (begins and region is not None) or (ends and region is None):
            raise ConfigError(f"course build: {where}: BEGIN and END {what} do not take turns")
        if begins:
            region, indent, count = [], line[: len(line) - len(line.lstrip())], count + 1
        elif ends:
            kept += [indent + new for new in replace(region, where)]
            region = None
        else:
            (kept if region is None else region).append(line)
    if region is not None:
        raise ConfigError(f"course build: {where}: BEGIN {what} has no END")
    return "\n".join(kept), count


def _what_to_write(region, where):
    """The statement that raises, made of the first lines of a solution."""
    says = []
    for line in region:
        if not line.lstrip().startswith(SAYS):
            break
        says.append(line.lstrip()[len(SAYS) :].removeprefix(" "))
    if not says:
        raise ConfigError(f"course build: {where}: the solution must begin with lines {SAYS} that say what to write")
    lines = [line + "\n" for line in says[:-1]] + says[-1:]
    return ["raise NotImplementedError(", *(f"    {json.dumps(line, ensure_ascii=False)}" for line in lines), ")"]
