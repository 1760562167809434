"""The command line, run in the process: what it prints, what it writes, how it refuses."""

import functools
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from numtrans import cli
from numtrans.checkpoint import read_arrays
from numtrans.cli import demo
from numtrans.data import DateTask, SequenceTask
from numtrans.errors import ConfigError
from numtrans.layers import Linear
from numtrans.losses import MSELoss
from numtrans.optim import SGD
from numtrans.runs import load_run
from numtrans.training import Trainer

TINY = ["--layers", 1, "--d-model", 16, "--heads", 2, "--batch", 8, "--evaluate-every", 10, "--save-every", 10]


@pytest.fixture
def run(monkeypatch, capsys):
    """Call the command; returns (status, standard output, standard error).

    The settings of the allocator hold for the whole process and are left alone; the threads are put back.
    """
    monkeypatch.setattr("numtrans.memory.keep_freed_memory", lambda: True)
    small = functools.partial(DateTask, n_train=200, n_valid=20, n_test=30)
    monkeypatch.setattr("numtrans.runs.DateTask", small)
    few = functools.partial(SequenceTask, n_train=400, n_valid=40, n_test=40)
    monkeypatch.setattr("numtrans.runs.SequenceTask", few)

    def call(*arguments):
        capsys.readouterr()
        with threadpool_limits(None):
            status = cli.main([str(a) for a in arguments])
        out, err = capsys.readouterr()
        return status, out, err

    return call


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("To be, or not to be, that is the question. " * 40, encoding="utf-8")
    return path


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def refuses(result, *parts):
    status, _, err = result
    assert status == 2
    assert err.startswith("numtrans: ")
    assert "Traceback" not in err
    for part in parts:
        assert part in err


