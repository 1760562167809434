"""Right modules pass; each planted mistake is caught, and named where a simple cause fits."""

import gradcheck_toys as toys
import numpy as np
import pytest
from gradcheck_toys import normal

from numtrans.errors import NumtransError
from numtrans.gradcheck import gradcheck
from numtrans.layers import Dropout
from numtrans.losses import CrossEntropyLoss

X = normal(2, 3, 4)
IDS = np.array([[1, 2, 1], [4, 2, 5]])

RIGHT = [
    (toys.Linear, (), (X,)),
    (toys.Bias, ((3, 4),), (X[0],)),
    (toys.Square, (), (X,)),
    (toys.Residual, (), (X,)),
    (toys.Softmax, (), (X,)),
    (toys.LayerNorm, (5,), (normal(2, 3, 5),)),
    (toys.Scaled, (), (X,)),
    (toys.Lookup, (), (IDS,)),
    (toys.Drop, (), (X,)),
    (toys.Relu, (), (X,)),
    (toys.Sine, (), (X,)),
    (toys.Bilinear, (), (normal(2, 3, 4), normal(2, 5, 4))),
]


@pytest.mark.parametrize("case", RIGHT, ids=lambda case: case[0].__name__)
def test_right_modules_pass(case):
    cls, arguments, inputs = case
    report = gradcheck(cls(*arguments), *inputs)
    assert report, str(report)
    assert not report.diagnosis
    assert max(row.error for row in report.rows) < 1e-8
    assert max(row.float32_error for row in report.rows) < 1e-5


# module, inputs, tensor or property that fails, words that the diagnosis must hold
WRONG = [
    (toys.TransposedW(), (X,), "W", "the gradient is the transpose of the right one"),
    (toys.ForgottenTransposeInDx(), (X,), "x", ""),
    (toys.SignW(), (X,), "W", "the sign is wrong"),
    (toys.MeanOverBatch(), (X,), "W", "0.5 times the right one (one half or 1 / the size 2 of axis 0 of x"),
    (toys.MeanOverTokens(), (X,), "b", "1 / the size 3 of axis 1 of x): a mean where a sum is right?"),
    (toys.LastOfBatch(), (X,), "b", "only the last entry of axis 0 of the output counts"),
    (toys.FirstToken(), (X,), "W", "only the first entry of axis 1 of the output counts"),
    (toys.TwiceB(), (X,), "b", "2 times the right one (two"),
    (toys.ReversedB(), (X,), "b", "reversed along axis 0"),
    (toys.ShiftedB(), (X,), "b", "shifted by +1 along axis 0"),
    (toys.OneColumnLost(), (X,), "W", "wrong only at [2] of axis 1 (of 4)"),
    (toys.NoGradientForB(), (X,), "b", "no gradient (None)"),
    (toys.NoneForX(), (X,), "x", "no gradient (None)"),
    (toys.ZerosForX(), (X,), "x", "zero everywhere"),
    (toys.NaNGradient(), (X,), "b", "analytic gradient has nan at [1]"),
    (toys.Overwrites(), (X,), "parameter gradients accumulate", "the gradient of W is replaced by the second backward"),
    (toys.WritesIntoDy(), (X,), "backward leaves inputs, dy and output alone", "it writes into dy"),
    (toys.WritesIntoInput(), (X,), "backward leaves inputs, dy and output alone", "it writes into an input"),
    (toys.ForwardWritesIntoInput(), (X,), "forward leaves its inputs alone", "it writes into an input"),
    (toys.KeepsOneForward(), (X,), "two forwards, then two backwards in reverse", "self.save"),
    (toys.LeavesSaved(), (X,), "nothing is left saved", "1 forward(s) still have saved values"),
    (toys.PromotesDtype(), (X,), "float32 stays float32", "x is float64"),
    (toys.PromotesOutput(), (X,), "float32 stays float32", "the output is float64"),
    (toys.ReturnsTwo(), (X,), "one gradient for each floating input", "returned 2 gradient(s), expected 1"),
    (toys.AliasedBias((3, 4)), (X[0],), "backward leaves inputs, dy and output alone", "without a copy"),
    (toys.SquareWithoutX(), (X,), "x", "the factor the tensor itself is missing"),
    (toys.SquareSingle(), (X,), "x", "float32 cast or constant inside forward"),
    (toys.ResidualWithoutIdentity(), (X,), "x", "dy itself is missing as a term"),
    (toys.SoftmaxDiagonal(), (X,), "x", "should sum to zero over the last axis"),
    (toys.SoftmaxWritesIntoOutput(), (X,), "backward leaves inputs, dy and output alone", "it writes into the output"),
    (toys.NormWithoutMeanPath(5), (normal(2, 3, 5),), "x", "should sum to zero over the last axis"),
    (toys.NormWithoutVariancePath(5), (normal(2, 3, 5),), "x", "orthogonal to"),
    (toys.NormWithoutGain(5), (normal(2, 3, 5),), "x", ""),
    (toys.ScaledWithoutGain(), (X,), "x", "the factor gain is missing"),
    (toys.LookupKeepsLast(), (IDS,), "W", "wrong only for ids that occur more than once"),
    (toys.DropRedrawn(), (X,), "x", "is the mask drawn again in backward"),
    (toys.DropUnscaled(0.3), (X,), "x", "1 - p (0.3)"),
    (toys.DropGlobal(), (X,), "forward is repeatable", "two forwards from the same inputs"),
    (toys.BilinearSwapped(), (normal(2, 3, 4), normal(2, 3, 4)), "query", "this is the right gradient of key"),
    (toys.BilinearUnscaled(), (normal(2, 3, 4), normal(2, 5, 4)), "query", "2 times the right one"),
    (toys.SquareBackwardSingle(), (X * 10,), "x", ""),
]


