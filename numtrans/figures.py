"""The style of every picture: sizes, colors that the color-blind can tell apart, and how a figure shows itself."""

import io
import textwrap
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from numtrans.errors import ConfigError

# the palette of Okabe and Ito (2008), without yellow, which is too pale for lines
BLUE, ORANGE, GREEN, PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
SKY, AMBER, BLACK = "#56B4E9", "#E69F00", "#000000"
COLORS = (BLUE, ORANGE, GREEN, PINK, SKY, AMBER, BLACK)
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)), "-")
SCREEN_DPI, FILE_DPI = 100, 200


class Picture(Figure):
    """A Matplotlib figure that needs no window and no `pyplot`, and shows itself as the last value of a notebook cell.

    The image carries its titles as the PNG text ``Description``, from which the site takes the alternative text.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        FigureCanvasAgg(self)

    def description(self):
        """The titles and the axis labels, as one line of text."""
        parts = [self.get_suptitle()]
        for axis in self.axes:
            axes = ", ".join(label for label in (axis.get_xlabel(), axis.get_ylabel()) if label)
            parts.append(f"{axis.get_title()} ({axes})" if axes else axis.get_title())
        return ". ".join(" ".join(part.split()) for part in dict.fromkeys(parts) if part.strip())

    def _repr_png_(self):
        image = io.BytesIO()
        # twice the pixels of the screen, shown at half the size: sharp on any display
        self.savefig(image, format="png", dpi=FILE_DPI, metadata={"Description": self.description()})
        return image.getvalue(), {"width": round(self.get_figwidth() * SCREEN_DPI)}


def new_figure(width, height):
    """An empty `Picture` of `width` by `height` inches."""
    return Picture(figsize=(width, height), layout="constrained")


def wrapped(title, width_inches):
    """`title` broken into lines that fit a figure of this width."""
    return "\n".join(textwrap.fill(line, max(20, int(width_inches * 11))) for line in title.splitlines())


def saved(figure, path):
    """`figure`, after writing it to `path` unless that is None.

    Raises
    ------
    ConfigError
        If it cannot be written there.
    """
    if path is not None:
        if not Path(path).suffix:  # Matplotlib would write to another name
            raise ConfigError(f"{path}: the picture cannot be written: the name has no ending, such as .png")
        try:
            figure.savefig(path, dpi=130, metadata={"Description": figure.description()} if is_png(path) else None)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path}: the picture cannot be written: {error}") from error
    return figure


def is_png(path):
    """Whether `path` names a PNG file, the only kind here that can hold a description."""
    return str(path).lower().endswith(".png")
