"""Numeric proof of hand-written backward passes: the check, its report, its diagnosis, the pytest plugin.

The checker knows the protocol of `numtrans.module.Module` and no layer by name.
"""

from numtrans.gradcheck.check import assert_gradients, gradcheck
from numtrans.gradcheck.report import GradCheckReport, Property, Row
from numtrans.gradcheck.study import StepSizeStudy, step_size_study

__all__ = [
    "GradCheckReport",
    "Property",
    "Row",
    "StepSizeStudy",
    "assert_gradients",
    "gradcheck",
    "step_size_study",
]
