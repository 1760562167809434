"""The builder on marked cells of every kind, right and wrong; the checks on student code that fails in every way."""

import copy
import json
import linecache
import re
import warnings

import numpy as np
import pytest

from numtrans import cli
from numtrans.course import Check, CheckFailed, build, student_copy
from numtrans.errors import ConfigError
from numtrans.gradcheck import gradcheck
from numtrans.layers import Linear

SAYS = '    #> Write "f": y = x.\n    #> Return y.\n'
SOLUTION = f"def f(x):\n    ### BEGIN SOLUTION\n{SAYS}    return x\n    ### END SOLUTION\n"


def cell(source, kind="code", grade_id=None, **marks):
    made = {"cell_type": kind, "id": grade_id or "plain", "metadata": {}, "source": source.splitlines(True)}
    if grade_id is not None:
        marks = {"grade": False, "locked": False, "solution": False, "task": False, **marks}
        made["metadata"]["nbgrader"] = {"grade_id": grade_id, "schema_version": 3, **marks}
    if kind == "code":
        made |= {"execution_count": 3, "outputs": [{"output_type": "stream", "name": "stdout", "text": ["7"]}]}
    return made


def notebook(*cells):
    return {
        "cells": list(cells),
        "metadata": {"kernelspec": {"name": "python3"}, "extra": 1},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def one(*arguments, **marks):
    made = student_copy(notebook(cell(*arguments, **marks)))["cells"][0]
    return "".join(made["source"]), made


# ---- the student's copy


def test_a_solution_becomes_what_is_to_be_written():
    text, made = one(SOLUTION, grade_id="f", solution=True)
    assert text == (
        'def f(x):\n    raise NotImplementedError(\n        "Write \\"f\\": y = x.\\n"\n        "Return y."\n    )\n'
    )
    assert made["outputs"] == []
    assert made["execution_count"] is None
    assert made["metadata"]["deletable"] is False
    assert "editable" not in made["metadata"]
    names = {}
    exec(text, names)
    with pytest.raises(NotImplementedError, match=r'^Write "f": y = x\.\nReturn y\.$'):
        names["f"](1)


def test_two_solutions_in_one_cell_and_an_answer_in_words():
    text, _ = one(SOLUTION + SOLUTION.replace("f", "g"), grade_id="f", solution=True)
    assert text.count("raise NotImplementedError(") == 2
    text, made = one(
        "### BEGIN SOLUTION\nIt is so.\n### END SOLUTION", "markdown", "q", grade=True, solution=True, points=2
    )
    assert text == "YOUR ANSWER HERE"
    assert "outputs" not in made


def test_hidden_tests_go_and_the_cell_is_locked():
    text, made = one(
        "assert 1\n### BEGIN HIDDEN TESTS\nassert 2\n### END HIDDEN TESTS",
        grade_id="c",
        grade=True,
        locked=True,
        points=1,
    )
    assert text == "assert 1"
    assert made["metadata"]["editable"] is False


def test_the_notebook_it_was_given_is_not_changed():
    given = notebook(cell(SOLUTION, grade_id="f", solution=True), cell("1 + 1"))
    before = copy.deepcopy(given)
    made = student_copy(given)
    assert given == before
    assert made["metadata"] == {"kernelspec": {"name": "python3"}}
    assert made["cells"][1]["metadata"] == {}


@pytest.mark.parametrize(
    ("source", "marks", "says"),
    [
        (SOLUTION, {}, "has one and is not marked"),
        ("x = 1", {"grade_id": "f", "solution": True}, "is marked as a solution and has none"),
        (SOLUTION.replace(SAYS, ""), {"grade_id": "f", "solution": True}, "that say what to write"),
        (
            SOLUTION.replace("    ### END SOLUTION\n", ""),
            {"grade_id": "f", "solution": True},
            "BEGIN SOLUTION has no END",
        ),
        ("### END SOLUTION", {"grade_id": "f", "solution": True}, "do not take turns"),
        ("### BEGIN SOLUTION\n" + SOLUTION, {"grade_id": "f", "solution": True}, "do not take turns"),
        (
            "### BEGIN HIDDEN TESTS\n### END HIDDEN TESTS",
            {"grade_id": "f", "locked": True},
            "hidden tests and is not graded",
        ),
        ("assert 1", {"grade_id": "f", "grade": True, "locked": True}, "graded and has no points"),
        ("assert 1", {"grade_id": "", "grade": True, "points": 1}, "no grade_id"),
    ],
)
def test_marks_that_would_hand_out_a_solution_are_refused(source, marks, says):
    with pytest.raises(ConfigError, match=says):
        one(source, **marks)


def test_a_grade_id_that_occurs_twice_is_refused():
    marked = cell("assert 1", grade_id="c", grade=True, points=1)
    with pytest.raises(ConfigError, match="two cells have the grade_id 'c'"):
        student_copy(notebook(marked, marked))


@pytest.mark.parametrize(
    "mark",
    ["# BEGIN SOLUTION", "###BEGIN SOLUTION", "### begin solution", "### BEGIN HIDDEN TEST", "=== BEGIN MARK SCHEME"],
)
def test_a_mark_that_is_spelled_in_another_way_is_refused(mark):
    with pytest.raises(ConfigError, match="is not known"):
        one(f"{mark}\nsecret = 1\n", grade_id="f", grade=True, points=1)


@pytest.mark.parametrize(
    "wrong",
    [
        "text", {"cell_type": "code", "source": "x"}, {**cell("x"), "source": None}, {**cell("x"), "source": [1]},
        {**cell("x"), "metadata": {"nbgrader": None}}, {k: v for k, v in cell("x").items() if k != "id"},
    ],
)  # fmt: skip
def test_a_cell_without_its_parts_is_refused(wrong):
    with pytest.raises(ConfigError, match="cell 2 of the notebook"):
        student_copy(notebook(cell("x"), wrong))
    with pytest.raises(ConfigError, match="no metadata"):
        student_copy({"cells": [], "nbformat": 4})


def test_pictures_in_a_text_are_kept():
    picture = {"a.png": {"image/png": "AA=="}}
    made = student_copy(notebook({**cell("![](attachment:a.png)", "markdown"), "attachments": picture}))
    assert made["cells"][0]["attachments"] == picture


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "teacher" / "ps.ipynb"
    path.parent.mkdir()
    path.write_text(json.dumps(notebook(cell(SOLUTION, grade_id="f", solution=True))), encoding="utf-8")
    return path


def test_build_writes_the_copy_and_nothing_else(source, tmp_path, capsys):
    out = tmp_path / "a" / "b"
    assert cli.main(["course", "build", str(source), "--out", str(out)]) == 0
    assert str(out / "ps.ipynb") in capsys.readouterr().out
    assert [path.name for path in out.iterdir()] == ["ps.ipynb"]
    assert "return x" not in (out / "ps.ipynb").read_text(encoding="utf-8")


def test_a_failed_write_leaves_nothing(source, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("numtrans.checkpoint.os.replace", full)
    with pytest.raises(ValueError, match="No space left"):
        build(source, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_what_is_no_notebook_is_refused_by_name(source, tmp_path):
    source.write_text("# %%\n1", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"ps\.ipynb is no notebook \(\.ipynb\)"):
        build(source, tmp_path / "out")
    source.write_text('{"nbformat": 3, "cells": []}', encoding="utf-8")
    with pytest.raises(ConfigError, match="no notebook of format 4"):
        build(source, tmp_path / "out")
    with pytest.raises(ConfigError, match="cannot be read"):
        build(tmp_path / "nothing.ipynb", tmp_path / "out")
    (tmp_path / "file").write_text("", encoding="utf-8")
    source.write_text(json.dumps(notebook(cell("1"))), encoding="utf-8")
    with pytest.raises(ConfigError, match="cannot be made"):
        build(source, tmp_path / "file" / "out")


# ---- the checks


def said(body, *, hint="Go on."):
    """What a check says in which `body(check)` runs; None if it passes."""
    try:
        with Check("Check 0") as check:
            check.hint = hint
            body(check)
    except CheckFailed as error:
        return str(error)
    return None


def fails_with(body, says, hint="Go on."):
    text = said(body)
    assert text is not None
    assert re.fullmatch(rf"Check 0: not yet\.\n{says}\nNext step: {hint}", text, re.DOTALL), text


def test_a_check_that_passes_says_so(capsys):
    assert said(lambda check: check.that(True, "no")) is None
    assert capsys.readouterr().out == "Check 0: passed.\n"


def test_an_array_is_checked_part_by_part():
    good = np.ones((2, 3))
    fails_with(lambda c: c.array("y", None, (2, 3), float), "y is None.", "Does the function end with `return y`.")
    fails_with(lambda c: c.array("y", [1.0], (1,), float), "y is a list, and should be a NumPy array.")
    fails_with(lambda c: c.array("y", good.T, (2, 3), float), r"y has shape \(3, 2\), and should have \(2, 3\).")
    fails_with(
        lambda c: c.array("y", good, (2, 3), np.float32),
        "y has dtype float64 and should have float32.*",
        "Write const.*",
    )
    fails_with(lambda c: c.array("y", good * np.nan, (2, 3), float), "y holds NaN or an infinity.", "Is something .*")
    assert said(lambda c: c.array("y", good, (2, 3), float)) is None


def test_equal_names_the_mistake_or_the_place():
    right = np.array([[1.0, 2.0], [3.0, 4.0]])
    known = [("It is doubled.", 2 * right), ("It is negative.", -right)]
    fails_with(lambda c: c.equal("y", -right, right, known), "It is negative.")
    wrong = right + [[0, 0], [0.5, 0]]
    fails_with(lambda c: c.equal("y", wrong, right, known), r"y is 3\.5 at index \[1, 0\], and should be 3\.")
    fails_with(lambda c: c.equal("y", right[0], right), "y has shape.*")
    assert said(lambda c: c.equal("y", right * (1 + 1e-12), right, known)) is None
    assert said(lambda c: c.equal("y", right * (1 + 1e-8), right, known)) is not None


class WrongLinear(Linear):
    def backward(self, dy):
        return -super().backward(dy)


def test_the_diagnosis_of_the_gradient_check_is_told():
    report = gradcheck(WrongLinear(3, 2), np.ones((2, 3)))
    says = "The gradient check says: x: the sign is wrong: the gradient is minus the right one."
    fails_with(lambda c: c.gradients(report), says)
    fails_with(lambda c: c.gradients(report, [("sign is wrong", "", "Look at the sign.")]), says, "Look at the sign.")
    fails_with(lambda c: c.gradients(report, [("no such", "A", "B"), ("sign", "Turn it.", "C.")]), "Turn it.", "C.")
    assert said(lambda c: c.gradients(gradcheck(Linear(3, 2), np.ones((2, 3))))) is None


@pytest.mark.parametrize(
    ("code", "says", "hint"),
    [
        ("raise NotImplementedError('Write f.')", "This is not written yet. Write f.", "Write it in the cell .*"),
        ("return y", "Python does not know a name: name 'y' is not defined.", "Run the cells above .*"),
        (
            "return x[5]",
            "Your code stopped with IndexError: .*\nIt happened in f, in the line: return x\\[5\\]",
            "Go on.",
        ),
        (
            "return np.ones(2) + np.ones(3)",
            "Your code stopped with ValueError: .*\nIt happened in f, in the line: .*",
            "Go on.",
        ),
        ("return f(x)", "Your code stopped with RecursionError: .*\nIt happened in f, in the line: .*", "Go on."),
        (
            "assert x == 2",
            "Your code stopped with AssertionError: \nIt happened in f, in the line: assert x == 2",
            "Go on.",
        ),
    ],
)
def test_an_error_of_the_student_is_told_with_the_line(code, says, hint):
    names = {"Check": Check, "np": np}
    cells = {
        "<one>": f"def f(x):\n    {code}  # mine\n",
        "<two>": "with Check('Check 0') as check:\n    check.hint = 'Go on.'\n    f([1])\n",
    }
    for file, text in cells.items():
        linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    exec(compile(cells["<one>"], "<one>", "exec"), names)
    with pytest.raises(CheckFailed) as caught:
        exec(compile(cells["<two>"], "<two>", "exec"), names)
    text = str(caught.value)
    assert re.fullmatch(rf"Check 0: not yet\.\n{says}\nNext step: {hint}", text, re.DOTALL), text
    assert caught.value.__suppress_context__
    assert caught.value._render_traceback_() == text.split("\n")


def test_stopping_by_hand_is_no_failure_and_warnings_are_not_shown():
    def stopped(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        said(stopped)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        said(lambda c: c.that(np.isnan(np.zeros(1) / np.zeros(1)).all(), "no"))
        warnings.warn("after", RuntimeWarning, stacklevel=1)
    assert [str(warning.message) for warning in shown] == ["after"]
