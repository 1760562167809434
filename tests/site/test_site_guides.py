"""The Python code of the guides and of the notation page runs, page by page, and its assertions hold."""

import re

import pytest
from site_files import ROOT

PAGES = [*sorted((ROOT / "docs" / "guides").glob("*.md")), ROOT / "docs" / "notation.md"]


def code(page):
    """All Python blocks of `page`, at their lines in the file."""
    text = page.read_text(encoding="utf-8")
    lines = [""] * text.count("\n")
    for block in re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        start = text[: block.start(1)].count("\n")
        body = block[1].splitlines()
        lines[start : start + len(body)] = body
    return "\n".join(lines)


@pytest.mark.parametrize("page", [page for page in PAGES if code(page).strip()], ids=lambda page: page.stem)
def test_code_of_the_page_runs(page, tmp_path, monkeypatch):
    source = code(page)
    if re.search(r"^import torch", source, re.MULTILINE):
        pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    exec(compile(source, str(page), "exec"), {"__name__": page.stem})
