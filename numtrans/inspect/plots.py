"""Plots in one style: labelled axes, a title that says what is seen, colors that the color-blind can tell apart."""

import math

import numpy as np
from matplotlib.scale import get_scale_names

from numtrans.backend import to_numpy
from numtrans.errors import ConfigError, ShapeError
from numtrans.figures import BLUE, COLORS, DASHES, ORANGE, new_figure, saved, wrapped

WIDTH = 7.2  # inches: the width of a page of text


def _numbers(where, values):
    """`values` as a NumPy array of real numbers, float64 so that no arithmetic of a plot overflows."""
    try:
        array = to_numpy(values)
    except ValueError as error:  # rows of different lengths
        raise ConfigError(f"{where}: no array of numbers: {error}") from error
    if array.dtype.kind not in "biuf":
        raise ConfigError(f"{where}: {type(values).__name__} of dtype {array.dtype}, expected real numbers")
    return array.astype(np.float64)


def _check_dict(where, value, *, what):
    if not isinstance(value, dict) or not value:
        given = "an empty dict" if isinstance(value, dict) else f"a {type(value).__name__}"
        raise ConfigError(f"{where}: {given}, expected a dict with a label for each {what}")


def _check_scale(where, **scales):
    for name, scale in scales.items():
        if scale not in get_scale_names():
            raise ConfigError(f"{where}: {name}={scale!r}, expected one of {', '.join(get_scale_names())}")


def plot_loss(history, path=None, *, title="Loss during training"):
    """The training loss at each logged step, and the validation loss where there is one.

    Parameters
    ----------
    history : dict
        `Trainer.history`.
    path : str or Path, optional
        Where to save the figure.
    title : str

    Returns
    -------
    matplotlib.figure.Figure
    """
    for step, loss in (("step", "loss"), ("valid_step", "valid_loss")):
        if len(history.get(step, ())) != len(history.get(loss, ())) or "loss" not in history:
            raise ConfigError(f"plot_loss: the history needs {step!r} and {loss!r}, of one length (Trainer.history)")
    figure = new_figure(WIDTH, 4)
    axis = figure.add_subplot()
    axis.plot(history["step"], history["loss"], color=BLUE, linewidth=1, label="training batch")
    if history.get("valid_loss"):
        axis.plot(history["valid_step"], history["valid_loss"], "o-", color=ORANGE, label="validation set")
    axis.set(xlabel="step", ylabel="cross-entropy (nats per token)", title=wrapped(title, WIDTH), yscale="log")
    axis.grid(alpha=0.3)
    axis.legend()
    return saved(figure, path)


