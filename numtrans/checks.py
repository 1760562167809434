"""Checks of numbers that a user passes in."""

import math
from numbers import Integral, Real

import numpy as np

from numtrans.errors import ConfigError


def is_number(value, kind=Real):
    """Whether `value` is a number of this kind; True and False are none."""
    return isinstance(value, kind) and not isinstance(value, (bool, np.bool_))


def is_count(value, least=1):
    """Whether `value` is an integer of at least `least`."""
    return is_number(value, Integral) and value >= least


def check_count(owner, name, value, least=1):
    """Raise `ConfigError` unless `value` is an integer of at least `least`."""
    if not is_count(value, least):
        raise ConfigError(f"{owner}: {name} is {value!r}, expected an integer of at least {least}")


def check_sizes(module, **sizes):
    """Raise `ConfigError` unless each of `sizes`, arguments of the constructor of `module`, is an integer above 0."""
    for name, value in sizes.items():
        check_count(type(module).__name__, name, value)


def check_number(owner, name, value, expected, fits):
    """Raise `ConfigError` unless `value` is a finite number that `fits`, a function, which `expected` says in words."""
    if not is_number(value) or not math.isfinite(value) or not fits(value):
        raise ConfigError(f"{owner}: {name} is {value!r}, expected {expected}")
