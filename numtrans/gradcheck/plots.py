"""Pictures of a gradient check. Matplotlib is imported when one is drawn, not before."""

import numpy as np

from numtrans.figures import AMBER, BLUE, GREEN, ORANGE, new_figure, saved

MARKS = {"forward": (AMBER, "s"), "central": (BLUE, "o"), "complex": (GREEN, "^")}


def plot_report(report, path=None, limit=8):
    """See `GradCheckReport.plot`."""
    rows = [row for row in report.rows if row.analytic is not None and row.numeric is not None]
    rows = sorted(rows, key=lambda row: row.passed)[:limit]
    figure = new_figure(9, 3.2 * max(1, len(rows)))
    figure.suptitle(f"Gradient check of {report.title}: {'pass' if report.passed else 'fail'}")
    if not rows:
        return saved(figure, path)
    axes = figure.subplots(len(rows), 2, squeeze=False)
    for (left, right), row in zip(axes, rows, strict=True):
        _scatter(left, row)
        _difference(figure, right, row)
    return saved(figure, path)


def _scatter(axis, row):
    known = np.isfinite(row.numeric)
    analytic, numeric = row.analytic[known], row.numeric[known]
    if analytic.size:
        ends = [min(analytic.min(), numeric.min()), max(analytic.max(), numeric.max())]
        axis.plot(ends, ends, color="black", linewidth=0.8, label="equal")
    axis.plot(numeric, analytic, ".", color=BLUE if row.passed else ORANGE, label="coordinates")
    axis.set(xlabel="numeric gradient", ylabel="analytic gradient", title=f"{row.kind} {row.name}: {row.verdict}")
    axis.legend(fontsize="small")


def _difference(figure, axis, row):
    difference = np.abs(row.analytic - row.numeric)
    if difference.ndim >= 2:
        table = np.ma.masked_invalid(difference.reshape(-1, difference.shape[-1]))
        image = axis.imshow(table, aspect="auto", cmap="cividis", interpolation="nearest")
        axis.set_facecolor("lightgray")
        figure.colorbar(image, ax=axis, label="|analytic - numeric|")
        rows = "row" if difference.ndim == 2 else f"row (axes 0 to {difference.ndim - 2} flattened)"
        axis.set(xlabel="column", ylabel=rows)
    else:
        axis.plot(difference.reshape(-1), "o", color=BLUE if row.passed else ORANGE)
        axis.set(xlabel="index", ylabel="|analytic - numeric|")
    axis.set_title(f"{row.name}: where they differ" + (" (gray: not checked)" if np.isnan(difference).any() else ""))


def plot_study(study, path=None):
    """See `StepSizeStudy.plot`."""
    figure = new_figure(6.4, 4.2)
    axis = figure.subplots()
    for method, errors in study.errors.items():
        color, marker = MARKS[method]
        axis.loglog(study.steps, np.maximum(errors, 1e-17), marker=marker, color=color, markersize=4, label=method)
    axis.set(xlabel="step size h", ylabel="relative error of the slope", title=f"Numeric differences of {study.title}")
    axis.grid(True, which="major", color="lightgray")
    axis.legend()
    return saved(figure, path)
