"""Losses against hand calculations, finite differences and their own properties."""

import warnings

import numpy as np
import pytest

from numtrans import module as nt
from numtrans.errors import BackwardError, ConfigError, DtypeError, IndexRangeError, ShapeError
from numtrans.losses import CrossEntropyLoss, MSELoss


def numeric(function, x, h=1e-6):
    """Central differences of a scalar function, coordinate by coordinate."""
    gradient = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[i] += h
        down[i] -= h
        gradient[i] = (function(up) - function(down)) / (2 * h)
    return gradient


def reference(z, t, eps, ignore):
    """Losses by the definition -sum q log p, one at a time, in Python floats."""
    out = []
    for row, target in zip(z, t, strict=True):
        if target == ignore:
            out.append(0.0)
            continue
        p = np.exp(row) / np.exp(row).sum()
        q = np.full(row.size, eps / row.size)
        q[target] += 1 - eps
        out.append(-(q * np.log(p)).sum())
    return np.array(out)


@pytest.fixture
def batch():
    rng = np.random.default_rng(3)
    logits = 3 * rng.standard_normal((2, 4, 5))
    targets = np.array([[0, 4, 2, 1], [3, 3, 1, 0]])
    return logits, targets


@pytest.mark.parametrize("eps", [0.0, 0.1])
@pytest.mark.parametrize("ignore", [-100, 3])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy_is_its_definition_and_its_gradient_the_slope(batch, eps, ignore, reduction):
    logits, targets = batch
    targets = targets.copy()
    targets[0, 1] = ignore
    ce = CrossEntropyLoss(ignore, eps, reduction)
    each = reference(logits.reshape(-1, 5), targets.ravel(), eps, ignore)
    expected = {"mean": each.sum() / (targets != ignore).sum(), "sum": each.sum(), "none": each.reshape(2, 4)}
    loss = ce(logits, targets)
    np.testing.assert_allclose(loss, expected[reduction], rtol=1e-12)
    assert np.shape(loss) == np.shape(expected[reduction])

    dy = np.random.default_rng(1).standard_normal((2, 4)) if reduction == "none" else 0.7
    dlogits = ce.backward(dy)
    with nt.no_grad():
        slope = numeric(lambda z: (ce(z, targets) * dy).sum(), logits)
    np.testing.assert_allclose(dlogits, slope, atol=1e-8)
    assert not dlogits[targets == ignore].any()


def test_cross_entropy_agrees_with_pytorch():
    torch = pytest.importorskip("torch")
    z = np.array([[1.0, 2, 3], [1, -1, 0], [2, 2, 2]])
    t = np.array([2, 1, -100])
    zt = torch.tensor(z, requires_grad=True)
    expected = torch.nn.functional.cross_entropy(zt, torch.tensor(t), label_smoothing=0.2)
    expected.backward()
    ce = CrossEntropyLoss(label_smoothing=0.2)
    np.testing.assert_allclose(ce(z, t), expected.item(), rtol=1e-13)
    np.testing.assert_allclose(ce.backward(), zt.grad.numpy(), atol=1e-15)


def test_cross_entropy_by_hand():
    # p = (1/4, 3/4): the loss is log 4 and log 4/3, dz = p - onehot
    z = np.log(np.array([[1.0, 3.0], [1.0, 3.0]]))
    ce = CrossEntropyLoss(reduction="none")
    np.testing.assert_allclose(ce(z, np.array([0, 1])), np.log([4, 4 / 3]), rtol=1e-14)
    np.testing.assert_allclose(ce.backward(), [[-0.75, 0.75], [0.25, -0.25]], rtol=1e-14)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shift", [0.0, 1e4, -1e4])
def test_large_logits_neither_overflow_nor_lose_the_dtype(dtype, shift):
    z = np.array([[0.0, 50.0], [3.0, 0.0]], dtype) + dtype(shift)
    ce = CrossEntropyLoss(label_smoothing=0.0)
    loss = ce(z, np.array([0, 0]))
    assert loss.dtype == dtype
    np.testing.assert_allclose(loss, (50 + np.log1p(np.exp(-3.0))) / 2, rtol=1e-6)
    dlogits = ce.backward(np.float64(1))
    assert dlogits.dtype == dtype
    p = 1 / (1 + np.exp(3.0))
    np.testing.assert_allclose(dlogits, [[-0.5, 0.5], [-p / 2, p / 2]], rtol=1e-5)


