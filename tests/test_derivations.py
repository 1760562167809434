"""The derivation pages of docs/derivations: every component has one, in the common form, and its code runs."""

import importlib
import re
from pathlib import Path

import pytest

from numtrans import blocks, layers, losses, models, optim
from numtrans.components import components
from numtrans.layers.relative import RelativePosition
from numtrans.module import Module

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "derivations"
INDEX = (FOLDER / "index.md").read_text(encoding="utf-8")
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md") if path.stem != "index"}
SECTIONS = ["What it computes", "Forward", "Backward", "Cost", "Common mistakes", "Check it yourself", "In the library"]
PARTS = [r"index form", r"matrix form", r"steps of the code"]
CHAPTERS = {
    "01-tour", "02-backpropagation", "03-softmax", "04-attention", "05-masks", "06-multi-head-attention", "07-position",
    "08-normalization", "09-residuals-and-depth", "10-feed-forward", "11-encoder-decoder",
}  # fmt: skip

every_page = pytest.mark.parametrize("page", sorted(PAGES))


def python_blocks(text):
    """(line number, code) of each fenced python block."""
    found = re.finditer(r"^```python\n(.*?)^```$", text, re.S | re.M)
    return [(text[: m.start(1)].count("\n") + 1, m[1]) for m in found]


def without_code(text):
    """`text` without fenced blocks and code spans."""
    return re.sub(r"`[^`\n]+`", "", re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M))


def public_names():
    """Every public class and function that a derivation page has to treat, as ``module.name``."""
    names = [f"{module.__name__}.{name}" for module in (layers, optim) for name in module.__all__]
    for module in (blocks, losses):
        found = [n for n, v in vars(module).items() if isinstance(v, type) and v.__module__ == module.__name__]
        names += [f"{module.__name__}.{name}" for name in found if not name.startswith("_")]
    return [name for name in names if not name.endswith("Error")]


def roles(text):
    """(role, full name) of each link to the reference."""
    return re.findall(r"\{py:(class|func)\}`(numtrans[\w.]+)`", text)


def test_the_names_are_found():
    names = public_names()
    assert {"numtrans.layers.LayerNorm", "numtrans.blocks.DecoderLayer"} <= set(names)
    assert {"numtrans.losses.MSELoss", "numtrans.optim.AdamW"} <= set(names)
    assert len(names) > 40


def test_index_lists_every_page_once_in_the_table_and_in_the_toctree():
    toctree = re.search(r"^```\{toctree\}\n:hidden:\n\n(.*?)^```$", INDEX, re.S | re.M)[1].split()
    assert sorted(toctree) == sorted(PAGES)
    rows = [line for line in INDEX.splitlines() if line.startswith("| ") and "](" in line]
    linked = [re.search(r"\]\(([\w-]+)\.md\)", row)[1] for row in rows]
    assert list(dict.fromkeys(linked)) == toctree
    for row, page in zip(rows, linked):
        names = re.match(r"\| \[([\w, ]+)\]\(", row)[1].split(", ")
        treated = {full.rsplit(".", 1)[1] for _, full in roles(PAGES[page])} | {"schedules"}
        assert set(names) <= treated
        file = re.search(r"\| `([\w/.]+)` \|$", row)[1]
        assert "\\mathrm{d}" in row or "no backward" in row
        assert (FOLDER.parents[1] / "numtrans" / file).exists()
        assert f"`numtrans/{file}`" in PAGES[page]


@pytest.mark.parametrize("name", public_names())
def test_every_public_name_is_treated_on_a_page(name):
    linked = [page for page, text in PAGES.items() if name in [full for _, full in roles(text)]]
    assert linked, f"no derivation page links to {name}"


def test_every_component_of_the_gradient_check_has_a_page():
    whole = {getattr(models, name) for name in models.__all__}
    classes = {type(component.module) for component in components()} - whole
    treated = {full for text in PAGES.values() for _, full in roles(text)}
    missing = {c.__name__ for c in classes if f"{c.__module__.rsplit('.', 1)[0]}.{c.__name__}" not in treated
               and f"{c.__module__}.{c.__name__}" not in treated}  # fmt: skip
    assert not missing
    assert len(classes) > 25


def test_every_layer_class_is_exported_and_so_has_a_page():
    found = {c.__name__ for c in _subclasses(Module) if c.__module__.startswith("numtrans.layers.")}
    assert found - set(layers.__all__) == {RelativePosition.__name__}  # the base of Shaw, T5 and ALiBi


def _subclasses(cls):
    for sub in cls.__subclasses__():
        yield sub
        yield from _subclasses(sub)