def plot_attention(weights, queries, keys, path=None, *, title="Attention"):
    """One picture a head: which key (across) each query (down) attends to.

    Parameters
    ----------
    weights : array (heads, Tq, Tk), or a list of such arrays, one a layer
        Rows sum to one.
    queries, keys : sequences of str
        Labels of the rows and the columns.
    path : str or Path, optional
        Where to save the figure.
    title : str

    Returns
    -------
    matplotlib.figure.Figure
    """
    layers = [_numbers("plot_attention", w) for w in (weights if isinstance(weights, (list, tuple)) else [weights])]
    for number, layer in enumerate(layers, 1):
        if layer.ndim != 3 or not len(layer) or layer.shape[1:] != (len(queries), len(keys)):
            raise ShapeError(
                f"plot_attention: the weights of layer {number} have shape {layer.shape}, "
                f"expected (heads, queries, keys) = (1 or more, {len(queries)}, {len(keys)})"
            )
    if not layers or not len(queries) or not len(keys):
        raise ShapeError("plot_attention: there is no layer, no query or no key")
    heads = max(len(layer) for layer in layers)
    columns = min(heads, 4)
    rows = sum(math.ceil(len(layer) / columns) for layer in layers)
    longest = max(len(str(key)) for key in keys)  # words under the columns stand upright, or they would overlap
    cell = max(2.0, 0.17 * len(keys)), max(1.6, 0.2 * len(queries) + 0.6) + (0.06 * longest if longest > 2 else 0)
    names = ("query", "key") if list(queries) == list(keys) else ("written", "read")
    width = columns * cell[0] + 0.8
    figure = new_figure(width, rows * cell[1] + 0.6)
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.axis("off")
    row = 0
    for number, layer in enumerate(layers, 1):
        for head, picture in enumerate(layer):
            axis = axes[row + head // columns, head % columns]
            axis.axis("on")
            image = axis.imshow(picture, cmap="cividis", vmin=0, vmax=1, aspect="auto")
            axis.set_title(f"layer {number}, head {head + 1}", fontsize=9)
            axis.set_xticks(np.arange(len(keys)), keys, fontsize=7, parse_math=False,  # a token may be $
                            rotation=90 if longest > 2 else 0)  # fmt: skip
            axis.set_yticks(np.arange(len(queries)), queries, fontsize=7, parse_math=False)
            if head % columns == 0:
                axis.set_ylabel(names[0], fontsize=8)
            axis.set_xlabel(names[1], fontsize=8)
        row += math.ceil(len(layer) / columns)
    figure.colorbar(image, ax=axes, label="attention weight", shrink=0.8)
    figure.suptitle(wrapped(title, width))
    return saved(figure, path)


def plot_lines(lines, *, xlabel, ylabel, title, points=None, xscale="linear", yscale="linear", path=None):
    """Curves over one pair of axes, each with a color and a dash of its own.

    Parameters
    ----------
    lines : dict
        Label of each curve and its ``(x, y)``, or ``(x, y, low, high)`` with a band from `low` to `high`.
    xlabel, ylabel, title : str
        Quantities with their units, and the finding.
    points : dict, optional
        Label and ``(x, y)`` of what is drawn as dots.
    xscale, yscale : str, default "linear"
        Scales of Matplotlib: "linear", "log", "symlog".
    path : str or Path, optional
        Where to save the figure.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ConfigError
        If a curve is not two or four arrays of one length.
    """
    figure = new_figure(WIDTH, 4)
    _draw_lines(figure.add_subplot(), lines, points, xlabel, ylabel, xscale, yscale, wrapped(title, WIDTH))
    return saved(figure, path)


def plot_panels(panels, *, title, share_y=False, path=None):
    """Several `plot_lines` side by side, two or three in a row.

    Parameters
    ----------
    panels : dict
        Title of each panel and a dict of the arguments of `plot_lines` that it needs: ``lines``, ``points``,
        ``xlabel``, ``ylabel``, ``xscale``, ``yscale``.
    title : str
        The finding.
    share_y : bool, default False
        One vertical scale for all.
    path : str or Path, optional
        Where to save the figure.

    Returns
    -------
    matplotlib.figure.Figure
    """
    _check_dict("plot_panels", panels, what="panel")
    known = {"lines", "points", "xlabel", "ylabel", "xscale", "yscale"}
    for name, panel in panels.items():
        if unknown := sorted(set(panel) - known):
            raise ConfigError(f"plot_panels: {name!r} has {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    columns = min(len(panels), 2 if len(panels) in (2, 4) else 3)
    rows = math.ceil(len(panels) / columns)
    figure = new_figure(WIDTH * 1.25, 3.4 * rows + 0.4)
    axes = figure.subplots(rows, columns, squeeze=False, sharey=share_y)
    for axis in axes.flat[len(panels) :]:
        axis.axis("off")
    for axis, (name, panel) in zip(axes.flat, panels.items()):
        _draw_lines(
            axis, panel.get("lines", {}), panel.get("points"), panel.get("xlabel", ""), panel.get("ylabel", ""),
            panel.get("xscale", "linear"), panel.get("yscale", "linear"), wrapped(name, WIDTH / columns),
        )  # fmt: skip
    figure.suptitle(wrapped(title, WIDTH * 1.25))
    return saved(figure, path)


def _draw_lines(axis, lines, points, xlabel, ylabel, xscale, yscale, title):
    _check_scale("plot", xscale=xscale, yscale=yscale)
    for what, given in (("curve", lines), ("set of points", points or {})):
        if given or not isinstance(given, dict):
            _check_dict("plot", given, what=what)
    number = 0
    for label, pair in (points or {}).items():
        x, y = (_numbers(f"plot: the points {label!r}", part) for part in pair)
        if x.shape != y.shape:
            raise ConfigError(f"plot: the points {label!r} have shapes {x.shape} and {y.shape}, expected one shape")
        axis.plot(x, y, ".", color="gray" if lines else COLORS[number % 7], label=label, alpha=0.7)
        number += not lines
    for number, (label, line) in enumerate(lines.items()):
        if not isinstance(line, (tuple, list, np.ndarray)):
            raise ConfigError(f"plot: the curve {label!r} is a {type(line).__name__}, expected (x, y)")
        line = [np.atleast_1d(_numbers(f"plot: the curve {label!r}", part)) for part in line]
        if len(line) not in (2, 4) or len({len(part) for part in line}) != 1:
            raise ConfigError(
                f"plot: the curve {label!r} has {len(line)} arrays of lengths {[len(part) for part in line]}, "
                "expected (x, y) or (x, y, low, high) of one length"
            )
        x, y, *band = line
        for name, scale, values in (("xscale", xscale, x), ("yscale", yscale, y)):
            if scale == "log" and len(values) and not (values > 0).any():
                raise ConfigError(f"plot: the curve {label!r} has no positive number, which {name}='log' needs")
        style = dict(color=COLORS[number % 7], linestyle=DASHES[number % 7])
        axis.plot(x, y, **style, marker="o" if len(x) <= 12 else None, markersize=4, label=label)
        if band:
            axis.fill_between(x, *band, color=style["color"], alpha=0.2, linewidth=0)
    axis.set(xlabel=xlabel, ylabel=ylabel, title=title, xscale=xscale, yscale=yscale)
    if xscale == "log":
        _ticks_at(axis, np.unique(np.concatenate([_numbers("plot", line[0]) for line in lines.values()] or [[]])))
    axis.grid(alpha=0.3)
    if len(lines) + len(points or {}) > 1:
        axis.legend(fontsize=9)


def _ticks_at(axis, values):
    """Name the few values that a logarithmic axis shows; of many, leave the powers of ten to Matplotlib."""
    steps = np.diff(np.log(values)) if len(values) > 1 and values[0] > 0 else np.zeros(1)
    if len(values) <= 8 and steps.min() > steps.sum() / 10:  # no two names on top of each other
        axis.set_xticks(values, [f"{value:g}" for value in values])
        axis.set_xticks([], minor=True)


def plot_bars(bars, *, categories, ylabel, title, xlabel="", yscale="linear", path=None):
    """Groups of bars: one group a category, one bar a series in it.

    Parameters
    ----------
    bars : dict
        Label of each series and its heights, one a category.
    categories : sequence of str
        Names under the groups.
    ylabel, title, xlabel : str
        Quantity with its unit, the finding, and what the categories are.
    yscale : str, default "linear"
    path : str or Path, optional
        Where to save the figure.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ConfigError
        If a series does not have one height per category.
    """
    _check_dict("plot_bars", bars, what="series")
    _check_scale("plot_bars", yscale=yscale)
    bars = {label: np.atleast_1d(_numbers(f"plot_bars: {label!r}", heights)) for label, heights in bars.items()}
    figure = new_figure(WIDTH, 4)
    axis = figure.add_subplot()
    places, width = np.arange(len(categories)), 0.8 / max(1, len(bars))
    for number, (label, heights) in enumerate(bars.items()):
        if heights.ndim != 1 or len(heights) != len(categories):
            raise ConfigError(f"plot_bars: {label!r} has {heights.size} heights, expected {len(categories)}")
        offset = (number - (len(bars) - 1) / 2) * width
        axis.bar(places + offset, heights, width, label=label, color=COLORS[number % 7])
    long = sum(len(str(name)) for name in categories) > 75
    names = [str(name) for name in categories]
    axis.set_xticks(places, names, rotation=35 if long else 0, ha="right" if long else "center")
    axis.set(xlabel=xlabel, ylabel=ylabel, title=wrapped(title, WIDTH), yscale=yscale)
    axis.grid(axis="y", alpha=0.3)
    axis.set_axisbelow(True)
    if len(bars) > 1:
        axis.legend(fontsize=9)
    return saved(figure, path)


def plot_histograms(samples, *, xlabel, title, bins=60, path=None):
    """The distributions of several samples over one axis, each scaled to area one.

    Parameters
    ----------
    samples : dict
        Label and numbers of each sample.
    xlabel, title : str
        Quantity with its unit, and the finding.
    bins : int, default 60
    path : str or Path, optional
        Where to save the figure.

    Returns
    -------
    matplotlib.figure.Figure
    """
    _check_dict("plot_histograms", samples, what="sample")
    numbers = {label: _numbers(f"plot_histograms: {label!r}", sample).ravel() for label, sample in samples.items()}
    figure = new_figure(WIDTH, 4)
    axis = figure.add_subplot()
    for label, sample in numbers.items():
        if not sample.size or not np.isfinite(sample).all():
            raise ConfigError(f"plot_histograms: {label!r} is empty, or holds NaN or an infinity")
    if not isinstance(bins, (int, np.integer)) or bins < 1:
        raise ConfigError(f"plot_histograms: bins is {bins!r}, expected a positive whole number")
    edges = np.histogram_bin_edges(np.concatenate(list(numbers.values())), bins)
    for number, (label, sample) in enumerate(numbers.items()):
        style = dict(color=COLORS[number % 7], linestyle=DASHES[number % 7])
        axis.hist(sample, edges, density=True, histtype="step", linewidth=1.6, label=label, **style)
    axis.set(xlabel=xlabel, ylabel="density", title=wrapped(title, WIDTH))
    axis.grid(alpha=0.3)
    if len(samples) > 1:
        axis.legend(fontsize=9)
    return saved(figure, path)


def plot_heatmaps(
    matrices, *, xlabel, ylabel, colorbar, title, signed=False, xticks=None, yticks=None, share_scale=True, path=None
):
    """Matrices as colors, side by side.

    Parameters
    ----------
    matrices : dict
        Title and 2-D array of each panel.
    xlabel, ylabel : str
        What the columns and the rows are.
    colorbar, title : str
        Quantity with its unit, and the finding.
    signed : bool, default False
        Center the colors on zero: blue below, red above.
    xticks, yticks : sequences of str, optional
        Names of the columns and the rows.
    share_scale : bool, default True
        One color scale for all panels; otherwise each has a color bar of its own.
    path : str or Path, optional
        Where to save the figure.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ConfigError
        If a matrix does not have two axes.
    """
    _check_dict("plot_heatmaps", matrices, what="matrix")
    arrays = {name: _numbers(f"plot_heatmaps: {name!r}", matrix) for name, matrix in matrices.items()}
    for name, array in arrays.items():
        if array.ndim != 2 or not array.size:
            raise ConfigError(f"plot_heatmaps: {name!r} has shape {array.shape}, expected (rows, columns)")
    for what, names, axis in (("yticks", yticks, 0), ("xticks", xticks, 1)):
        if names is not None and len(names) > (most := max(array.shape[axis] for array in arrays.values())):
            raise ConfigError(f"plot_heatmaps: {what} has {len(names)} names, expected at most {most}")
    columns = min(len(arrays), 4 if len(arrays) % 4 == 0 else 3)
    rows = math.ceil(len(arrays) / columns)
    width = WIDTH * (1 if columns < 3 else 1.25)
    figure = new_figure(width, rows * min(4.2, width / columns) + 0.6)
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat[len(arrays) :]:
        axis.axis("off")
    shared = _limits(list(arrays.values()), signed)
    for axis, (name, array) in zip(axes.flat, arrays.items()):
        low, high = shared if share_scale else _limits([array], signed)
        image = axis.imshow(array, cmap="RdBu_r" if signed else "cividis", vmin=low, vmax=high, aspect="auto",
                            interpolation="nearest")  # fmt: skip
        axis.set(xlabel=xlabel, ylabel=ylabel)
        axis.set_title(wrapped(name, width / columns), fontsize=10)
        if xticks is not None:
            axis.set_xticks(np.arange(len(xticks)), xticks, fontsize=8)
        if yticks is not None:
            axis.set_yticks(np.arange(len(yticks)), yticks, fontsize=8)
        if not share_scale:
            figure.colorbar(image, ax=axis, label=colorbar)
    if share_scale:
        figure.colorbar(image, ax=axes, label=colorbar, shrink=0.9)
    figure.suptitle(wrapped(title, width))
    return saved(figure, path)


def _limits(arrays, signed):
    finite = np.concatenate([array[np.isfinite(array)] for array in arrays] + [np.zeros(0)])
    if not finite.size:
        return -1.0, 1.0  # nothing has a color
    low, high = finite.min(), finite.max()
    if signed:
        high = max(abs(low), abs(high))
        low = -high
    return low, high
