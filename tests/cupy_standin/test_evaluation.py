"""Evaluation and validation of a model that lies on the stand-in for CuPy, with batches that lie on the CPU."""

import pytest

from numtrans.data import DateTask, TextTask
from numtrans.evaluation import evaluate_pairs, evaluate_task
from numtrans.runs import default_settings, make_run, validation

SMALL = dict(layers=1, d_model=16, heads=2, batch=4)


@pytest.mark.parametrize("objective", ["clm", "mlm", "span"])
def test_a_text(cupy, objective, tmp_path):
    (tmp_path / "text.txt").write_text("To be, or not to be, that is the question. " * 20)
    task = TextTask(tmp_path / "text.txt", block=12)
    run = make_run(task, default_settings("text", objective=objective, block=12, **SMALL))
    expected, valid = evaluate_task(run, task).numbers(), validation(run, task, 4)()
    run.model.to("cupy")
    assert evaluate_task(run, task).numbers() == pytest.approx(expected, rel=1e-5)
    assert validation(run, task, 4)() == pytest.approx(valid, rel=1e-5)


def test_pairs(cupy):
    task = DateTask(n_train=20, n_valid=5, n_test=5)
    run = make_run(task, default_settings("dates", **SMALL))
    run.settings["longest_target"] = 3
    expected, valid = evaluate_pairs(run, task.test), validation(run, task, 4)()
    run.model.to("cupy")
    found = evaluate_pairs(run, task.test)
    assert found.numbers() == pytest.approx(expected.numbers(), rel=1e-5)
    assert found.written == expected.written
    assert validation(run, task, 4)() == pytest.approx(valid, rel=1e-5)
