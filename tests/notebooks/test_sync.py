"""notebooks/sync.py and docs/build.py on bad files: told in a sentence, and no half of a file is left."""

import importlib.util
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

pytest.importorskip("jupytext")
pytest.importorskip("nbclient")

from numtrans.errors import ConfigError

ROOT = Path(__file__).parents[2]
HEAD = """# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %%
"""


def loaded(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def sync(tmp_path, monkeypatch):
    module = loaded(ROOT / "notebooks" / "sync.py")
    monkeypatch.setattr(module, "FOLDER", tmp_path / "a folder")
    monkeypatch.setattr(sys, "argv", ["sync.py"])
    module.FOLDER.mkdir()
    (module.FOLDER / "01-a.py").write_text(HEAD + "x = 1\n", encoding="utf-8")
    return module


@pytest.mark.parametrize("text", [b"# %%\nx = 1\n", b"# ---\n# jupyter: [\n# ---\n# %%\n", HEAD.encode() + b"# \xe9\n"])
def test_a_bad_source_is_named_and_nothing_is_written(sync, text):
    (sync.FOLDER / "02-b.py").write_bytes(text)
    with pytest.raises(ConfigError, match=r"02-b\.py"):
        sync.main()
    assert not list(sync.FOLDER.glob("*.ipynb"))


def test_a_failed_write_keeps_the_old_file(sync, monkeypatch):
    sync.main()
    old = (sync.FOLDER / "01-a.ipynb").read_bytes()
    (sync.FOLDER / "01-a.py").write_text(HEAD + "x = 2\n", encoding="utf-8")

    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("numtrans.checkpoint.os.replace", stopped)
    with pytest.raises(KeyboardInterrupt):
        sync.main()
    assert (sync.FOLDER / "01-a.ipynb").read_bytes() == old
    assert sorted(path.name for path in sync.FOLDER.iterdir()) == ["01-a.ipynb", "01-a.py"]


def test_what_cannot_be_run_is_told_in_a_sentence(sync, tmp_path):
    result = subprocess.run(
        [sys.executable, ROOT / "notebooks" / "sync.py", "--run", "no such.ipynb"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 1
    assert result.stderr.startswith("sync.py: no such.ipynb: cannot be read")
    assert "Traceback" not in result.stderr
    with pytest.raises(ConfigError, match="cannot be read as a notebook"):
        sync.run(sync.FOLDER / "01-a.py")
    sync.main()
    with pytest.raises(ConfigError, match="its folder does not exist"):
        sync.run(sync.FOLDER / "01-a.ipynb", tmp_path / "no" / "a.ipynb")


@pytest.mark.parametrize("broken", [True, False], ids=["no archive", "an archive of other files"])
def test_a_broken_archive_of_mathjax_leaves_nothing(tmp_path, monkeypatch, broken):
    build = loaded(ROOT / "docs" / "build.py")

    def pack(command, **_):
        path = Path(command[-1]) / "mathjax-3.tgz"
        if broken:
            path.write_bytes(b"half")
        else:
            tarfile.open(path, "w:gz").close()
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(build, "MATHJAX", tmp_path / "mathjax")
    monkeypatch.setattr(build.shutil, "which", lambda _: "npm")
    monkeypatch.setattr(build.subprocess, "run", pack)
    with pytest.raises(RuntimeError, match="is broken or holds other files"):
        build.fetch_mathjax()
    assert not build.MATHJAX.exists()
    monkeypatch.setattr(build.shutil, "which", lambda _: None)
    with pytest.raises(RuntimeError, match="npm is missing"):
        build.fetch_mathjax()
