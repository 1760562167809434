"""Sphinx configuration. The source directory is the root of the repository; ``docs/build.py`` builds the site."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "_ext"))

# Kernels of the notebooks inherit these. Small matrix products are faster on one thread, and two notebooks run at once.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numtrans  # noqa: E402

project = "numtrans"
author = "The numtrans authors"
copyright = author  # noqa: A001
version = release = numtrans.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "numpydoc",
    "myst_nb",
    "sphinx_design",
    "sphinx_copybutton",
    "numtrans_site",
]

# ---- what is read

root_doc = "docs/index"
include_patterns = ["docs/**", "notebooks/*.ipynb"]
exclude_patterns = [
    "docs/_build", "docs/_ext", "docs/_extra", "docs/_static", "notebooks/assignments", "**/.ipynb_checkpoints",
    ".venv", "venv", ".git", "runs", "build", "dist",
]  # fmt: skip
source_suffix = {".md": "myst-nb", ".rst": "restructuredtext", ".ipynb": "myst-nb"}
smartquotes = False  # two hyphens begin an option, and quotes stay as they were typed
highlight_language = "none"  # code without a language is plain text
default_role = "name"  # `name` in a docstring: a link where the name is documented, see _ext/numtrans_site.py

# ---- Markdown and notebooks

myst_enable_extensions = ["dollarmath", "amsmath", "deflist", "colon_fence"]
myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_timeout = 600
nb_execution_raise_on_error = False  # a failing cell is a warning, which build.py makes an error, and no other is lost
nb_execution_show_tb = True
nb_merge_streams = True
nb_ipywidgets_js = {}  # its scripts would come from elsewhere, and no notebook has a widget

# ---- the reference

autodoc_default_options = {"member-order": "bysource"}
autodoc_typehints = "none"
numpydoc_show_class_members = False
python_maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"

# ---- mathematics: one script of the site itself, which `docs/build.py` puts in place

mathjax_path = "mathjax/tex-svg-full.js"
mathjax3_config = {"svg": {"fontCache": "local", "scale": 0.95}, "options": {"enableMenu": False}}

# ---- pages

html_theme = "pydata_sphinx_theme"
html_title = "numtrans"
html_static_path = ["_static"]
html_extra_path = ["_extra"]
html_css_files = ["custom.css"]
html_copy_source = False
html_domain_indices = False
html_show_sourcelink = False
html_show_search_summary = False  # a browser may not read the pages for a summary when the site lies on a disk
html_theme_options = {
    "logo": {"text": "numtrans"},
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "navbar_persistent": ["search-button"],
    "header_links_before_dropdown": 7,
    "show_nav_level": 1,
    "navigation_with_keys": False,
    "show_prev_next": True,
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_context = {"default_mode": "auto"}
_ALONE = ("index", "notation", "assignments", "performance", "claims")  # no pages below
html_sidebars = {f"docs/{page}": [] for page in _ALONE}

copybutton_exclude = ".linenos, .gp, .go"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
