"""The error function in float32, for GELU on the CPU."""

from numtrans.backend import get_xp

ERF_P = (
    2.2905065861350646e-04, 3.4082910107109506e-03, 5.0955695062380861e-02, 1.8520832239976145e-01,
    1.128379143519084e00,
)  # fmt: skip
ERF_Q = (
    -1.1791602954361697e-07, 2.3547966471313185e-05, 1.0179625278914885e-03, 1.4070470171167667e-02,
    1.1098505178285362e-01, 4.9746925110067538e-01, 1.0,
)  # fmt: skip


def erf_float32(x):
    r"""The error function to the precision of float32: three times as fast as that of SciPy.

    :math:`x\, p(x^2) / q(x^2)` with the coefficients of Eigen's ``erf``, within 4e-7. It reaches 1 before x is 4.
    """
    xp = get_xp(x)
    x = xp.clip(x, -4, 4)
    square = x * x
    p = polynomial(ERF_P, square)
    p *= x
    p /= polynomial(ERF_Q, square)
    return xp.clip(p, -1, 1, out=p)


def polynomial(coefficients, x):
    """The polynomial of `x` whose highest coefficient comes first."""
    first, *others = coefficients
    y = x * first
    for coefficient in others[:-1]:
        y += coefficient
        y *= x
    y += others[-1]
    return y
