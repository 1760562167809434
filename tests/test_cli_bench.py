"""``numtrans bench``: what it prints, with PyTorch and without, and when a library fails. Never a time."""

import sys

import pytest

from numtrans import cli
from numtrans.bench import short

TINY = dict(kind="gpt", num_layers=1, d_model=8, num_heads=2, d_ff=16, tokens=4, batch=2, vocab_size=8)
FACTS = {"numpy": "9.9", "pools": [{"library": "openblas", "version": "1", "threads": 2, "kernel": "Zen"}]}


def entry(*seconds, error=None, **facts):
    rounds = [{"kept": [s], "discarded": []} for s in seconds]
    return {"facts": FACTS | facts, "first": None, "error": error, "rounds": rounds}


def results(interrupted=False, **contestants):
    return {"contestants": contestants, "sees_waiting": True, "interrupted": interrupted}


@pytest.fixture
def bench(monkeypatch, capsys):
    """Run the command with these results for each case; returns (status, lines)."""

    def call(found, *arguments, alone=None):
        monkeypatch.setattr(short, "measure", lambda case, threads, rounds, say=None, pytorch=True: found)
        monkeypatch.setattr(short, "why_no_pytorch", lambda: alone)
        status = cli.main(["bench", *arguments])
        return status, capsys.readouterr().out.splitlines()

    return call


def line(lines, start):
    return next(text for text in lines if text.startswith(start) and "forward" not in text)


def test_times_rates_and_shares_stand_side_by_side(bench):
    theirs = entry(0.5, 2.0, 1.0, torch="2.0", torch_threads=2, torch_kernel="AVX2")
    status, lines = bench(results(numtrans=entry(1.0, 1.0, 0.5), PyTorch=theirs))
    assert status == 0
    found = line(lines, "training step S").split()[3:]
    assert found == ["1000.00", "ms", "1000.00", "ms", "0.50", "(0.50", "to", "1.25)"]
    assert line(lines, "generation, GPT").split()[5:9] == ["64.0", "tokens/s", "64.0", "tokens/s"]
    assert "NumPy 9.9, openblas 1 kernel Zen, 2 threads" in lines
    assert "PyTorch 2.0 (AVX2), 2 threads" in lines
    assert not any("not installed" in text for text in lines)


def test_each_size_has_its_line(bench):
    _, lines = bench(results(numtrans=entry(1.0)), "--sizes", "M", "BERT")
    assert line(lines, "training step M")
    assert line(lines, "training step BERT")
    assert not any(text.startswith("training step S ") for text in lines)


def test_without_pytorch_it_says_so(bench):
    status, lines = bench(results(numtrans=entry(0.002)), alone="PyTorch is not there.")
    assert status == 0
    assert line(lines, "training step S").split()[3:] == ["2.00", "ms", "-"]
    assert lines.count("PyTorch is not there.") == 1


def test_a_library_that_fails_is_named_and_the_other_is_timed(bench):
    status, lines = bench(results(numtrans=entry(0.002), PyTorch=entry(error="RuntimeError: no")))
    assert status == 1
    assert line(lines, "training step S").split()[3:] == ["2.00", "ms", "failed"]
    assert "  PyTorch: RuntimeError: no" in lines


def test_a_time_of_samples_that_waited_is_marked(bench):
    waited = entry() | {"rounds": [{"kept": [], "discarded": [0.003]}]}
    _, lines = bench(results(numtrans=waited))
    assert "3.00 ms~" in line(lines, "training step S")


def test_ctrl_c_prints_what_there_is(bench):
    status, lines = bench(results(interrupted=True, numtrans=entry(0.002)))
    assert status == 130
    assert line(lines, "training step S").split()[3:] == ["2.00", "ms", "-"]
    assert not any(text.startswith("generation, GPT") for text in lines)


def test_a_real_run(monkeypatch, capsys):
    monkeypatch.setattr(short, "why_no_pytorch", lambda: "PyTorch is not there.")
    monkeypatch.setattr(short, "cases", lambda sizes: {"tiny": ("train", {"size": TINY}, None)})
    assert cli.main(["bench", "--threads", "1", "--rounds", "1"]) == 0
    found = line(capsys.readouterr().out.splitlines(), "tiny").split()
    assert float(found[1]) > 0
    assert found[2] in ("ms", "ms~")


@pytest.fixture
def torch_is(monkeypatch, tmp_path):
    """Make the import of PyTorch run this code."""

    def make(code):
        (tmp_path / "torch.py").write_text(code)
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    return make


COMES_OF = {
    "": None,
    "raise ModuleNotFoundError(\"No module named 'torch'\")": "is not installed",
    "import no_such_library": "cannot be imported (ModuleNotFoundError: No module named 'no_such_library')",
    "raise OSError('libgomp.so.1: cannot open\\nit')": "cannot be imported (OSError: libgomp.so.1: cannot open)",
    "import os; os._exit(3)": "cannot be imported (its process ended with status 3)",
}


@pytest.mark.parametrize("code", COMES_OF)
def test_pytorch_is_there_if_it_can_be_imported(code, torch_is):
    torch_is(code)
    why = COMES_OF[code]
    assert short.why_no_pytorch() == (why and f"PyTorch {why}, so there is nothing to compare with.")


def test_a_finder_that_raises_does_not_end_the_command(monkeypatch, torch_is):
    class Finder:
        def find_spec(self, name, path=None, target=None):
            if name == "torch":
                raise RuntimeError("no")

    torch_is("import no_such_library")
    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(short, "cases", lambda sizes: {"tiny": ("train", {"size": TINY}, None)})
    assert cli.main(["bench", "--threads", "1", "--rounds", "1"]) == 0


def test_a_pytorch_that_cannot_be_imported_leaves_numtrans_alone(torch_is, monkeypatch, capsys):
    torch_is("raise ImportError('a library is missing')")
    tiny = ("train", {"size": TINY}, None)
    monkeypatch.setattr(short, "cases", lambda sizes: {"one": tiny, "two": tiny})
    assert cli.main(["bench", "--threads", "1", "--rounds", "1"]) == 0
    printed = capsys.readouterr().out
    assert line(printed.splitlines(), "two").split()[-1] == "-"
    assert printed.count("a library is missing") == 1
    assert "failed" not in printed
