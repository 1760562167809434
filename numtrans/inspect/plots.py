"""Plots in one style: labelled axes, a title that says what is seen, colours that the colour-blind can tell apart."""

import math

import numpy as np

from numtrans.backend import to_numpy
from numtrans.errors import ConfigError

BLUE, ORANGE = "#0072B2", "#D55E00"  # from the palette of Okabe and Ito


def new_figure(width, height):
    """An empty figure that needs no window system."""
    from matplotlib.figure import Figure  # imported on use: it takes longer to import than the rest of the library

    return Figure(figsize=(width, height), layout="constrained")


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
    figure = new_figure(7, 4)
    axis = figure.add_subplot()
    axis.plot(history["step"], history["loss"], color=BLUE, linewidth=1, label="training batch")
    if history.get("valid_loss"):
        axis.plot(history["valid_step"], history["valid_loss"], "o-", color=ORANGE, label="validation set")
    axis.set(xlabel="step", ylabel="cross-entropy (nats per token)", title=title, yscale="log")
    axis.grid(alpha=0.3)
    axis.legend()
    return _saved(figure, path)


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
    layers = [to_numpy(w) for w in (weights if isinstance(weights, (list, tuple)) else [weights])]
    heads = max(len(layer) for layer in layers)
    columns = min(heads, 4)
    rows = sum(math.ceil(len(layer) / columns) for layer in layers)
    cell = max(2.0, 0.17 * len(keys)), max(1.6, 0.2 * len(queries) + 0.6)
    figure = new_figure(columns * cell[0] + 0.8, rows * cell[1] + 0.6)
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
            axis.set_xticks(np.arange(len(keys)), keys, fontsize=7)
            axis.set_yticks(np.arange(len(queries)), queries, fontsize=7)
            if head % columns == 0:
                axis.set_ylabel("written", fontsize=8)
            axis.set_xlabel("read", fontsize=8)
        row += math.ceil(len(layer) / columns)
    figure.colorbar(image, ax=axes, label="attention weight", shrink=0.8)
    figure.suptitle(title)
    return _saved(figure, path)


def _saved(figure, path):
    if path is not None:
        try:
            figure.savefig(path, dpi=130)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path}: the picture cannot be written: {error}") from error
    return figure
