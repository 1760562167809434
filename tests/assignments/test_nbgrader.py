"""nbgrader accepts the assignments: it registers the teacher's notebook and grades copies made by the builder.

nbgrader is no dependency; these tests run where it is installed.
"""

import json
import os
import subprocess
import sys

import pytest
from assignment import ASSIGNMENTS, cell_of, marks, read

from numtrans.course import build

pytest.importorskip("nbgrader")
pytestmark = [pytest.mark.slow, pytest.mark.parametrize("path", ASSIGNMENTS, ids=[path.stem for path in ASSIGNMENTS])]

# Right for the shapes that a student sees, wrong for others: what to replace in the reference, the check that tells.
ONLY_SHOWN_SHAPES = {"ps5-layernorm": ([("axis=-1", "axis=2")], "check-1")}


@pytest.fixture
def course(tmp_path):
    """A folder for a course, and a function that runs nbgrader in it."""
    bin_folder = os.path.dirname(sys.executable)  # nbgrader calls alembic by name
    environment = os.environ | {"PATH": bin_folder + os.pathsep + os.environ["PATH"]}
    environment |= {name: str(tmp_path / name) for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR")}

    def run(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "nbgrader", *arguments],
            cwd=tmp_path, env=environment, capture_output=True, text=True, encoding="utf-8", timeout=200,
        )  # fmt: skip

    return tmp_path, run


def answered(path, names, replace=()):
    """Put the reference solutions of the cells `names` into the student's copy at `path`."""
    copy = json.loads(path.read_text(encoding="utf-8"))
    reference = read(next(source for source in ASSIGNMENTS if source.name == path.name))
    for cell in copy["cells"]:
        if marks(cell).get("grade_id") in names:
            text = cell_of(reference, marks(cell)["grade_id"])["source"]
            for old, new in replace:
                text = text.replace(old, new)
            cell["source"] = text
    path.write_text(json.dumps(copy), encoding="utf-8")


def test_the_metadata_are_valid(path):
    import nbformat
    from nbgrader.nbgraderformat import MetadataValidator

    MetadataValidator().validate_nb(nbformat.read(path, as_version=4))


def test_full_points_for_the_reference_and_none_for_the_stub(path, course):
    from nbgrader.api import Gradebook

    folder, run = course
    name, reference = path.stem, read(path)
    solutions = [marks(cell)["grade_id"] for cell in reference["cells"] if marks(cell).get("solution")]
    (folder / "source" / name).mkdir(parents=True)
    (folder / "source" / name / path.name).write_bytes(path.read_bytes())
    made = run("generate_assignment", name, "--create")
    assert made.returncode == 0, made.stderr
    for student in ("nothing", "all", "shown"):
        build(path, folder / "submitted" / student / name)
    answered(folder / "submitted" / "all" / name / path.name, solutions)
    replace, check = ONLY_SHOWN_SHAPES.get(name, ([], None))
    answered(folder / "submitted" / "shown" / name / path.name, solutions, replace)
    graded = run("autograde", name)
    assert graded.returncode == 0, graded.stderr

    points = {marks(c)["grade_id"]: marks(c)["points"] for c in reference["cells"] if marks(c).get("grade")}
    by_hand = {n for n in points if marks(cell_of(reference, n))["solution"]}
    found = {}
    with Gradebook(f"sqlite:///{folder / 'gradebook.db'}") as book:
        for submission in book.assignment_submissions(name):
            assert submission.max_score == sum(points.values())
            grades = [grade for notebook in submission.notebooks for grade in notebook.grades]
            found[submission.student.id] = {grade.name: grade.auto_score for grade in grades}
    assert found["nothing"] == dict.fromkeys(points, 0)
    assert found["all"] == {n: None if n in by_hand else points[n] for n in points}  # None: to be graded by hand
    if check is not None:  # nbgrader has put the hidden tests back
        assert found["shown"][check] == 0


def test_validate_tells_a_student_what_fails(path, course):
    folder, run = course
    mine = build(path, folder / path.stem)
    shown = run("validate", str(mine))
    assert shown.stdout.startswith("VALIDATION FAILED ON")
    assert "This is not written yet. Write " in shown.stdout
    assert "Success" in run("validate", str(path)).stdout
