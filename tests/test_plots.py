"""Every plot: it draws what it is given, carries a description, and says what is wrong with its input."""

import io
import itertools

import numpy as np
import pytest
from PIL import Image

from numtrans.errors import ConfigError, NumtransError
from numtrans.inspect import plots

X = np.linspace(1, 2, 20)
LABELS = dict(xlabel="length (tokens)", ylabel="time (s)", title="Time grows with the square of the length")
FIGURES = {
    "lines": lambda **k: plots.plot_lines(
        {"a": (X, X), "b": (X, X**2, X, X**3)}, points={"data": (X, X)}, **LABELS, **k
    ),
    "panels": lambda **k: plots.plot_panels({"p": dict(lines={"a": (X, X)}), "q": {}, "r": {}}, title="Three", **k),
    "bars": lambda **k: plots.plot_bars(
        {"a": [1, 2], "b": [3, 4]}, categories=["x", "y"], ylabel="s", title="Bars", **k
    ),
    "histograms": lambda **k: plots.plot_histograms({"a": X, "b": X**2}, xlabel="s", title="Two samples", **k),
    "heatmaps": lambda **k: plots.plot_heatmaps(
        {"a": np.eye(3), "b": -np.ones((2, 4))}, xlabel="key", ylabel="query", colorbar="weight", title="Maps", **k
    ),
    "attention": lambda **k: plots.plot_attention(np.full((2, 3, 4), 0.25), "abc", "abcd", title="Heads", **k),
    "loss": lambda **k: plots.plot_loss(
        {"step": [1, 2], "loss": [3.0, 2.0], "valid_step": [2], "valid_loss": [2.5]}, title="The loss falls", **k
    ),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_shows_itself_with_its_description(name):
    png, metadata = FIGURES[name]()._repr_png_()
    image = Image.open(io.BytesIO(png))
    assert image.width == pytest.approx(2 * metadata["width"], abs=2)
    assert np.asarray(image).std() > 0
    assert image.text["Description"] == FIGURES[name]().description()
    assert len(FIGURES[name]().description()) > 5


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_saved(name, tmp_path):
    FIGURES[name](path=tmp_path / "a.png")
    assert Image.open(tmp_path / "a.png").text["Description"]
    FIGURES[name](path=tmp_path / "a.svg")
    with pytest.raises(ConfigError, match="the picture cannot be written"):
        FIGURES[name](path=tmp_path / "no" / "a.png")


@pytest.mark.parametrize("share_scale", [True, False])
def test_signed_colors_are_centered_on_zero(share_scale):
    maps = {"a": np.array([[-1.0, 3.0]]), "b": np.array([[0.5, -0.25]])}
    figure = plots.plot_heatmaps(
        maps, xlabel="x", ylabel="y", colorbar="c", title="t", signed=True, share_scale=share_scale
    )
    limits = [axis.images[0].get_clim() for axis in figure.axes if axis.images and axis.get_title() in maps]
    assert limits == ([(-3, 3), (-3, 3)] if share_scale else [(-3, 3), (-0.5, 0.5)])


def test_curves_hold_the_numbers_they_were_given():
    (axis,) = FIGURES["lines"]().axes
    np.testing.assert_array_equal(axis.lines[2].get_ydata(), X**2)
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["data", "a", "b"]
    assert axis.get_xlabel() == LABELS["xlabel"]


def test_bad_input():
    with pytest.raises(ConfigError, match=r"the curve 'a' has 2 arrays of lengths \[20, 19\]"):
        plots.plot_lines({"a": (X, X[1:])}, **LABELS)
    with pytest.raises(ConfigError, match="'a' has 1 heights, expected 2"):
        plots.plot_bars({"a": [1]}, categories=["x", "y"], ylabel="s", title="t")
    with pytest.raises(ConfigError, match=r"'a' has shape \(3,\)"):
        plots.plot_heatmaps({"a": X[:3]}, xlabel="x", ylabel="y", colorbar="c", title="t")


def test_a_logarithmic_axis_names_the_few_values_it_shows():
    axis = plots.plot_lines({"a": ([128, 512, 2048], [1, 2, 3])}, **LABELS, xscale="log").axes[0]
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["128", "512", "2048"]
    assert not [tick for tick in axis.get_xticklabels(minor=True) if tick.get_text()]
    many = plots.plot_lines({"a": (X, X)}, **LABELS, xscale="log").axes[0]
    assert len(many.get_xticks()) != len(X)


HEAT = dict(xlabel="x", ylabel="y", colorbar="c", title="t")
BARS = dict(ylabel="s", title="t")
REFUSED = {
    "no panel": (lambda: plots.plot_panels({}, title="t"), "empty dict"),
    "a misspelled part": (lambda: plots.plot_panels({"a": {"line": {}}}, title="t"), "'a' has line; known are"),
    "no matrix": (lambda: plots.plot_heatmaps({}, **HEAT), "empty dict"),
    "an empty matrix": (lambda: plots.plot_heatmaps({"a": np.zeros((0, 3))}, **HEAT), r"shape \(0, 3\)"),
    "a matrix of text": (lambda: plots.plot_heatmaps({"a": [["x"]]}, **HEAT), "expected real numbers"),
    "a ragged matrix": (lambda: plots.plot_heatmaps({"a": [[1, 2], [3]]}, **HEAT), "no array of numbers"),
    "names without columns": (lambda: plots.plot_heatmaps({"a": np.eye(2)}, xticks="abc", **HEAT), "3 names"),
    "no sample": (lambda: plots.plot_histograms({}, xlabel="s", title="t"), "empty dict"),
    "a sample with NaN": (lambda: plots.plot_histograms({"a": [1, np.nan]}, xlabel="s", title="t"), "holds NaN"),
    "no bins": (lambda: plots.plot_histograms({"a": X}, bins=0, xlabel="s", title="t"), "bins is 0"),
    "no bars": (lambda: plots.plot_bars({}, categories=[], **BARS), "empty dict"),
    "a table of bars": (lambda: plots.plot_bars({"a": [[1, 2]]}, categories=["x"], **BARS), "2 heights, expected 1"),
    "a list of curves": (lambda: plots.plot_lines([(X, X)], **LABELS), "a list, expected a dict"),
    "a number as a curve": (lambda: plots.plot_lines({"a": 3}, **LABELS), "'a' is a int"),
    "an unknown scale": (lambda: plots.plot_lines({"a": (X, X)}, xscale="cubic", **LABELS), "xscale='cubic'"),
    "nothing for a logarithm": (lambda: plots.plot_lines({"a": (X, -X)}, yscale="log", **LABELS), "no positive number"),
    "points that do not pair": (lambda: plots.plot_lines({}, points={"a": (X, X[1:])}, **LABELS), "expected one shape"),
    "no heads": (lambda: plots.plot_attention(np.zeros((0, 2, 2)), "ab", "ab"), "1 or more, 2, 2"),
    "no layer": (lambda: plots.plot_attention([], "ab", "ab"), "no layer"),
    "one head without its axis": (lambda: plots.plot_attention(np.eye(2), "ab", "ab"), "expected .heads, queries"),
    "labels that do not fit": (lambda: plots.plot_attention(np.eye(2)[None], "abc", "a"), "1 or more, 3, 1"),
    "no history": (lambda: plots.plot_loss({}), "the history needs"),
    "a history of two lengths": (lambda: plots.plot_loss({"step": [1, 2], "loss": [1.0]}), "of one length"),
    "a file without an ending": (lambda: FIGURES["loss"](path="picture"), "no ending"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_drawn_is_refused_in_a_sentence(what):
    call, says = REFUSED[what]
    with pytest.raises(NumtransError, match=says):
        call()


def test_tokens_are_not_read_as_formulas():
    plots.plot_attention(np.eye(2)[None], ["$", "$\\frac$"], ["$$", "a_$b$"])._repr_png_()


@pytest.mark.parametrize(
    "matrix", [np.eye(2, dtype=bool), np.full((2, 2), 200, np.uint8), np.full((2, 2), -128, np.int8)]
)
def test_signed_colors_of_small_integers_do_not_overflow(matrix):
    figure = plots.plot_heatmaps({"a": matrix}, signed=True, **HEAT)
    most = max(abs(int(value)) for value in matrix.ravel())
    assert figure.axes[0].images[0].get_clim() == (-most, most)


def test_a_matrix_without_finite_numbers_is_drawn_empty(recwarn):
    plots.plot_heatmaps({"a": [[np.nan, -np.inf]]}, **HEAT)._repr_png_()
    assert not recwarn


def test_words_under_an_attention_map_do_not_overlap():
    words = ["[CLS]", "because", "it", "was", "too", "tired", "[SEP]"]
    figure = plots.plot_attention(np.full((3, 7, 7), 1 / 7), words, words)
    figure.canvas.draw()
    boxes = [label.get_window_extent() for label in figure.axes[0].get_xticklabels()]
    assert all(left.x1 <= right.x0 for left, right in itertools.pairwise(boxes))
    assert (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()) == ("key", "query")
