"""Every chapter runs from top to bottom at the small size, in a kernel of its own."""

import os
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def execute(notebook, folder):
    environment = {**os.environ, "NUMTRANS_FAST": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    client = nbclient.NotebookClient(notebook, timeout=280, resources={"metadata": {"path": str(folder)}})
    client.execute(env=environment)


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("[0-9][0-9]-*.ipynb")), ids=lambda path: path.stem)
def test_chapter(path, tmp_path):
    execute(nbformat.read(path, as_version=4), tmp_path)
    assert not list(tmp_path.iterdir()), "a notebook writes only into a temporary folder of its own"


def test_a_failing_cell_fails_with_its_traceback(tmp_path):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("one = 1\nassert one == 2, 'not two'")])
    with pytest.raises(nbclient.exceptions.CellExecutionError, match="not two") as error:
        execute(notebook, tmp_path)
    assert "assert one == 2" in str(error.value)
