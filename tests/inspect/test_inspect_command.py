"""``numtrans inspect``: what it prints and how it refuses."""

import subprocess
import sys

import pytest

from numtrans import cli
from numtrans.inspect import summary
from numtrans.models.presets import PRESETS


@pytest.fixture
def run(capsys):
    def call(*arguments):
        status = cli.main(["inspect", *arguments])
        return status, *capsys.readouterr()

    return call


def test_a_preset(run):
    assert run("gpt2", "--tokens", "100", "--batch", "4") == (0, f"{summary('gpt2', 100, 4)}\n", "")


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_with_its_defaults(run, name):
    status, out, _ = run(name)
    assert status == 0
    assert out.startswith(f"{name}: ")
    assert max(map(len, out.splitlines())) <= 110


def test_the_list(run):
    status, out, _ = run("--list")
    assert status == 0
    assert {line.split()[0]: line.split()[1] for line in out.splitlines()}["llama-7b"] == "6,738,415,616"
    assert len(out.splitlines()) == len(PRESETS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "inspect: name a preset; --list prints the names"),
        (["gtp2"], "there is no 'gtp2'; did you mean 'gpt2'?"),
        (["gpt2", "--tokens", "2000"], "at most max_len=1024"),
    ],
)
def test_refusals(run, arguments, message):
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith("numtrans: ")
    assert message in err
    assert len(err.splitlines()) == 1


def test_no_matplotlib_is_loaded():
    """It takes half a second and the table needs none of it."""
    code = "import sys; from numtrans import cli; cli.main(['inspect', 'gpt2']); sys.exit('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
