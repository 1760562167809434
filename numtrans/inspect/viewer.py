"""A view of attention heads as one string of HTML, SVG and JavaScript, which needs no network and no other file.

Shapes: ``H`` heads, ``Tq`` queries, ``Tk`` keys.
"""

import html
import importlib.resources
import json
import re
from pathlib import Path

import numpy as np

from numtrans.checkpoint import write_text
from numtrans.errors import ConfigError, ShapeError
from numtrans.inspect.attention import checked_weights

MAX_WEIGHTS = 1_000_000  # of all heads together: about 3 MB of HTML


class AttentionView(str):
    """The HTML of `attention_html`: a string, which a notebook shows as the view."""

    weights: list
    queries: list
    keys: list
    title: str

    def figure(self, path=None):
        """The same weights as a Matplotlib figure, for where no script runs; see `numtrans.inspect.plots`."""
        from numtrans.inspect.plots import plot_attention  # loads Matplotlib, which the view does not need

        return plot_attention(self.weights, self.queries, self.keys, path, title=self.title)

    def _repr_html_(self):
        # A frame: its script runs where HTML is put into a page that exists, and no name can meet one of the page.
        height = min(760, 180 + 66 * len(self.weights) + 24 * max(len(self.queries), len(self.keys)))
        return (
            f'<iframe title="{html.escape(self.title)}" srcdoc="{html.escape(self)}" '
            f'style="width: 100%; height: {height}px; border: 0; background: transparent">'
            "The view of attention heads needs a frame with JavaScript; .figure() gives a picture.</iframe>"
        )


def attention_html(weights, tokens, keys=None, *, title="Attention"):
    """A page in which a reader looks at heads: choose a layer, a head and a query, see the weight of each key.

    Works from the disk, in a notebook (JupyterLab, VS Code) and in a static page, with mouse, touch and keyboard. It
    follows the light or dark ground around it.

    Parameters
    ----------
    weights : array (H, Tq, Tk), or a list of such arrays, one a layer
        Such as ``attn.attention_weights[0]``; each row sums to 1, or is 0. A batch of one, (1, H, Tq, Tk), will do.
        Shown to three digits.
    tokens : sequence of str
        The queries, and the keys unless `keys` is given.
    keys : sequence of str, optional
        The keys of cross-attention.
    title : str
        The heading.

    Returns
    -------
    AttentionView
        A str, the whole document. As the last value of a notebook cell it shows itself; ``.figure()`` is a picture of
        the same weights.

    Raises
    ------
    ShapeError
        If weights and tokens do not fit together.
    ConfigError
        If rows do not sum to 1 or 0, or there are more than ``MAX_WEIGHTS`` weights.
    """
    queries, keys = _labels(tokens), _labels(tokens if keys is None else keys)
    layers = _layers(weights, queries, keys)
    size = sum(layer.size for layer in layers)
    if size > MAX_WEIGHTS:
        raise ConfigError(
            f"attention_html: {size:,} weights ({sum(map(len, layers))} heads, {len(queries)} queries, {len(keys)} "
            f"keys), expected at most {MAX_WEIGHTS:,}, which a browser shows with ease; give fewer layers or tokens"
        )
    title = _readable(title)
    thousandths = [[np.rint(head * 1000).astype(int).ravel().tolist() for head in layer] for layer in layers]
    data = json.dumps({"queries": queries, "keys": keys, "layers": thousandths}, separators=(",", ":"))
    for sign in "<>&":  # so that no token can end the script
        data = data.replace(sign, f"\\u{ord(sign):04x}")
    template = importlib.resources.files("numtrans.inspect").joinpath("viewer.html").read_text(encoding="utf-8")
    parts = {"title": html.escape(title), "data": data}
    view = AttentionView(re.sub(r"\{\{(title|data)\}\}", lambda match: parts[match[1]], template))
    view.weights, view.queries, view.keys, view.title = layers, queries, keys, title
    return view


def write_attention(path, weights, tokens, keys=None, *, title="Attention"):
    """Write `attention_html` to a path that ends in ``.html``, else the picture of `plot_attention`.

    Parameters
    ----------
    path : str or Path
        With the ending of what is wanted: .html, or .png, .svg, .pdf.
    weights, tokens, keys, title
        As for `attention_html`.
    """
    if Path(path).suffix.lower() in (".html", ".htm"):
        write_text(path, attention_html(weights, tokens, keys, title=title))
        return
    from numtrans.inspect.plots import plot_attention

    queries, keys = _labels(tokens), _labels(tokens if keys is None else keys)
    plot_attention(_layers(weights, queries, keys), queries, keys, path, title=_readable(title))


def _layers(weights, queries, keys):
    """`weights` as a list of float64 arrays (H, Tq, Tk)."""
    layers = []
    for number, layer in enumerate(weights if isinstance(weights, (list, tuple)) else [weights], 1):
        P, _ = checked_weights(layer, None)                                 # (B, H, Tq, Tk)
        if len(P) != 1 or not P.shape[1] or P.shape[2:] != (len(queries), len(keys)):
            raise ShapeError(
                f"attention: the weights of layer {number} have shape {np.shape(layer)}, expected (heads, queries, "
                f"keys) = (1 or more, {len(queries)}, {len(keys)}), of one text"
            )
        layers.append(P[0])
    if not layers or not queries or not keys:
        raise ShapeError("attention: there is no layer, no query or no key")
    return layers


def _labels(tokens):
    """Tokens as they are shown: none is empty, and blanks that one would not see have a sign."""
    if not hasattr(tokens, "__len__"):  # an iterator would be empty when it is read again, for the keys
        raise ShapeError(f"attention: tokens are a {type(tokens).__name__}, expected a sequence of strings")
    labels = []
    for token in map(str, tokens):
        shown = token.translate({ord("\n"): "\u21b5", ord("\r"): "\u240d", ord("\t"): "\u21e5", 0: "\u2400"})
        core = shown.strip(" ")
        left = len(shown) - len(shown.lstrip(" "))
        right = len(shown) - left - len(core)
        labels.append(_readable("\u2423" * left + core + "\u2423" * right) or "\u2205")
    return labels


def _readable(text):
    """`text` without what UTF-8 cannot hold: half of a pair of surrogates, as bytes of a broken token give."""
    return str(text).encode("utf-8", "replace").decode("utf-8")
