"""docs/claims.md: every row has a verdict, and leads to a heading of the book that exists."""

import functools
import re
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")

DOCS = Path(__file__).parents[1] / "docs"
LINES = (DOCS / "claims.md").read_text(encoding="utf-8").splitlines()
ROWS = [line for line in LINES if line.startswith("|") and ".ipynb#" in line]
VERDICTS = ("Holds", "Holds if ", "Does not hold", "Not shown", "Not measured")


def slug(heading):
    """The anchor that GitHub and MyST give to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@functools.cache
def anchors(notebook):
    cells = nbformat.read(notebook, as_version=4).cells
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    return {slug(heading.replace("`", "")) for heading in re.findall(r"^#+ (.+)$", text, flags=re.M)}


def test_there_are_rows_for_every_chapter_that_checks_claims():
    chapters = {int(number) for row in ROWS for number in re.findall(r"notebooks/(\d\d)-", row)}
    assert chapters >= set(range(3, 12))
    assert len(ROWS) >= 50


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[2:50].strip())
def test_row(row):
    cells = [cell.strip() for cell in row.strip("|").split(" | ")]
    assert len(cells) == 4, "claim | verdict | shown by | where"
    claim, verdict, shown, where = cells
    assert claim
    assert verdict.startswith(VERDICTS), verdict
    assert len(shown) > 10
    for notebook, anchor in re.findall(r"\]\((\.\./notebooks/[^)#]+)#([^)]+)\)", where):
        assert (DOCS / notebook).exists(), notebook
        assert anchor in anchors(DOCS / notebook), f"no heading for #{anchor} in {notebook}"


def test_what_the_texts_name_is_in_the_library():
    named = re.findall(r"`(numtrans\.[\w.]+)`", "\n".join(LINES))
    assert len(named) > 20
    for name in named:
        parts = name.split(".")
        for cut in range(len(parts), 0, -1):
            try:
                value = __import__(".".join(parts[:cut]), fromlist=["x"])
            except ModuleNotFoundError:
                continue
            for part in parts[cut:]:
                value = getattr(value, part)
            break
