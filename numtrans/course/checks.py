"""Checks of a student's code: each ends at the first mistake, with a sentence on it and a next step, and no traceback.

The text of a check stands in the notebook::

    with Check("Check 1 (square)") as check:
        check.hint = "Multiply x by itself."
        y = square(x)                        # whatever this raises is told in a sentence, too
        check.array("y", y, x.shape, x.dtype)
        check.that((y >= 0).all(), "y has negative entries.")
"""

import linecache
import sys
import warnings

import numpy as np

from numtrans.errors import NumtransError


class CheckFailed(NumtransError, AssertionError):
    """A student's code does not do what a task asks for; the message says what is wrong and what to do next."""

    def _render_traceback_(self):
        """What IPython shows in place of a traceback."""
        return str(self).split("\n")


class Check:
    """A context in which a student's code is called and its results are compared.

    Parameters
    ----------
    title : str
        Printed when the check passes, and before what is wrong when it does not.

    Attributes
    ----------
    hint : str
        The next step, shown when something is wrong. Set it before each stage of the check.
    """

    def __init__(self, title):
        self.title, self.hint = title, ""

    def __enter__(self):
        caller = sys._getframe(1)
        self._cell, self._notebook = caller.f_code.co_filename, caller.f_globals
        self._warnings = warnings.catch_warnings()
        self._warnings.__enter__()
        warnings.simplefilter("ignore")  # what counts is the result; nbgrader takes any warning for a failure
        return self

    def __exit__(self, kind, error, trace):
        self._warnings.__exit__(kind, error, trace)
        if error is None:
            print(f"{self.title}: passed.")
        elif isinstance(error, Exception) and not isinstance(error, CheckFailed):
            raise self._failed(self._told(error)) from None

    def fail(self, sentence, hint=None):
        """End the check with `sentence` and the next step."""
        raise self._failed(sentence, hint)

    def that(self, condition, sentence, hint=None):
        """End the check with `sentence` unless `condition` holds."""
        if not condition:
            self.fail(sentence, hint)

    def array(self, name, value, shape, dtype):
        """`value` must be a NumPy array of finite numbers with this shape and dtype."""
        self.that(value is not None, f"{name} is None.", f"Does the function end with `return {name}`?")
        # a subclass hides entries (masked_array) or multiplies in another way (matrix)
        self.that(type(value) is np.ndarray, f"{name} is a {type(value).__name__}, and should be a NumPy array.")
        self.that(value.shape == tuple(shape), f"{name} has shape {value.shape}, and should have {tuple(shape)}.")
        self.that(
            value.dtype == dtype,
            f"{name} has dtype {value.dtype} and should have {np.dtype(dtype)}, the dtype of the input.",
            "Write constants as Python numbers: a np.float64 number turns a float32 array into float64.",
        )
        self.that(np.isfinite(value).all(), f"{name} holds NaN or an infinity.", "Is something divided by zero?")

    def equal(self, name, value, expected, mistakes=(), rtol=1e-9):
        """`value` must be `expected`, up to rounding.

        Parameters
        ----------
        mistakes : sequence of (sentence, array)
            Wrong values with known causes: if `value` is one of them, its sentence is shown.
        rtol : float, default 1e-9
            The largest difference over the largest entry.
        """
        expected = np.asarray(expected)
        self.array(name, value, expected.shape, value.dtype if isinstance(value, np.ndarray) else expected.dtype)
        if _near(value, expected, rtol):
            return
        for sentence, wrong in mistakes:
            self.that(not _near(value, np.asarray(wrong), rtol), sentence)
        at = np.unravel_index(np.argmax(np.abs(value - expected)), expected.shape)
        place = f" at index {[int(i) for i in at]}" if at else ""
        self.fail(f"{name} is {value[at]:.6g}{place}, and should be {expected[at]:.6g}.")

    def gradients(self, report, causes=()):
        """`report`, of `numtrans.gradcheck.gradcheck`, must pass; else its diagnosis is told.

        Parameters
        ----------
        causes : sequence of (str, str, str)
            A part of a sentence of the diagnosis, what to say if it occurs (empty: the sentence itself), the next step.
        """
        if report:
            return
        for part, sentence, hint in causes:
            for found in report.diagnosis:
                if part in found:
                    self.fail(sentence or f"The gradient check says: {found}", hint)
        wrong = [row.name for row in report.rows if not row.passed]
        told = [found for found in report.diagnosis if found.split(":")[0] in wrong] or report.diagnosis
        self.fail(f"The gradient check says: {told[0]}" if told else report.summary)

    def _failed(self, sentence, hint=None):
        hint = self.hint if hint is None else hint
        return CheckFailed(f"{self.title}: not yet.\n{sentence}" + (f"\nNext step: {hint}" if hint else ""))

    def _told(self, error):
        """An exception of the student's code as a sentence."""
        if isinstance(error, NotImplementedError):
            self.hint = "Write it in the cell of this task, run that cell, then run this one again."
            return f"This is not written yet. {error}"
        if isinstance(error, NameError):
            self.hint = "Run the cells above first, from the top. If that does not help, check the spelling."
            return f"Python does not know a name: {error}."
        return f"Your code stopped with {type(error).__name__}: {error}{self._line(error)}"

    def _line(self, error):
        """The innermost line of the student's code that `error` went through: of the notebook, outside the check."""
        told, trace = "", error.__traceback__
        while trace is not None:
            code = trace.tb_frame.f_code
            if trace.tb_frame.f_globals is self._notebook and code.co_filename != self._cell:
                line = linecache.getline(code.co_filename, trace.tb_lineno).split("  #")[0].strip()
                told = f"\nIt happened in {code.co_name}" + (f", in the line: {line}" if line else "")
            trace = trace.tb_next
        return told


def _near(a, b, rtol):
    return a.shape == b.shape and bool(np.abs(a - b).max(initial=0) <= rtol * np.abs(b).max(initial=0) + 1e-12)
