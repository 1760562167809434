"""The check itself: what it takes, what it refuses, what it leaves alone, what it reports."""

import copy

import gradcheck_toys as toys
import numpy as np
import pytest
from gradcheck_toys import normal

from numtrans.errors import ConfigError, DataError, DtypeError, GradientError
from numtrans.gradcheck import assert_gradients, gradcheck, step_size_study
from numtrans.module import Module, Parameter

X = normal(2, 3, 4)


def test_caller_is_untouched():
    module, x = toys.Linear(), X.astype(np.float32)
    module.forward(x)
    module.W.grad = np.ones((4, 4), np.float32)
    data, grad, before = module.W.data, module.W.grad, copy.deepcopy((module.W.data, x))
    assert gradcheck(module, x)
    assert module.W.data is data
    assert module.W.grad is grad
    assert module.pending == 1
    assert data.tobytes() == before[0].tobytes()
    assert x.tobytes() == before[1].tobytes()
    assert (grad == 1).all()
    assert module.b.grad is None

    drop = toys.Drop()
    drop.counter = 5
    assert gradcheck(drop, x)
    assert drop.counter == 5


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_or_inf_in_an_input(value):
    x = X.copy()
    x[1, 0, 2] = value
    with pytest.raises(DataError, match=r"input x has -?(nan|inf) at index \(1, 0, 2\)") as caught:
        gradcheck(toys.Linear(), x)
    assert isinstance(caught.value, ValueError)


def test_nan_in_a_parameter():
    module = toys.Linear()
    module.b.data[3] = np.nan
    with pytest.raises(DataError, match=r"parameter b has nan at index \(3,\)"):
        gradcheck(module, X)


def test_bad_calls():
    with pytest.raises(ConfigError, match="expected 'central' or 'complex'"):
        gradcheck(toys.Linear(), X, method="forward")
    with pytest.raises(ConfigError, match="nothing to check"):
        gradcheck(toys.Square(), np.arange(3))

    class Pair(toys.Square):
        def forward(self, x):
            return x, x

    with pytest.raises(DtypeError, match="returned tuple"):
        gradcheck(Pair(), X)


def test_constants_by_keyword_and_integer_inputs():
    report = gradcheck(toys.Bilinear(), normal(2, 3, 4), normal(2, 5, 4), mask=np.ones((3, 5), bool))
    assert report
    assert [row.name for row in report.rows] == ["query", "key"]
    assert [row.name for row in gradcheck(toys.Lookup(), np.array([[0, 1, 1]])).rows] == ["W"]


def test_frozen_parameters_are_left_out():
    module = toys.Linear()
    module.W.requires_grad = False
    assert [row.name for row in gradcheck(module, X).rows] == ["x", "b"]


def test_scalar_losses():
    x, target = normal(3, 4), normal(3, 4)
    report = gradcheck(toys.MeanSquare(), x, target=target)
    assert report, str(report)
    assert not gradcheck(toys.MeanSquareIgnoresDy(), x, target=target)
    assert gradcheck(toys.MeanSquare(), x, target=target, method="complex")


def test_kinks_are_left_out_and_named():
    x = X.copy()
    x[0, 0, :2] = [0.0, 3e-6]
    report = gradcheck(toys.Relu(), x)
    assert report, str(report)
    assert (report["x"].kinks, report["x"].checked) == (2, 22)
    assert "pass (kinks: 2)" in str(report)
    report = gradcheck(toys.Relu(), np.zeros((2, 2)))
    assert not report
    assert "every point lies on a kink" in report["x"].verdict


def test_kinks_of_a_large_tensor_are_redrawn():
    x = normal(40, 40)
    x[:, ::2] = 0.0
    report = gradcheck(toys.Relu(), x)
    assert report["x"].kinks > 0, str(report)
    assert report["x"].checked >= 20


def test_a_wrong_gradient_is_not_excused_as_a_kink():
    class Leaky(toys.Relu):
        def backward(self, dy):
            return super().backward(dy) * 1.001

    report = gradcheck(Leaky(), X)
    assert not report
    assert report["x"].kinks == 0


def test_noise_makes_parameters_generic():
    class Gain(Module):
        """Its backward forgets the gain, which only shows when the gain is not 1."""

        def __init__(self):
            super().__init__()
            self.g = Parameter(np.ones(4, np.float32))

        def forward(self, x):
            self.save(x)
            return x * self.g.data

        def backward(self, dy):
            (x,) = self.saved()
            self.g.add_grad((dy * x).sum(axis=(0, 1)))
            return dy.copy()

    assert gradcheck(Gain(), X, randomize=False)
    assert not gradcheck(Gain(), X)


