"""Runs the cells of an assignment, the teacher's or a student's, and tells what each check said."""

import json
import linecache
from pathlib import Path

from numtrans.course import CheckFailed, student_copy

FOLDER = Path(__file__).resolve().parents[2] / "notebooks" / "assignments"
ASSIGNMENTS = sorted(FOLDER.glob("ps*/ps*.ipynb"))


def read(path):
    """The notebook as a dict, the source of each cell one string."""
    notebook = json.loads(Path(path).read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        cell["source"] = "".join(cell["source"])
    return notebook


def stub(path):
    """The student's copy of the notebook at `path`, as `read` gives it."""
    copy = student_copy(read(path))
    for cell in copy["cells"]:
        cell["source"] = "".join(cell["source"])
    return copy


def marks(cell):
    return cell["metadata"].get("nbgrader", {})


def cell_of(notebook, grade_id):
    return next(cell for cell in notebook["cells"] if marks(cell).get("grade_id") == grade_id)


def checks(notebook):
    """The names of the graded code cells, in order."""
    return [marks(c)["grade_id"] for c in notebook["cells"] if marks(c).get("grade") and c["cell_type"] == "code"]


def outcomes(notebook, last=None):
    """Run the code cells in one namespace, as a kernel does: name of each check -> None if it passes, or what it says.

    A check may raise nothing but `CheckFailed`, and no other cell may raise. The run ends with the check `last`.
    """
    names, said = {"__name__": "__main__"}, {}
    for i, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] != "code" or "%pip" in cell["source"]:
            continue
        file = f"<cell {i}>"
        linecache.cache[file] = (len(cell["source"]), None, cell["source"].splitlines(True), file)
        graded = marks(cell).get("grade")
        try:
            exec(compile(cell["source"], file, "exec"), names)
        except CheckFailed as error:
            assert graded
            said[marks(cell)["grade_id"]] = str(error)
        else:
            if graded:
                said[marks(cell)["grade_id"]] = None
        if last is not None and marks(cell).get("grade_id") == last:
            break
    return said