def test_infinite_logits_of_classes_that_are_ruled_out():
    z = np.array([[0.0, -np.inf, 0.0], [-np.inf, 0.0, 0.0]])
    ce = CrossEntropyLoss()
    np.testing.assert_allclose(ce(z, np.array([0, -100])), np.log(2))
    np.testing.assert_array_equal(ce.backward(), [[-0.5, 0, 0.5], [0, 0, 0]])


def test_nothing_counts():
    ce = CrossEntropyLoss(label_smoothing=0.1)
    with pytest.warns(UserWarning, match="every target is ignored"):
        loss = ce(np.ones((2, 3)), np.array([-100, -100]))
    assert loss == 0
    np.testing.assert_array_equal(ce.backward(), np.zeros((2, 3)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a piece of a batch may well be empty: no warning with a normalizer
        assert ce(np.ones((2, 3)), np.array([-100, -100]), normalizer=0) == 0
        np.testing.assert_array_equal(ce.backward(), np.zeros((2, 3)))
        assert ce(np.ones((2, 3)), np.array([1, -100])) > 0


@pytest.mark.parametrize("normalizer", [6, np.int64(6), np.array(6)])
def test_pieces_with_the_count_of_the_whole_add_up_to_the_whole(batch, normalizer):
    logits, targets = batch
    targets = targets.copy()
    targets[0, :2] = -100
    ce = CrossEntropyLoss(label_smoothing=0.1)
    assert ce.count(targets) == 6
    whole, dwhole = ce(logits, targets), ce.backward()
    pieces = [(ce(logits[i], targets[i], normalizer=normalizer), ce.backward()) for i in range(2)]
    np.testing.assert_allclose(sum(loss for loss, _ in pieces), whole, rtol=1e-13)
    np.testing.assert_allclose(np.stack([d for _, d in pieces]), dwhole, rtol=1e-13)
    means = [ce(logits[i], targets[i]) for i in range(2)]
    assert abs(np.mean(means) - whole) > 0.01  # the mean of means is another number


def test_normalizer_keeps_float32():
    for loss, targets in [(CrossEntropyLoss(), np.array([0, 1])), (MSELoss(), np.zeros((2, 2), np.float32))]:
        assert loss(np.ones((2, 2), np.float32), targets, normalizer=np.int64(3)).dtype == np.float32
        assert loss.backward().dtype == np.float32


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_mse_and_its_slope(reduction):
    rng = np.random.default_rng(0)
    y, t = rng.standard_normal((3, 4)), rng.standard_normal((3, 4))
    mse = MSELoss(reduction)
    np.testing.assert_allclose(
        mse(y, t), {"mean": ((y - t) ** 2).sum() / 12, "sum": ((y - t) ** 2).sum(), "none": (y - t) ** 2}[reduction]
    )
    dy = rng.standard_normal((3, 4)) if reduction == "none" else 0.3
    dprediction = mse.backward(dy)
    with nt.no_grad():
        np.testing.assert_allclose(dprediction, numeric(lambda x: (mse(x, t) * dy).sum(), y), atol=1e-8)


def test_mse_by_hand():
    mse = MSELoss()
    assert mse(np.array([1.0, 4.0]), np.array([0.0, 2.0])) == 2.5
    np.testing.assert_array_equal(mse.backward(), [1.0, 2.0])


@pytest.mark.parametrize(
    ("loss", "targets"), [(CrossEntropyLoss(), np.array([1, 0])), (MSELoss(), np.zeros((2, 3)))], ids=["ce", "mse"]
)
def test_backwards_undo_forwards_last_first_and_inputs_stay(loss, targets):
    a, b = np.arange(6.0).reshape(2, 3), np.ones((2, 3))
    kept = a.copy()
    loss(a, targets)
    da = loss.backward()
    loss(a, targets), loss(b, targets)
    db = loss.backward()
    np.testing.assert_array_equal(loss.backward(), da)
    assert not np.allclose(da, db)
    np.testing.assert_array_equal(a, kept)
    with pytest.raises(BackwardError, match=type(loss).__name__):
        loss.backward()
    with nt.no_grad():
        loss(a, targets)
    assert loss.pending == 0


def test_one_prediction_without_batch():
    ce, mse = CrossEntropyLoss(), MSELoss()
    np.testing.assert_allclose(ce(np.zeros(4), np.array(2)), np.log(4))
    np.testing.assert_allclose(ce.backward(), [0.25, 0.25, -0.75, 0.25])
    assert mse(np.array(3.0), np.array(1.0)) == 4
    assert mse.backward() == 4


def test_complex_logits_carry_the_derivative():
    z, t, h = np.array([[1.0, 2.0, -1.0], [0.3, 0.1, 5.0]]), np.array([1, 0]), 1e-30
    ce = CrossEntropyLoss(label_smoothing=0.1)
    ce(z, t)
    dz = ce.backward()
    for i in np.ndindex(z.shape):
        step = z.astype(complex)
        step[i] += 1j * h
        np.testing.assert_allclose(ce(step, t).imag / h, dz[i], atol=1e-15)


@pytest.mark.parametrize(
    ("logits", "targets", "error", "match"),
    [
        (np.zeros((2, 3)), np.array([0.0, 1.0]), DtypeError, "float64, expected integers"),
        (np.zeros((2, 3), int), np.array([0, 1]), DtypeError, "logits has dtype int64"),
        (np.zeros((2, 3)), np.array([[0, 1]]), ShapeError, r"\(1, 2\), expected \(2,\)"),
        (np.zeros((2, 3)), np.array([0, 1, 2]), ShapeError, r"\(3,\), expected \(2,\)"),
        (np.zeros((2, 0)), np.array([0, 1]), ShapeError, "classes"),
        (np.zeros((2, 3)), np.array([0, 3]), IndexRangeError, "target 3 is outside 0..2"),
        (np.zeros((2, 3)), np.array([-1, 0]), IndexRangeError, "target -1"),
    ],
)
def test_cross_entropy_refuses(logits, targets, error, match):
    with pytest.raises(error, match=match) as caught:
        CrossEntropyLoss()(logits, targets)
    assert "CrossEntropyLoss" in str(caught.value)


def test_lists_are_no_arrays():
    """Nor are they arrays of another library."""
    ones, expected = np.ones((2, 3)), "must be a numpy or cupy array, got list"
    for loss, prediction, targets in [
        (CrossEntropyLoss(), ones, [0, 1]), (CrossEntropyLoss(), ones.tolist(), np.array([0, 1])),
        (MSELoss(), ones, ones.tolist()), (MSELoss(), ones.tolist(), ones),
    ]:  # fmt: skip
        with pytest.raises(DtypeError, match=rf"{type(loss).__name__}: (targets|logits|prediction) {expected}"):
            loss(prediction, targets)


@pytest.mark.parametrize("loss", [CrossEntropyLoss(), MSELoss()])
def test_normalizers(loss):
    """A number counts as the same number of NumPy; 0 counts as 1; what is no number of 0 or more is refused."""
    x = np.array([[0.3, 0.5], [1.0, 0.0]])
    targets = x[::-1].copy() if isinstance(loss, MSELoss) else np.array([1, 0])
    total = loss(x, targets, 1)
    for n in (0.5, 3, 7.5):
        for normalizer in (n, np.float64(n), np.array(n)):
            assert loss(x, targets, normalizer) == pytest.approx(total / n, rel=1e-12)
    for zero in (0, 0.0, np.int64(0), np.array(0.0)):
        assert loss(x, targets, zero) == total
    loss.clear()
    for wrong in (-1, np.float64(-1), np.array(-0.5), float("nan"), np.float64("nan"), float("inf"), "3", np.ones(2)):
        with pytest.raises(ConfigError, match=rf"{type(loss).__name__}: normalizer is .*, expected a number of 0 or"):
            loss(x, targets, wrong)
    assert loss.pending == 0


@pytest.mark.parametrize("value", [1.0, -0.1, "a", float("nan"), True, None])
def test_wrong_label_smoothing(value):
    with pytest.raises(ConfigError, match=rf"CrossEntropyLoss: label_smoothing is {value!r}, expected 0 <= value < 1"):
        CrossEntropyLoss(label_smoothing=value)


def test_other_refusals():
    with pytest.raises(ShapeError, match="MSELoss"):
        MSELoss()(np.zeros((2, 1)), np.zeros((2, 3)))
    with pytest.raises(DtypeError, match="MSELoss"):
        MSELoss()(np.zeros(2), np.zeros(2, np.float32))
    for make in (CrossEntropyLoss, MSELoss):
        with pytest.raises(ConfigError, match="reduction"):
            make(reduction="average")
    with pytest.raises(ConfigError, match="normalizer"):
        CrossEntropyLoss(reduction="sum")(np.zeros((1, 2)), np.array([0]), normalizer=3)
    with pytest.raises(ConfigError, match="normalizer is -1"):
        MSELoss()(np.zeros(2), np.zeros(2), normalizer=-1)
    ce = CrossEntropyLoss()
    ce(np.zeros((2, 3)), np.array([0, 1]))
    with pytest.raises(ShapeError, match=r"dy has shape \(2,\)"):
        ce.backward(np.ones(2))
