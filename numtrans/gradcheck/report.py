"""What a gradient check found: one row for each tensor, one line for each property, and a diagnosis."""

import html
from dataclasses import dataclass, field

import numpy as np


@dataclass
class Row:
    """The check of one tensor.

    Attributes
    ----------
    name : str
        Argument name of an input, path of a parameter.
    kind : {"input", "parameter"}
    shape : tuple of int
    checked : int
        Coordinates and random directions that were compared.
    kinks : int
        Coordinates and directions that were left out or redrawn because the one-sided slopes disagree there.
    error : float
        Relative error (see `numtrans.gradcheck.gradcheck`); NaN if nothing could be compared.
    float32_error : float
        Relative difference between the float32 gradient and the float64 one; NaN if not compared.
    verdict : str
        ``"pass"``, or what is wrong.
    worst : tuple of int or None
        Index of the largest difference among the coordinates, with its two numbers `worst_analytic`, `worst_numeric`.
    analytic : ndarray or None
        The gradient from backward.
    numeric : ndarray
        The numeric gradient; NaN where it was not computed.
    shares : list of ndarray or None
        Of a failing tensor, the numeric gradient by slices of the output (see `numeric.full_gradient`).
    """

    name: str
    kind: str
    shape: tuple
    checked: int = 0
    kinks: int = 0
    error: float = float("nan")
    float32_error: float = float("nan")
    verdict: str = "pass"
    worst: tuple | None = None
    worst_analytic: float = float("nan")
    worst_numeric: float = float("nan")
    analytic: np.ndarray | None = field(default=None, repr=False)
    numeric: np.ndarray | None = field(default=None, repr=False)
    shares: list | None = field(default=None, repr=False)

    @property
    def passed(self):
        """True if the verdict is "pass"."""
        return self.verdict == "pass"

    def cells(self):
        """The row of the table, as strings."""
        size = int(np.prod(self.shape, dtype=int))
        verdict = self.verdict if self.passed else f"FAIL: {self.verdict}"
        if self.kinks:
            verdict += f" (kinks: {self.kinks})"
        worst = "-"
        if self.worst is not None:
            worst = f"{list(self.worst)}: {self.worst_analytic:+.8e} {self.worst_numeric:+.8e}"
        return [
            f"{self.kind} {self.name}" if not self.name.startswith(self.kind) else self.name,
            str(tuple(self.shape)),
            f"{self.checked} of {size}" if self.checked <= size else str(self.checked),
            _number(self.error),
            _number(self.float32_error),
            verdict,
            worst,
        ]


@dataclass
class Property:
    """One thing that backward must do besides being right, and whether it does; `detail` says what came instead."""

    name: str
    passed: bool
    detail: str = ""


HEADER = ["tensor", "shape", "checked", "error", "float32", "verdict", "worst index: analytic, numeric"]


class GradCheckReport:
    """The result of `gradcheck`: true when every tensor and every property passes; ``str()`` gives the table.

    Parameters
    ----------
    title : str
        Name of the module's class.
    rows : list of Row
    properties : list of Property
    diagnosis : list of str
        Plain sentences on what is probably wrong; empty when all passes.
    method : str
    tolerance : float
    """

    def __init__(self, title, rows, properties, diagnosis, *, method, tolerance):
        self.title, self.rows, self.properties, self.diagnosis = title, rows, properties, diagnosis
        self.method, self.tolerance = method, tolerance

    @property
    def passed(self):
        """True if every row and every property passes."""
        return all(row.passed for row in self.rows) and all(p.passed for p in self.properties)

    def __bool__(self):
        return self.passed

    def __getitem__(self, name):
        """The row of the tensor `name`."""
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(f"no tensor {name!r} in this report, expected one of {[row.name for row in self.rows]}")

    @property
    def summary(self):
        """One line: what was checked, how, and the outcome."""
        failed = [row.name for row in self.rows if not row.passed] + [p.name for p in self.properties if not p.passed]
        outcome = "pass" if not failed else f"FAIL ({', '.join(failed)})"
        return f"gradient check of {self.title}, {self.method} differences, tolerance {self.tolerance:.0e}: {outcome}"

    def __str__(self):
        table = [HEADER] + [row.cells() for row in self.rows]
        widths = [max(len(line[i]) for line in table) for i in range(len(HEADER))]
        lines = [self.summary, ""]
        for k, line in enumerate(table):
            lines.append("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
            if k == 0:
                lines.append("  ".join("-" * width for width in widths))
        lines.append("")
        for p in self.properties:
            lines.append(f"{'pass' if p.passed else 'FAIL'}  {p.name}" + (f": {p.detail}" if p.detail else ""))
        if self.diagnosis:
            lines += ["", "diagnosis:"] + [f"- {sentence}" for sentence in self.diagnosis]
        return "\n".join(lines)

    def __repr__(self):
        return f"<GradCheckReport: {self.summary}>"

    def _repr_html_(self):
        def line(cells, tag):
            return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

        parts = [f"<p>{html.escape(self.summary)}</p>", "<table>", line(HEADER, "th")]
        parts += [line(row.cells(), "td") for row in self.rows]
        parts += ["</table>", "<ul>"]
        for p in self.properties:
            text = f"{'pass' if p.passed else 'FAIL'}: {p.name}" + (f" ({p.detail})" if p.detail else "")
            parts.append(f"<li>{html.escape(text)}</li>")
        parts.append("</ul>")
        if self.diagnosis:
            items = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in self.diagnosis)
            parts.append(f"<p>Diagnosis</p><ul>{items}</ul>")
        return "".join(parts)

    def plot(self, path=None, *, limit=8):
        """Draw, for each tensor, analytic against numeric, and where they differ.

        Parameters
        ----------
        path : str or path, optional
            Where to save the figure.
        limit : int, default 8
            Draw at most this many tensors, failing ones first.

        Returns
        -------
        matplotlib.figure.Figure
        """
        from numtrans.gradcheck.plots import plot_report

        return plot_report(self, path, limit)


def _number(value):
    return "-" if np.isnan(value) else f"{value:.1e}"