@pytest.mark.parametrize("case", WRONG, ids=lambda case: type(case[0]).__name__)
def test_planted_mistake_is_caught_and_named(case):
    module, inputs, where, words = case
    report = gradcheck(module, *inputs, tolerance=1e-9 if type(module) is toys.SquareBackwardSingle else None)
    assert not report
    failed = [row.name for row in report.rows if not row.passed] + [p.name for p in report.properties if not p.passed]
    assert where in failed, str(report)
    assert words in " ".join(report.diagnosis), str(report)


def test_rows_of_an_input_are_not_taken_for_ids():
    class IgnoredCount(CrossEntropyLoss):
        def backward(self, dy=1.0):
            return super().backward(dy) + np.array([[[1.0], [0.0]], [[0.0], [0.0]]])

    # the only wrong row is 0, and the target 0 occurs twice; but row 0 of the logits is a sequence, not a class
    report = gradcheck(IgnoredCount(), normal(2, 2, 3), np.array([[0, 0], [1, 2]]))
    assert not report["logits"].passed
    assert report.diagnosis
    assert "occur more than once" not in " ".join(report.diagnosis)


@pytest.mark.parametrize("p", [0.0, 0.3])
def test_a_mask_is_called_redrawn_only_if_one_is_drawn(p):
    class CutsLess(Dropout):
        def forward(self, x):
            return super().forward(x) * (x[..., :1] > 0)

    report = gradcheck(CutsLess(p, rng=np.random.default_rng(0)), X)
    assert not report["x"].passed
    assert ("drawn again" in " ".join(report.diagnosis)) == (p > 0)


def test_wrong_axis_of_a_sum_is_refused_by_name():
    with pytest.raises(NumtransError, match="Parameter b: gradient has shape"):
        gradcheck(toys.WrongAxis(), X)


def test_wrong_shape_of_an_input_gradient():
    class Summed(toys.Square):
        def backward(self, dy):
            return super().backward(dy).sum(axis=0)

    report = gradcheck(Summed(), X)
    assert report["x"].verdict == "gradient has shape (3, 4), expected (2, 3, 4)"


def test_only_the_wrong_tensors_fail():
    report = gradcheck(toys.TransposedW(), X)
    assert [row.name for row in report.rows if not row.passed] == ["W"]
    assert report["x"].passed
    assert report["b"].passed


def test_large_tensor_with_one_lost_column_is_caught():
    report = gradcheck(toys.OneColumnLost(24, 24), normal(2, 3, 24))
    assert "wrong only at [2] of axis 1 (of 24)" in " ".join(report.diagnosis)
    assert report["W"].checked == 22


def test_very_large_tensor_is_judged_by_its_sample():
    report = gradcheck(toys.SignW(70, 70), normal(2, 3, 70))
    assert "-1 times the right one" in " ".join(report.diagnosis)


def test_a_factor_near_one_is_not_printed_as_one():
    class Nearly(toys.Square):
        def backward(self, dy):
            return super().backward(dy) * (1 + 4e-6)

    report = gradcheck(Nearly(), X)
    assert not report
    assert "(1.000004000) times the right one: nearly right, is an eps in another place" in str(report)
