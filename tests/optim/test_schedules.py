"""Schedules at the steps where something happens."""

from functools import partial

import pytest

from numtrans.errors import ConfigError
from numtrans.optim import constant, noam, warmup_cosine, warmup_linear


def test_constant():
    assert [constant(s, 0.4, warmup=4) for s in (1, 2, 4, 5, 100)] == pytest.approx([0.1, 0.2, 0.4, 0.4, 0.4])
    assert constant(1, 0.4) == 0.4


def test_noam():
    rate = partial(noam, d_model=64, warmup=100)
    assert rate(100) == pytest.approx(1 / 80)
    assert rate(1) == pytest.approx(1 / 8000)
    assert rate(400) == pytest.approx(1 / 160)
    assert rate(100, factor=2.0) == pytest.approx(1 / 40)
    assert all(rate(s) < rate(s + 1) for s in range(1, 100))
    assert all(rate(s) > rate(s + 1) for s in range(100, 200))
    assert noam(4, d_model=4, warmup=0) == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("schedule", "quarter"), [(warmup_cosine, 0.1 + 0.9 * (1 + 0.5**0.5) / 2), (warmup_linear, 0.775)]
)
def test_rise_and_fall(schedule, quarter):
    rate = partial(schedule, peak=1.0, warmup=10, total=50, final=0.1)
    assert [rate(s) for s in (1, 5, 10)] == pytest.approx([0.1, 0.5, 1.0])
    assert rate(20) == pytest.approx(quarter)
    assert rate(30) == pytest.approx(0.55)
    assert rate(50) == rate(51) == rate(1000) == pytest.approx(0.1)
    assert schedule(1, 1.0, 0, 2) == pytest.approx(0.5)
    assert schedule(10, 1.0, 10, 10) == 1.0
    assert schedule(11, 1.0, 10, 10, 0.2) == pytest.approx(0.2)


@pytest.mark.parametrize(
    "schedule",
    [
        partial(constant, lr=1.0),
        partial(noam, d_model=8, warmup=10),
        partial(warmup_cosine, peak=1.0, warmup=1, total=5),
        partial(warmup_linear, peak=1.0, warmup=1, total=5),
    ],
)
@pytest.mark.parametrize("step", [0, -1])
def test_the_first_step_is_one(schedule, step):
    with pytest.raises(ConfigError, match=f"step is {step}; the first step is 1"):
        schedule(step)


def test_refuses_a_warmup_longer_than_the_run():
    with pytest.raises(ConfigError, match="warmup is 10 and total 5"):
        warmup_cosine(1, 1.0, 10, 5)
    with pytest.raises(ConfigError, match="warmup is -1"):
        constant(1, 1.0, -1)