@every_page
def test_links_to_the_reference_are_names_of_that_kind(page):
    found = roles(PAGES[page])
    assert found
    for role, full in found:
        module, name = full.rsplit(".", 1)
        assert isinstance(getattr(importlib.import_module(module), name), type) == (role == "class"), full


@every_page
def test_links_to_pages_and_chapters_exist(page):
    library = PAGES[page].split("## In the library")[1]
    chapters = re.findall(r"\]\(\.\./\.\./notebooks/([\w-]+)\.ipynb\)", PAGES[page])
    assert chapters
    assert set(chapters) <= CHAPTERS
    assert "Papers: " in library
    assert re.search(r"\((1[89]|20)\d\d\)", library)
    for target in re.findall(r"\]\(([^)#]+)\)", without_code(PAGES[page])):
        if not target.startswith("../../notebooks/"):
            assert (FOLDER / target).exists(), target


@every_page
def test_sections(page):
    headings = re.findall(r"^## (.+)$", PAGES[page], re.M)
    expected = ["Update rules" if s == "Backward" and page == "optimizers" else s for s in SECTIONS]
    assert headings == expected
    backward = re.split(r"^## ", PAGES[page], flags=re.M)[3]
    parts = re.findall(r"^### (.+)$", backward, re.M)
    assert len(parts) == len(PARTS)
    for part, pattern in zip(parts, PARTS):
        assert re.search(pattern, part, re.I)
    sections = dict(zip(headings, re.split(r"^## .+$", PAGES[page], flags=re.M)[1:]))
    assert "| symbol | shape | meaning |" in sections["What it computes"]
    assert "gradient" in sections["What it computes"]
    forward = " ".join(sections["Forward"].lower().split())
    assert "index form" in forward
    assert "matrix form" in forward
    mistakes = re.findall(r"^(\d+)\. \*\*", sections["Common mistakes"], re.M)
    assert mistakes == [str(i + 1) for i in range(len(mistakes))]
    assert len(mistakes) >= 4
    assert "gradcheck" in sections["Common mistakes"]
    assert python_blocks(sections["Check it yourself"])


def test_rope_backward_can_be_searched_for():
    assert re.search(r"^### RoPE backward", PAGES["rotary-encoding"], re.M)


def _code_cases():
    found = [(page, line, code) for page in sorted(PAGES) for line, code in python_blocks(PAGES[page])]
    return [pytest.param(code, id=f"{page}-{line}") for page, line, code in found]


@pytest.mark.timeout(30)
@pytest.mark.parametrize("code", _code_cases())
def test_code_runs(code):
    assert "assert" in code
    assert code.count("\n") <= 12
    assert max(map(len, code.splitlines())) <= 120
    exec(compile(code, "derivation", "exec"), {"__name__": "derivation"})


@every_page
def test_mathematics_is_balanced(page):
    check_mathematics(PAGES[page])


def test_mathematics_of_the_index_is_balanced():
    check_mathematics(INDEX)


@pytest.mark.parametrize("text", ["$$\nx\n", "a $x b\n", "$$ x $$\n", "$$\n\\left( x\n$$\n", "$$\n{x\n$$\n",
                                  "$$\n\\begin{aligned} x\n$$\n", "$$\nx\n\ny\n$$\n",
                                  "$$\n\\end{aligned} x \\begin{aligned}\n$$\n"])  # fmt: skip
def test_unbalanced_mathematics_is_seen(text):
    with pytest.raises(AssertionError):
        check_mathematics(text)


def check_mathematics(text):
    """`$$` on lines of their own and in pairs, `$` in pairs within a paragraph, and braces and environments closed."""
    text = without_code(text)
    fences = [line for line in text.splitlines() if "$$" in line]
    assert all(line == "$$" for line in fences)
    assert len(fences) % 2 == 0
    pieces = re.split(r"^\$\$\n", text, flags=re.M)
    formulas = pieces[1::2]
    assert all("\n\n" not in formula and "$" not in formula for formula in formulas)
    for prose in pieces[0::2]:
        for paragraph in re.split(r"\n\s*\n|\n(?=\||\d+\. )", prose):
            assert paragraph.count("$") % 2 == 0, paragraph
            formulas += paragraph.split("$")[1::2]
    for formula in formulas:
        assert formula.count("{") == formula.count("}"), formula
        assert len(re.findall(r"\\left\b", formula)) == len(re.findall(r"\\right\b", formula)), formula
        opened = []
        for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", formula):
            if kind == "begin":
                opened.append(name)
            else:
                assert opened, formula
                assert opened.pop() == name, formula
        assert not opened, formula