def test_train_translate(run, tmp_path):
    out = tmp_path / "run"
    status, printed, _ = run("train", "--task", "copy", *TINY, "--steps", 20, "--out", out)
    assert status == 0
    assert "exact match" in printed
    names = "model.safetensors config.json history.jsonl checkpoint.safetensors best.safetensors loss.png"
    assert {path.name for path in out.iterdir()} == set(names.split())
    lines = [json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [10, 20]
    status, printed, _ = run("translate", out, "12", "30")
    assert status == 0
    assert [line.split("\t")[0] for line in printed.splitlines()] == ["12", "30"]
    assert run("translate", out, "12", "--attention", tmp_path / "a.png")[0] == 0
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
    refuses(run("sample", out), "translator")
    refuses(run("translate", out, ""), "empty")


def test_train_sample(run, tmp_path, text):
    out = tmp_path / "run"
    assert run("train", "--task", "text", "--text", text, "--block", 8, *TINY, "--steps", 10, "--out", out)[0] == 0
    first = run("sample", out, "--prompt", "To ", "--length", 30)[1]
    assert first.startswith("To ")
    assert len(first) == 34
    assert run("sample", out, "--prompt", "To ", "--length", 30)[1] == first
    assert run("sample", out, "--prompt", "To ", "--length", 30, "--seed", 5)[1] != first
    refuses(run("translate", out, "x"), "language model")
    refuses(run("sample", out, "--prompt", ""), "--prompt is empty")


@pytest.mark.parametrize("extra", [[], ["--dropout", "0.2", "--micro-batches", "3"]])
def test_a_resumed_run_equals_an_uninterrupted_one(run, tmp_path, extra):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    common = ["train", "--task", "reverse", *TINY, *extra, "--steps", 30]
    run(*common, "--out", whole)
    code = (
        "import numtrans.training as t, os, signal, sys\n"
        "step = t.Trainer._train_step\n"
        "def stop(self, *a, **k):\n"
        "    if self.step == 14: os.kill(os.getpid(), signal.SIGINT)\n"
        "    return step(self, *a, **k)\n"
        "t.Trainer._train_step = stop\n"
        "import functools, numtrans.runs as r\n"
        "r.SequenceTask = functools.partial(r.SequenceTask, n_train=400, n_valid=40, n_test=40)\n"
        "from numtrans.cli import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, common), "--out", str(parts)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 130, done.stderr
    assert "stopped at step 15 and saved" in done.stdout
    assert run("train", "--resume", "--out", parts)[0] == 0
    one, two = (read_arrays(folder / "model.safetensors")[0] for folder in (whole, parts))
    assert one.keys() == two.keys()
    assert all((one[name] == two[name]).all() for name in one)
    assert (whole / "history.jsonl").read_text() == (parts / "history.jsonl").read_text()


def test_recompute_may_be_given_when_a_run_goes_on(run, tmp_path, text):
    out, kept = tmp_path / "run", []
    common = ["train", "--out", out, "--steps"]
    assert run(*common, 1, "--task", "text", "--text", text, "--block", 8, *TINY)[0] == 0
    for steps, option in ((2, ["--recompute"]), (3, [])):
        assert run(*common, steps, "--resume", *option)[0] == 0
        kept.append(json.loads((out / "config.json").read_text())["settings"]["recompute"])
    assert kept == [True, True]


def test_a_second_run_does_not_overwrite_the_first(run, tmp_path):
    common = ["train", "--task", "copy", *TINY, "--steps", 10, "--out", tmp_path / "run"]
    assert run(*common)[0] == 0
    before = files(tmp_path / "run")
    refuses(run(*common, "--seed", 1, "--lr", 0.5), "already holds a run")
    assert files(tmp_path / "run") == before
    assert run(*common, "--seed", 1, "--overwrite")[0] == 0
    assert files(tmp_path / "run")["model.safetensors"] != before["model.safetensors"]


def test_overwriting_leaves_nothing_of_the_old_run(run, tmp_path, monkeypatch):
    common = ["train", "--task", "copy", *TINY, "--out", tmp_path / "run"]
    run(*common, "--steps", 10)
    monkeypatch.setattr("numtrans.training.Trainer.fit", lambda *a: (_ for _ in ()).throw(KeyboardInterrupt))
    assert run(*common, "--steps", 10, "--overwrite")[0] == 130  # as a kill before the first save
    assert set(files(tmp_path / "run")) <= {"config.json", "history.jsonl", "loss.png"}


def test_what_resume_refuses(run, tmp_path, text):
    out = tmp_path / "run"
    refuses(run("train", "--resume"), "--out")
    assert run("train", "--task", "text", "--text", text, "--block", 8, *TINY, "--steps", 10, "--out", out)[0] == 0
    before = files(out)
    refuses(run("train", "--resume", "--out", out, "--lr", 0.1, "--task", "copy"), "--task", "--lr")
    refuses(run("train", "--resume", "--out", out, "--steps", 4), "step 10")
    text.write_text("Entirely other letters: xyz! " * 60)
    refuses(run("train", "--resume", "--out", out), "source_vocab", "data file changed")
    assert files(out) == before


def test_options_without_meaning(run, tmp_path, text):
    refuses(run("train", "--task", "copy", "--text", text, "--out", tmp_path / "r"), "--text has no meaning")
    for wrong in (["--seed", -1], ["--final-lr", "nan"], ["--final-lr", 5], ["--steps", 0], ["--weight-decay", -1]):
        with pytest.raises(SystemExit) as error:
            run("train", *wrong)
        assert error.value.code == 2
    for wrong in (["--lr", "nan"], ["--lr", -1], ["--dropout", 1.5], ["--heads", 3], ["--beta2", 1], ["--clip", 0]):
        refuses(run("train", "--task", "copy", *TINY, "--steps", 1, "--out", tmp_path / "r", *wrong))


def test_words_are_compared_as_the_vocabulary_spells_them(run, tmp_path):
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{i % 10} {i // 10}\tit is {i // 10}:{i % 10} (yes)\n" for i in range(100)))
    out = tmp_path / "run"
    options = ["--layers", 1, "--d-model", 32, "--heads", 2, "--batch", 16, "--steps", 300, "--lr", 0.01]
    printed = run("train", "--task", "pairs", "--source", pairs, *options, "--out", out)[1]
    assert float(printed.split("test set: ")[1].split()[0]) > 50


def test_symbols_never_seen_are_named(run, tmp_path):
    out = tmp_path / "run"
    run("train", "--task", "copy", *TINY, "--steps", 5, "--out", out)
    status, _, err = run("translate", out, "1\u00e9")
    assert status == 0
    assert "never seen" in err
    refuses(run("translate", out, "1", "--attention", tmp_path / "no" / "a.png"), "a.png")


@pytest.mark.parametrize(
    ("content", "part"), [(b"", "empty"), (b"a\0b", "binary"), (b"\xff\xfe\xfa", "UTF-8"), (b"short", "characters")]
)
def test_texts_that_cannot_be_used(run, tmp_path, content, part):
    (tmp_path / "t.txt").write_bytes(content)
    refuses(run("train", "--task", "text", "--text", tmp_path / "t.txt", "--out", tmp_path / "r"), "t.txt", part)


def test_pairs_of_different_length(run, tmp_path):
    (tmp_path / "a").write_text("one\ntwo\n")
    (tmp_path / "b").write_text("eins\n")
    common = ["train", "--task", "pairs", "--out", tmp_path / "r"]
    refuses(run(*common, "--source", tmp_path / "a", "--target", tmp_path / "b"), "2", "1")
    refuses(run(*common), "--source FILE")


def test_an_out_that_cannot_be_written(run, tmp_path):
    (tmp_path / "file").write_text("x")
    refuses(run("train", "--task", "copy", *TINY, "--steps", 5, "--out", tmp_path / "file"), "file")
    assert (tmp_path / "file").read_text() == "x"


def test_without_cupy(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    refuses(run("train", "--task", "copy", "--backend", "cupy", "--out", tmp_path / "r"), "cupy-cuda13x", "-cuda12x")


def test_broken_runs(run, tmp_path):
    out = tmp_path / "run"
    refuses(run("translate", tmp_path / "nowhere", "x"), "config.json")
    refuses(run("train", "--resume", "--out", tmp_path / "nowhere"), "nothing to resume")
    run("train", "--task", "copy", *TINY, "--steps", 5, "--out", out)
    weights = (out / "model.safetensors").read_bytes()
    for content, part in ((b"", "empty"), (weights[:-7], "truncated"), (b"hello" * 9, "not a safetensors")):
        (out / "model.safetensors").write_bytes(content)
        refuses(run("translate", out, "1"), "model.safetensors", part)
        (out / "checkpoint.safetensors").write_bytes(content)
        refuses(run("train", "--resume", "--out", out), "checkpoint.safetensors", part)
    config = json.loads((out / "config.json").read_text())
    for change in ({"settings": {}}, {"settings": []}, {"source_vocab": {}}, {"config": {}}, {"model": "RNN"}):
        (out / "config.json").write_text(json.dumps({**config, **change}))
        refuses(run("translate", out, "1"))
        refuses(run("train", "--resume", "--out", out))
    (out / "config.json").write_text("{}")
    refuses(run("translate", out, "1"), "config.json")
    (out / "config.json").write_text("not json")
    refuses(run("translate", out, "1"), "config.json")


def test_gradcheck(run, monkeypatch):
    status, printed, _ = run("gradcheck", "softmax", "RMSNorm")
    assert status == 0
    assert "LogSoftmax" in printed
    assert "pass" in printed
    assert "FAIL" not in printed
    refuses(run("gradcheck", "nonsense"), "nonsense")
    refuses(run("gradcheck"), "--all")
    assert "LayerNorm" in run("gradcheck", "--list")[1]
    assert "worst" in run("gradcheck", "RMSNorm", "--details")[1]
    from numtrans.layers import RMSNorm

    right = RMSNorm.backward
    monkeypatch.setattr(RMSNorm, "backward", lambda self, dy: 2 * right(self, dy))
    status, printed, _ = run("gradcheck", "RMSNorm")
    assert status == 1
    assert "FAIL" in printed
    assert "1 of 1 failed: RMSNorm" in printed


def test_demo(run, tmp_path, monkeypatch):
    everything = demo.demo_components()
    assert len(everything) == 15
    monkeypatch.setattr(demo, "demo_components", lambda: everything[:3])
    out = tmp_path / "demo"
    status, printed, _ = run("demo", "--steps", 3, "--out", out)
    assert status == 0
    assert "exact match" in printed
    assert printed.count("wrong, it is") == 10  # nothing is learned in three steps
    for name in ("loss.png", "attention.png", "history.jsonl", "model.safetensors", "config.json"):
        assert (out / name).exists()
        assert str(out / name) in printed
    run_read = load_run(out)
    assert run_read.settings["task"] == "dates"
    assert run("demo", "--steps", 2, "--out", out)[0] == 0  # again, into the same folder


def test_a_text_model_trains_below_the_loss_of_guessing(run, tmp_path, text):
    out = tmp_path / "run"
    run("train", "--task", "text", "--text", text, "--block", 16, *TINY, "--steps", 60, "--lr", "0.01", "--out", out)
    last = json.loads((out / "history.jsonl").read_text().splitlines()[-1])
    letters = len(load_run(out).source_vocab) - 4
    assert last["valid_loss"] < 0.8 * np.log(letters)


def test_weights_that_are_not_finite_are_not_saved(run, tmp_path, monkeypatch):
    step = Trainer._train_step

    def poisoned(self, *arguments, **options):
        measured = step(self, *arguments, **options)
        if self.step == 5:
            self.model.parameters()[0].data[0, 0] = np.nan
        return measured

    monkeypatch.setattr(Trainer, "_train_step", poisoned)
    refuses(run("train", "--task", "copy", *TINY, "--steps", 5, "--out", tmp_path / "r"), "not finite")
    assert not (tmp_path / "r" / "model.safetensors").exists()


def test_an_early_end_of_the_demo(run, tmp_path, monkeypatch):
    few = demo.demo_components()[:2]
    monkeypatch.setattr(demo, "demo_components", lambda: few)
    monkeypatch.setattr(Trainer, "_train_step", lambda *a, **k: (_ for _ in ()).throw(KeyboardInterrupt))
    status, printed, _ = run("demo", "--steps", 3, "--out", tmp_path / "d")
    assert status == 130
    assert "stopped at step 0 and saved" in printed


def test_an_optimizer_of_another_model():
    one, other = Linear(2, 2), Linear(2, 2)
    with pytest.raises(ConfigError, match="no parameter of the model"):
        Trainer(one, MSELoss(), SGD(other.parameters(), lr=0.1))
    with pytest.raises(ConfigError, match=r"module\.parameters\(\)"):
        SGD(one, lr=0.1)
    optimizer = SGD(one.parameters(), lr=0.1)
    with pytest.raises(ConfigError, match="lr is nan"):
        optimizer.lr = float("nan")


def test_a_console_that_lacks_a_letter(tmp_path):
    code = "from numtrans.cli import main; import sys; sys.exit(main(['gradcheck', '\u65e5']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False,
                          env={**os.environ, "PYTHONIOENCODING": "ascii"})  # fmt: skip
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr
    assert rb"\u65e5" in done.stderr


def test_python_dash_m():
    done = subprocess.run([sys.executable, "-m", "numtrans", "--version"], capture_output=True, text=True, check=True,
                          env=os.environ)  # fmt: skip
    assert done.stdout.startswith("numtrans ")
