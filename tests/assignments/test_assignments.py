"""Every assignment: the pair of files, the student's copy, the reference, and what the checks say of a stub."""

import importlib.util
import io
import json
import re
import tokenize

import pytest
from assignment import ASSIGNMENTS, FOLDER, checks, marks, outcomes, read, stub

from numtrans import cli
from numtrans.course import build

pytestmark = pytest.mark.parametrize("path", ASSIGNMENTS, ids=[path.stem for path in ASSIGNMENTS])


def regions(notebook, what):
    """The lines between BEGIN and END of `what`, stripped, of all cells."""
    found = []
    for cell in notebook["cells"]:
        for text in re.findall(rf"### BEGIN {what}\n(.*?)\n[ ]*### END {what}", cell["source"], re.DOTALL):
            found += [line.strip() for line in text.split("\n")]
    return [line for line in found if line]


def text_of(notebook):
    return "\n".join(cell["source"] for cell in notebook["cells"])


def test_the_notebook_is_in_step_with_its_source(path):
    pytest.importorskip("jupytext")
    spec = importlib.util.spec_from_file_location("sync", FOLDER.parent / "sync.py")
    sync = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sync)
    assert path.with_suffix(".py") in sync.sources()
    assert path.read_text(encoding="utf-8") == sync.generated(path.with_suffix(".py"))


def test_the_first_code_cell_installs_on_colab_and_nowhere_else(path):
    first = next(cell["source"] for cell in read(path)["cells"] if cell["cell_type"] == "code")
    assert first == (
        "# Installs numtrans on Google Colab, and does nothing elsewhere.\nimport sys\n\n"
        'if "google.colab" in sys.modules:\n    %pip install -q git+https://github.com/numtrans/numtrans'
    )


def test_every_marked_cell_is_valid(path):
    keys = {"grade", "grade_id", "locked", "schema_version", "solution", "task"}
    for cell in read(path)["cells"]:
        if marks(cell):
            assert set(marks(cell)) == keys | ({"points"} if marks(cell)["grade"] else set())
            assert marks(cell)["schema_version"] == 3
            assert marks(cell)["grade"] or marks(cell)["solution"] or marks(cell)["locked"]
            assert marks(cell)["locked"] != marks(cell)["solution"]


def test_the_points_add_up_to_the_stated_sum(path):
    notebook = read(path)
    points = sum(marks(cell)["points"] for cell in notebook["cells"] if marks(cell).get("grade"))
    assert re.search(r"\| \| sum \| (\d+) \|", text_of(notebook))[1] == str(points)


def test_the_reference_passes_all_checks(path):
    notebook = read(path)
    assert outcomes(notebook) == dict.fromkeys(checks(notebook))


def test_the_reference_runs_in_a_kernel(path):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=120).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    printed = "".join(output.get("text", "") for output in outputs)
    assert printed.count(": passed.") == len(checks(read(path)))
    assert {output.get("name", "stdout") for output in outputs} == {"stdout"}  # nbgrader takes stderr for a failure


def test_the_stub_fails_every_check_and_is_told_what_to_write(path):
    notebook = stub(path)
    said = outcomes(notebook)
    assert list(said) == checks(notebook) == checks(read(path))
    for name, text in said.items():
        assert text is not None, name
        title, sentence, *_ = text.split("\n")
        assert title.endswith(": not yet.")
        assert sentence.startswith("This is not written yet. Write ")
        assert "\nNext step: " in text


def test_the_stub_in_a_kernel_shows_sentences_and_no_traceback(path):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    notebook = nbformat.from_dict(stub(path))
    nbformat.validate(notebook)
    nbclient.NotebookClient(notebook, timeout=120, allow_errors=True).execute()
    errors = [
        output
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if output.output_type == "error"
    ]
    assert [error.ename for error in errors] == ["CheckFailed"] * len(checks(stub(path)))
    assert ["\n".join(error.traceback) for error in errors] == list(outcomes(stub(path)).values())


def test_the_students_copy_holds_no_line_of_a_solution_or_a_hidden_test(path):
    notebook, copy = read(path), text_of(stub(path))
    solution = [line for line in regions(notebook, "SOLUTION") if not line.startswith("#>")]
    hidden = regions(notebook, "HIDDEN TESTS")
    assert len(solution) > 3
    assert len(hidden) > 3
    kept = {line.strip() for line in copy.split("\n")}
    assert not kept & {*solution, *hidden}
    assert "SOLUTION" not in copy
    assert "HIDDEN" not in copy
    assert "#>" not in copy
    for line in solution:  # nor a part of one: its code without the comment
        code = line.split("  #")[0].strip()
        assert len(code) < 12 or code not in copy, code


def test_the_students_copy_keeps_all_else_and_has_no_outputs(path):
    notebook, copy = read(path), stub(path)
    assert [cell["id"] for cell in copy["cells"]] == [cell["id"] for cell in notebook["cells"]]
    for cell, made in zip(notebook["cells"], copy["cells"]):
        if "### BEGIN" not in cell["source"]:
            assert made["source"] == cell["source"]
        assert marks(made) == marks(cell)
        if made["cell_type"] == "code":
            assert made["outputs"] == []
            assert made["execution_count"] is None
            if "%pip" not in made["source"]:
                list(tokenize.generate_tokens(io.StringIO(made["source"]).readline))
                compile(made["source"], "cell", "exec")
        if marks(made):
            assert made["metadata"]["deletable"] is False
            assert made["metadata"].get("editable", True) is bool(marks(made)["solution"])


def test_building_is_deterministic_and_leaves_a_students_work_alone(path, tmp_path, capsys):
    one, two = build(path, tmp_path / "one"), build(path, tmp_path / "two")
    assert one.name == path.name
    assert one.read_bytes() == two.read_bytes()
    assert [file.name for file in one.parent.iterdir()] == [path.name]
    assert build(path, tmp_path / "one") == one  # the same again: nothing to do
    work = json.loads(one.read_text(encoding="utf-8"))
    work["cells"][0]["source"] = ["mine"]
    one.write_text(json.dumps(work), encoding="utf-8")
    before = one.read_bytes()
    assert cli.main(["course", "build", str(path), "--out", str(one.parent)]) == 2
    assert "may hold a student's work" in capsys.readouterr().err
    assert one.read_bytes() == before
    assert cli.main(["course", "build", str(path), "--out", str(path.parent)]) == 2
    assert "the teacher's notebook itself" in capsys.readouterr().err
