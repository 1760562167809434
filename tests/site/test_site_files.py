"""The files of the built site: links, alternative text, nothing from elsewhere."""

import re

import pytest
from site_files import SITE, broken, chapters_and_texts, is_elsewhere, pages, read

pytestmark = pytest.mark.skipif(not pages(), reason="the site is not built (python docs/build.py)")


@pytest.mark.parametrize("page", pages())
def test_links_lead_somewhere(page):
    assert broken(page) == []


@pytest.mark.parametrize("page", pages())
def test_nothing_comes_from_elsewhere(page):
    assert [url for url in read(page).loaded if is_elsewhere(url)] == []


@pytest.mark.parametrize("page", pages())
def test_images_have_alternative_text(page):
    for image in read(page).images:
        text = image.get("alt") or ""
        assert len(text) > 10, image
        assert not text.endswith((".png", ".svg", ".jpg")), image


def test_style_sheets_name_nothing_elsewhere():
    sheets = list(SITE.rglob("*.css"))
    assert len(sheets) > 3
    for path in sheets:
        urls = re.findall(r"(?:url\(|@import\s+)\s*[\"']?([^\"')\s;]+)", path.read_text(encoding="utf-8"))
        assert [url for url in urls if is_elsewhere(url)] == [], path.name


def test_first_page_leads_to_the_start():
    assert (SITE / "docs" / "index.html").is_file()
    assert "docs/index.html" in read("index.html").links


def test_every_document_became_a_page():
    root = SITE.parents[2]
    if not (root / "docs" / "conf.py").is_file():
        pytest.skip("the site does not lie in its repository")
    sources = [*root.glob("docs/**/*.md"), *root.glob("docs/**/*.rst"), *root.glob("notebooks/*.ipynb")]
    built = {path.relative_to(root).with_suffix(".html").as_posix() for path in sources if "_build" not in path.parts}
    assert built == set(chapters_and_texts())
