"""Every chapter has the parts that a chapter has, and its .ipynb is what its .py says."""

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

jupytext = pytest.importorskip("jupytext")
nbformat = pytest.importorskip("nbformat")

ROOT = Path(__file__).parents[2]
NOTEBOOKS = ROOT / "notebooks"
spec = importlib.util.spec_from_file_location("sync", NOTEBOOKS / "sync.py")
sync = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sync)

CHAPTERS = sorted(NOTEBOOKS.glob("[0-9][0-9]-*.py"))
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
INSTALL = f"""# Installs numtrans on Google Colab, and does nothing elsewhere.
import sys

if "google.colab" in sys.modules:
    %pip install -q git+{REPOSITORY}"""


def cells(path, kind=None):
    notebook = nbformat.read(path.with_suffix(".ipynb"), as_version=4)
    return [cell for cell in notebook.cells if kind in (None, cell.cell_type)]


def text(path):
    return "\n\n".join(cell.source for cell in cells(path, "markdown"))


def headings(path):
    outside_code = re.sub(r"```.*?```", "", text(path), flags=re.S)
    return re.findall(r"^(#+) (.+)$", outside_code, flags=re.M)


def test_the_chapters_are_numbered_without_a_gap():
    assert [int(path.name[:2]) for path in CHAPTERS] == list(range(1, len(CHAPTERS) + 1))


@pytest.mark.parametrize("source", sync.sources(), ids=lambda path: path.stem)
def test_the_pair_is_in_step(source):
    target = source.with_suffix(".ipynb")
    assert target.exists(), f"run python notebooks/sync.py: {target.name} is missing"
    assert target.read_text(encoding="utf-8") == sync.generated(source), "run python notebooks/sync.py"


@pytest.mark.parametrize("source", sync.sources(), ids=lambda path: path.stem)
def test_no_outputs_are_stored(source):
    for cell in cells(source, "code"):
        assert not cell.outputs
        assert cell.execution_count is None


@pytest.mark.parametrize("source", CHAPTERS, ids=lambda path: path.stem)
class TestForm:
    def test_title_badge_and_aims(self, source):
        first = cells(source)[0].source
        assert first.startswith(f"# {int(source.name[:2])}. ")
        colab = REPOSITORY.replace("https://github.com", "https://colab.research.google.com/github")
        assert f"[![Open in Colab](images/colab.svg)]({colab}/blob/main/notebooks/{source.stem}.ipynb)" in first
        assert "**At the end you will understand**" in first

    def test_install_cell(self, source):
        assert cells(source, "code")[0].source == INSTALL
        assert cells(source, "code")[0].metadata["tags"] == ["hide-cell"]

    def test_nothing_is_fetched_and_no_window_is_opened(self, source):
        code = "\n".join(cell.source for cell in cells(source, "code")[1:])
        assert not re.search(r"https?://|urllib|requests|pyplot|!pip|%pip|pickle", code)

    def test_headings_are_unique_and_in_steps(self, source):
        found = headings(source)
        names = [name for _, name in found]
        assert len(set(names)) == len(names)
        assert not [name for name in names if "$" in name]
        depths = [len(marks) for marks, _ in found]
        assert depths[0] == 1
        assert depths.count(1) == 1
        assert all(after <= before + 1 for before, after in zip(depths, depths[1:]))

    def test_math_is_closed(self, source):
        for cell in cells(source, "markdown"):
            plain = re.sub(r"```.*?```|`[^`]*`", "", cell.source, flags=re.S)
            assert plain.count("$$") % 2 == 0, cell.source
            assert re.sub(r"\$\$.*?\$\$|\\\$", "", plain, flags=re.S).count("$") % 2 == 0, cell.source

    def test_gradients_are_checked_and_a_mistake_is_seen(self, source):
        code = "\n".join(cell.source for cell in cells(source, "code"))
        assert "gradcheck(" in code
        assert re.search(r"^assert not \w*report|^assert not \w*broken|^assert not gradcheck", code, flags=re.M)

    def test_a_plot_of_the_library_makes_the_point(self, source):
        code = "\n".join(cell.source for cell in cells(source, "code"))
        assert "plots." in code or ".plot(" in code

    def test_exercises_have_folded_solutions(self, source):
        number = int(source.name[:2])
        exercises = re.findall(rf"^### Exercise ({number}\.\d+): ", text(source), flags=re.M)
        assert 3 <= len(exercises) <= 6
        solved = re.findall(r"<summary>Solution of exercise (\d+\.\d+)</summary>", text(source))
        for cell in cells(source, "code"):
            if found := re.match(r"# @title Solution of exercise (\d+\.\d+)\n", cell.source):
                solved.append(found[1])
                assert cell.metadata["tags"] == ["hide-cell"]
                assert cell.metadata["jupyter"] == {"source_hidden": True}
                assert cell.metadata["cellView"] == "form"
                assert "assert" in cell.source
        assert sorted(set(solved)) == sorted(exercises)

    def test_papers_have_years(self, source):
        papers = text(source).split("\n## Papers\n")[1]
        entries = [entry for entry in re.split(r"^[-*] ", papers, flags=re.M)[1:]]
        assert len(entries) >= 2
        assert all(re.search(r"\((19|20)\d\d\)", entry) for entry in entries), entries

    def test_links_to_chapters_lead_somewhere(self, source):
        for target in re.findall(r"\]\((?!https?:|#|images/)([^)#]+)", text(source)):
            assert (NOTEBOOKS / target).exists(), target
