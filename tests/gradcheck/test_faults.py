"""The faults that others met in their gradient checkers (the catalogue's CHK-01, CHK-02, NRM-05, ZRO-01, NUM-01)."""

import gradcheck_toys as toys
import numpy as np
import pytest
from gradcheck_toys import normal

from numtrans.gradcheck import gradcheck, numeric, properties
from numtrans.gradcheck.point import Point


def point_with(module, x, cotangent):
    point = Point.of(module, (x,), {}, randomize=False)
    point.cotangent = cotangent
    return point


def test_chk_01_product_and_caller_array_untouched():
    x = np.array([1.0, 2.0, 3.0])
    before = x.copy()
    point = point_with(toys.Product(), x, np.ones(1))
    gradient, _ = numeric.full_gradient(point, point.tensors()["x"])
    np.testing.assert_allclose(gradient, [6, 3, 2], rtol=0, atol=1e-9)
    assert point.tensors()["x"].tobytes() == before.tobytes()
    assert gradcheck(toys.Product(), x)
    assert x.tobytes() == before.tobytes()
    assert not np.allclose(gradient, [3.00000000002, 1.50000000003, 1.00000000001])


def test_chk_02_float64_and_the_right_step():
    x = 0.5 + np.arange(200) / 150
    single = x.astype(np.float32)
    h = np.float32(1e-4)
    total = np.sin(single).sum(dtype=np.float32)
    worst = 0.0
    for i in range(200):
        up, down = single.copy(), single.copy()
        up[i] += h
        down[i] -= h
        slope = (np.sin(up).sum(dtype=np.float32) - np.sin(down).sum(dtype=np.float32)) / (2 * h)
        worst = max(worst, abs(float(slope) - np.cos(x[i])))
    assert worst > 1e-3
    assert total > 0

    point = point_with(toys.Sine(), single, np.ones(200))
    gradient, _ = numeric.full_gradient(point, point.tensors()["x"])
    assert np.abs(gradient - np.cos(single.astype(np.float64))).max() < 1e-8
    assert gradcheck(toys.Sine(), single)["x"].error < 1e-9


def test_nrm_05_a_constant_cotangent_proves_nothing_and_ours_is_random():
    x = np.array([[1.0, 2.0, 4.0, 8.0]])
    for module in (toys.LayerNorm(4), toys.NormWithoutVariancePath(4)):
        point = point_with(module, x, np.ones((1, 4)))
        point.cotangent = np.ones((1, 4))
        assert np.abs(point.gradients()[0]["x"]).max() < 1e-12  # right and faulty alike: vacuous
    dy = np.array([[0.1, -0.3, 0.2, 0.4]])
    right = point_with(toys.LayerNorm(4), x, dy).gradients()[0]["x"]
    np.testing.assert_allclose(right, [[0.0713567407556, -0.1037918305, 0.0308131899494, 0.00162189979552]], atol=1e-10)
    faulty = point_with(toys.NormWithoutVariancePath(4), x, dy).gradients()[0]["x"]
    np.testing.assert_allclose(faulty, [[0, -0.149200665527, 0.0373001663817, 0.111900499145]], atol=1e-10)
    assert gradcheck(toys.LayerNorm(4), x)
    assert not gradcheck(toys.NormWithoutVariancePath(4), x)


def test_a_plain_sum_misses_the_softmax_fault_and_ours_does_not():
    x = normal(3, 5)
    # a plain sum of outputs: its true gradient is zero; a backward that is zero everywhere would pass
    point = point_with(toys.Softmax(), x, np.ones((3, 5)))
    gradient, _ = numeric.full_gradient(point, point.tensors()["x"])
    assert np.abs(gradient).max() < 1e-9

    class Nothing(toys.Softmax):
        def backward(self, dy):
            (y,) = self.saved()
            return y * (dy.mean() - (dy.mean() * y).sum(axis=-1, keepdims=True))

    plain = point_with(Nothing(), x, np.ones((3, 5)))
    assert np.linalg.norm(plain.gradients()[0]["x"] - gradient) < 1e-8  # the plain sum sees no fault
    assert not gradcheck(Nothing(), x)
    assert not gradcheck(toys.SoftmaxDiagonal(), x)
    assert gradcheck(toys.Softmax(), x)


def test_zro_01_accumulation():
    names = {p.name: p for p in gradcheck(toys.Linear(), normal(2, 3, 4)).properties}
    assert names["parameter gradients accumulate"].passed
    assert names["a second run agrees"].passed
    assert not gradcheck(toys.Overwrites(), normal(2, 3, 4))

    class Grows(toys.Linear):
        """Keeps intermediate gradients: the second run gives 3 g in all."""

        total = 0

        def dW(self, x, dy):
            self.total = self.total + super().dW(x, dy)
            return self.total.copy()

    assert not gradcheck(Grows(), normal(2, 3, 4))


def test_num_01_promotion_and_hidden_float32():
    assert (np.ones(2, np.float32) / np.sqrt(64)).dtype == np.float64  # the fault itself
    assert not gradcheck(toys.PromotesOutput(), normal(2, 3, 4))
    assert not gradcheck(toys.SquareSingle(), normal(2, 3, 4))
    assert not gradcheck(toys.SquareBackwardSingle(), normal(2, 3, 4), tolerance=1e-9)


def test_gradients_that_are_all_zero_in_float64():
    """In float32 there is nothing to compare them to: rounding passes, and a gradient of size 1 does not."""

    class Rounds(toys.Softmax):
        error = 1e-9

        def backward(self, dy):
            (y,) = self.saved()
            return np.full_like(y, self.error if y.dtype == np.float32 else 0)

    point = point_with(Rounds(), normal(3, 5), np.ones((3, 5)))
    errors, dtypes = properties.float32_errors(point, 1e-4)
    assert errors["x"] == pytest.approx(1e-9 * 15**0.5)
    assert dtypes.passed
    Rounds.error = 1.0
    assert properties.float32_errors(point, 1e-4)[0]["x"] == pytest.approx(15**0.5)
