"""What the site of numtrans adds to Sphinx.

- The role ``name``, the default in docstrings: single backticks become a link where the name is documented, and code
  where it is not, such as the name of an argument.
- Displayed formulas of several parts, one part a line.
- The alternative text of each figure in a notebook, which numtrans writes into the PNG (text chunk "Description").
- The line that opens a folded cell: the first comment of the cell, such as "Solution of exercise 3.1".
- The order in which documents are read: notebooks, which take long, are spread over the processes.
"""

import re
from pathlib import Path

from docutils import nodes
from PIL import Image
from sphinx import addnodes
from sphinx.util import logging
from sphinx.util.nodes import make_refnode

logger = logging.getLogger(__name__)


# ---- names in docstrings


def name_role(role, rawtext, text, lineno, inliner, options=None, content=()):
    """A reference to the Python object `text`, of which nobody complains if it is not documented."""
    context = inliner.document.settings.env.ref_context
    node = addnodes.pending_xref(
        rawtext, refdomain="py", reftype="obj", reftarget=text, refexplicit=False, refwarn=False,
        refdoc=inliner.document.settings.env.docname, may_be_missing=True,
    )  # fmt: skip
    node["py:module"], node["py:class"] = context.get("py:module"), context.get("py:class")
    node += nodes.literal(rawtext, text, classes=["xref", "py", "py-obj"])
    return [node], []


def resolve_name(app, env, node, contnode):
    """The object whose full name ends with the target, if there is one such; else plain code."""
    if not node.get("may_be_missing"):
        return None
    target, domain = node["reftarget"], env.get_domain("py")
    found = {}
    if target[:1].isupper() or "." in target or "_" in target:  # a short lower-case word is rather an argument
        found = {
            (entry.docname, entry.node_id): (name, entry.objtype)
            for name, entry in domain.objects.items()
            if name.endswith(f".{target}")
        }
    if len(found) != 1:
        return nodes.literal(contnode.rawsource, contnode.astext())
    ((docname, node_id), (name, _)), = found.items()
    return make_refnode(app.builder, node["refdoc"], docname, node_id, contnode, name)


# ---- formulas


def stack_formulas(app, doctree):
    r"""Put the parts of a displayed formula that ``\qquad`` separates under one another, so that they fit the page."""
    for block in doctree.findall(nodes.math_block):
        tex = block.astext()
        parts = [part.strip() for part in re.split(r"\\qquad", tex) if part.strip()]
        has_lines = r"\\" in re.sub(r"\\begin\{(\w+\*?)\}.*?\\end\{\1\}", "", tex, flags=re.DOTALL)
        ends = all(part.endswith((",", ";")) for part in parts[:-1])  # and not an arrow between two parts
        if len(parts) > 1 and ends and not has_lines and all(map(is_balanced, parts)):
            lines = r" \\[0.4em] ".join(f"& {part}" for part in parts)
            block.children = [nodes.Text(rf"\begin{{aligned}} {lines} \end{{aligned}}")]


def is_balanced(tex):
    """Whether all that opens in `tex` closes in it, so that it can stand on a line of its own."""
    pairs = ((r"(?<!\\)\{", r"(?<!\\)\}"), (r"\\left(?![a-z])", r"\\right(?![a-z])"), (r"\\begin\b", r"\\end\b"))
    return all(len(re.findall(opening, tex)) == len(re.findall(closing, tex)) for opening, closing in pairs)


# ---- notebooks


def add_alternative_text(app, doctree):
    """Give images without ``alt`` the text that lies in their file; complain where there is none."""
    for image in doctree.findall(nodes.image):
        if image.get("alt"):
            continue
        path = Path(app.srcdir, image["uri"])  # an absolute uri stays as it is
        text = None
        if path.suffix == ".png" and path.is_file():
            with Image.open(path) as picture:
                text = picture.info.get("Description")
        if text:
            image["alt"] = text
        else:
            logger.warning("image without alternative text: %s", path.name, location=image, type="numtrans")


def name_folded_cells(app, doctree):
    """Let the first comment of a folded cell be the line to click on."""
    for cell in doctree.findall(nodes.container):
        if not cell.get("hide_mode"):
            continue
        source = next(cell.findall(nodes.literal_block), None)
        first = source.astext().partition("\n")[0] if source else ""
        comment = re.fullmatch(r"#\s*(?:@title\s+)?(.+?)\.?", first.strip())
        if comment:
            cell["prompt_show"] = cell["prompt_hide"] = comment[1]


def spread_notebooks(app, env, docnames):
    """Reorder `docnames` so that every stretch of the list holds its share of notebooks."""
    notebooks = [name for name in docnames if name.startswith("notebooks/")]
    pages = [name for name in docnames if not name.startswith("notebooks/")]
    place = {name: (i + 0.5) / len(group) for group in (notebooks, pages) for i, name in enumerate(group)}
    docnames.sort(key=lambda name: (place[name], name))


def setup(app):
    """Connect all of it."""
    app.add_role("name", name_role)
    app.connect("missing-reference", resolve_name)
    app.connect("doctree-read", stack_formulas)
    app.connect("doctree-read", add_alternative_text)
    app.connect("doctree-read", name_folded_cells)
    app.connect("env-before-read-docs", spread_notebooks)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
