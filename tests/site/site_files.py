"""The built site as files: its pages, what they link to, and the names in its inventory."""

import os
import re
import zlib
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parents[2]
SITE = Path(os.environ.get("NUMTRANS_SITE", ROOT / "docs" / "_build" / "html"))
MADE_BY_SPHINX = ("genindex.html", "search.html", "py-modindex.html")


def pages():
    """Paths of all pages relative to the site, in order; empty without a site."""
    found = (path.relative_to(SITE) for path in SITE.rglob("*.html") if "_static" not in path.parts)
    return sorted(path.as_posix() for path in found)


def chapters_and_texts():
    """The pages with a text of ours: not the redirect, nor what Sphinx makes."""
    return [page for page in pages() if page not in (*MADE_BY_SPHINX, "index.html")]


class Page(HTMLParser):
    """Ids, links, loaded files and images of one page."""

    def __init__(self, path):
        super().__init__()
        self.ids, self.links, self.loaded, self.images = set(), [], [], []
        self.feed((SITE / path).read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        a = dict(attributes)
        self.ids.update(a[name] for name in ("id", "name") if a.get(name) and (name == "id" or tag == "a"))
        if tag == "a" and "href" in a:
            self.links.append(a["href"])
        if tag == "img":
            self.images.append(a)
        loads = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "object": "data"}
        if tag in loads and a.get(loads[tag]):
            self.loaded.append(a[loads[tag]])
        if tag == "link" and not {"canonical", "search", "index", "next", "prev"} & set(a.get("rel", "").split()):
            self.loaded.append(a.get("href", ""))
        if tag == "form" and a.get("action"):
            self.loaded.append(a["action"])


@cache
def read(path):
    """The `Page` at `path`."""
    return Page(path)


def is_elsewhere(url):
    """Whether `url` leaves the site."""
    parts = urlsplit(url)
    return bool(parts.netloc) or parts.scheme in ("http", "https", "ftp")


def broken(page):
    """Links of `page` into the site that lead nowhere, by file or by anchor."""
    wrong = []
    for link in read(page).links:
        parts = urlsplit(link)
        if is_elsewhere(link) or parts.scheme in ("mailto", "data"):
            continue
        target = (SITE / page).parent / unquote(parts.path) if parts.path else SITE / page
        target = Path(os.path.normpath(target))
        if not target.is_file() or SITE not in target.parents:
            wrong.append(link)
        elif parts.fragment and target.suffix == ".html":
            ids = read(target.relative_to(SITE).as_posix()).ids
            if unquote(parts.fragment) not in ids:
                wrong.append(link)
    return wrong


def inventory():
    """Full names of the Python objects that the site documents."""
    data = (SITE / "objects.inv").read_bytes()
    for _ in range(4):  # four lines of text, then a compressed table
        data = data.partition(b"\n")[2]
    rows = zlib.decompress(data).decode().splitlines()
    return {row.split()[0] for row in rows if re.match(r"\S+ py:(class|function|exception|data) ", row)}
