"""``numtrans bench``: what it prints, with PyTorch and without, and when a library fails. Never a time."""

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

    def call(found, *arguments, pytorch=True):
        monkeypatch.setattr(short, "measure", lambda case, threads, rounds, say=None: found)
        monkeypatch.setattr(short, "has_pytorch", lambda: pytorch)
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
    status, lines = bench(results(numtrans=entry(0.002)), pytorch=False)
    assert status == 0
    assert line(lines, "training step S").split()[3:] == ["2.00", "ms", "-"]
    assert "PyTorch is not installed, so there is nothing to compare with." in lines


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
    monkeypatch.setattr(short, "has_pytorch", lambda: False)
    monkeypatch.setattr(short, "cases", lambda sizes: {"tiny": ("train", {"size": TINY}, None)})
    assert cli.main(["bench", "--threads", "1", "--rounds", "1"]) == 0
    found = line(capsys.readouterr().out.splitlines(), "tiny").split()
    assert float(found[1]) > 0
    assert found[2] in ("ms", "ms~")