def test_strong_curvature_and_tiny_gradients():
    flat = normal(3, 6) * 0.01 + 5.0
    report = gradcheck(toys.LayerNorm(6), flat, tolerance32=1e-2)  # float32 loses digits in 5.01 - 5.00
    assert report, str(report)
    assert report["x"].error < 1e-8


def test_non_finite_output():
    class Log(Module):
        def forward(self, x):
            self.save(x)
            with np.errstate(all="ignore"):
                return np.log(x)

        def backward(self, dy):
            (x,) = self.saved()
            return dy / x

    report = gradcheck(Log(), np.array([1.0, -1.0]))
    assert not report
    assert report["x"].verdict == "the output is not finite"


def test_unused_parameter_passes():
    class Spare(toys.Linear):
        def __init__(self):
            super().__init__()
            self.spare = Parameter(np.ones(3, np.float32))

    assert gradcheck(Spare(), X)["spare"].passed


def test_complex_step():
    for module in (toys.Linear(), toys.LayerNorm(4), toys.Softmax(), toys.Drop()):
        report = gradcheck(module, X, method="complex")
        assert report, str(report)
        assert max(row.error for row in report.rows) < 1e-13
    assert not gradcheck(toys.TransposedW(), X, method="complex")
    assert "transpose" in " ".join(gradcheck(toys.TransposedW(), X, method="complex").diagnosis)
    large = gradcheck(toys.SignW(24, 24), normal(2, 3, 24), method="complex")
    assert not large
    assert "sign is wrong" in " ".join(large.diagnosis)


def test_complex_step_where_it_does_not_apply():
    with pytest.raises(ConfigError, match="needs an analytic layer"):
        gradcheck(toys.Absolute(), X, method="complex")

    class Conjugate(toys.Square):
        def forward(self, x):
            self.save(x)
            return x * np.conj(x)

    with pytest.raises(ConfigError, match="needs an analytic layer"):
        gradcheck(Conjugate(), X, method="complex")

    class Cast(toys.Square):
        def forward(self, x):
            self.save(x)
            return x.astype(np.float64) ** 2

    with pytest.raises(ConfigError, match="does not run on complex128"):
        gradcheck(Cast(), X, method="complex")


def test_assert_gradients():
    assert assert_gradients(toys.Linear(), X)
    with pytest.raises(GradientError, match="the sign is wrong") as caught:
        assert_gradients(toys.SignW(), X)
    assert isinstance(caught.value, AssertionError)
    assert "worst index" in str(caught.value)


def test_table_html_and_plot(tmp_path):
    report = gradcheck(toys.SignW(), X)
    row = report["W"]
    text = str(report)
    for words in ("tensor", "worst index", "FAIL: wrong", "16 of 16", f"{row.worst_numeric:+.8e}", "diagnosis:"):
        assert words in text
    assert row.worst_analytic == pytest.approx(-row.worst_numeric)
    assert "<table>" in report._repr_html_()
    assert "FAIL: wrong" in report._repr_html_()
    assert "FAIL" in repr(report)
    with pytest.raises(KeyError, match="no tensor 'nothing'"):
        report["nothing"]
    path = tmp_path / "check.png"
    figure = report.plot(path)
    assert path.stat().st_size > 1000
    assert figure.axes[0].get_xlabel() == "numeric gradient"
    assert figure.axes[0].get_ylabel() == "analytic gradient"
    gradcheck(toys.OneColumnLost(70, 70), normal(2, 3, 70)).plot()


def test_seed_makes_the_check_repeatable():
    first, second = (gradcheck(toys.Linear(24, 24), normal(2, 3, 24) * 0 + 1, seed=4) for _ in range(2))
    assert str(first) == str(second)
    assert str(first) != str(gradcheck(toys.Linear(24, 24), normal(2, 3, 24) * 0 + 1, seed=5))


def test_step_size_study_shows_the_v(tmp_path):
    study = step_size_study(toys.LayerNorm(4), X)
    for method, least in (("forward", 1e-6), ("central", 1e-8)):
        errors = study.errors[method]
        assert errors.min() < least
        assert errors[0] > 100 * errors.min()
        assert errors[-1] > 100 * errors.min()
    assert study.errors["central"].min() < study.errors["forward"].min()
    assert study.errors["complex"][-10:].max() < 1e-13
    study.plot(tmp_path / "v.png")
    assert (tmp_path / "v.png").stat().st_size > 1000


def test_step_size_study_without_complex():
    class Cast(toys.Square):
        def forward(self, x):
            if x.dtype.kind == "c":
                raise TypeError("real numbers only")
            return super().forward(x)

    study = step_size_study(Cast(), X, steps=[1e-3, 1e-5])
    assert "complex" not in study.errors
    assert "real numbers only" in study.notes[0]
    with pytest.raises(ConfigError, match="unknown methods"):
        step_size_study(toys.Square(), X, methods=("backward",))
