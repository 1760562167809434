"""Runs of each pre-training objective: what is learned, the files, a resume, and what such a run is not for."""

import json

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from numtrans import cli
from numtrans.checkpoint import read_arrays
from numtrans.data import IGNORE, BytePairEncoder, TextTask
from numtrans.errors import CheckpointError, ConfigError
from numtrans.runs import (
    TextBatches,
    default_settings,
    load_run,
    make_objective,
    make_run,
    train_run,
    validation,
)

TINY = dict(layers=1, d_model=32, heads=2, batch=16, block=24, evaluate_every=10, save_every=10, warmup=10)
MODELS = {"clm": "GPT", "mlm": "BERT", "span": "T5"}


@pytest.fixture(autouse=True)
def one_thread():
    """So small products are slower on several threads, much slower where other processes want the cores as well."""
    with threadpool_limits(1, "blas"):
        yield


@pytest.fixture
def text(tmp_path):
    """Counting in words, whose next letters follow from the ones around."""
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    rng = np.random.default_rng(0)
    path = tmp_path / "text.txt"
    lines = [" ".join(words[(start + i) % 10] for i in range(12)) for start in rng.integers(10, size=250)]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def entropy(ids):
    """Nats per token of a text whose tokens are drawn one by one with their frequencies."""
    p = np.bincount(ids) / len(ids)
    p = p[p > 0]
    return float(-(p * np.log(p)).sum())


def made(text, objective, tokenizer="char", **changes):
    settings = default_settings("text", text=str(text), objective=objective, tokenizer=tokenizer, **{**TINY, **changes})
    size = {"vocab_size": 300} if tokenizer == "bpe" else {}
    task = TextTask(text, block=settings["block"], tokenizer=tokenizer, **size)
    return make_run(task, settings), task


@pytest.mark.parametrize(("objective", "steps"), [("clm", 150), ("mlm", 600), ("span", 250)])
def test_the_validation_loss_falls_below_the_entropy_of_single_tokens(text, tmp_path, objective, steps):
    run, task = made(text, objective, steps=steps, lr=4e-3, evaluate_every=steps)
    assert type(run.model).__name__ == MODELS[objective]
    trainer = train_run(run, task, tmp_path / "run")
    loss = trainer.history["valid_loss"][-1]
    if objective == "span":
        # Sentinels and the end are easy. Even if they cost nothing, guessing tokens by frequency would cost this much.
        objective = make_objective(run.settings, task.vocab)
        (_, shifted), targets = next(iter(TextBatches(task, 16, 0, objective).held_out()))
        shares = (targets < len(task.vocab)) & (targets != 2)
        assert loss < 0.9 * shares.mean() * entropy(task.valid)
        assert shifted.shape == targets.shape
    else:
        assert loss < 0.9 * entropy(task.valid)


@pytest.mark.parametrize("objective", list(MODELS))
def test_a_run_is_read_again(text, tmp_path, objective):
    run, task = made(text, objective, "bpe", steps=3)
    train_run(run, task, tmp_path / "run")
    again = load_run(tmp_path / "run")
    assert type(again.model).__name__ == MODELS[objective]
    assert again.settings["objective"] == objective
    assert type(again.source_vocab) is BytePairEncoder
    assert again.source_vocab == task.vocab
    one, two = (validation(r, task, 16)() for r in (run, again))
    assert one == two
    extra = {"clm": 0, "mlm": 1, "span": 1 + 1}[objective]              # 24 tokens lose 4, in one span
    assert again.model.config.vocab_size == len(task.vocab) + extra


@pytest.mark.parametrize("objective", list(MODELS))
def test_a_resumed_run_equals_an_uninterrupted_one(text, tmp_path, objective, monkeypatch):
    changes = dict(steps=20, dropout=0.1, micro_batches=2)
    whole, task = made(text, objective, **changes)
    train_run(whole, task, tmp_path / "whole")
    batch = TextBatches.batch

    def stop(self, step):
        if step == 14:
            raise KeyboardInterrupt
        return batch(self, step)

    monkeypatch.setattr(TextBatches, "batch", stop)
    first, task = made(text, objective, **changes)
    assert train_run(first, task, tmp_path / "parts").step == 13
    monkeypatch.setattr(TextBatches, "batch", batch)
    rest, task = made(text, objective, **changes)
    train_run(rest, task, tmp_path / "parts", resume=True)
    one, two = (read_arrays(tmp_path / name / "model.safetensors")[0] for name in ("whole", "parts"))
    assert one.keys() == two.keys()
    assert all((one[name] == two[name]).all() for name in one)
    assert (tmp_path / "whole" / "history.jsonl").read_text() == (tmp_path / "parts" / "history.jsonl").read_text()


@pytest.mark.parametrize("objective", list(MODELS))
def test_batches_depend_on_the_seed_and_the_step(text, objective):
    run, task = made(text, objective)
    batches = [TextBatches(task, 4, seed, make_objective(run.settings, task.vocab)) for seed in (0, 0, 1)]

    def numbers(batch):
        (*inputs, targets) = (*batch[0], batch[1])
        return [x.tolist() for x in (*inputs, targets)]

    assert numbers(batches[0].batch(3)) == numbers(batches[1].batch(3))
    assert numbers(batches[0].batch(3)) != numbers(batches[0].batch(4))
    assert numbers(batches[0].batch(3)) != numbers(batches[2].batch(3))
    held_out = [[numbers(b) for b in batches[0].held_out()] for _ in range(2)]
    assert held_out[0] == held_out[1]
    if objective == "mlm":
        assert {len(row) - row.count(IGNORE) for b in held_out[0] for row in b[-1]} == {round(0.15 * 24)}


def test_a_text_model_sees_the_batches_that_it_saw_before_there_were_objectives(text):
    _, task = made(text, "clm")
    (x,), y = TextBatches(task, 5, 7).batch(3)
    starts = np.random.default_rng((7, 3)).integers(len(task.train) - 24, size=5)
    assert (x == [task.train[s:s + 24] for s in starts]).all()
    assert (y == [task.train[s + 1:s + 25] for s in starts]).all()


@pytest.fixture
def run(monkeypatch, capsys):
    """Call the command; returns (status, standard output, standard error)."""
    monkeypatch.setattr("numtrans.memory.keep_freed_memory", lambda: True)

    def call(*arguments):
        capsys.readouterr()
        status = cli.main([str(a) for a in arguments])
        out, err = capsys.readouterr()
        return status, out, err

    return call


def options(text, out):
    tiny = [part for name, value in TINY.items() for part in (f"--{name.replace('_', '-')}", value)]
    return ["train", "--task", "text", "--text", text, *tiny, "--steps", 3, "--out", out]


@pytest.mark.parametrize(("objective", "tokenizer"), [("mlm", "byte"), ("span", "char"), ("clm", "bpe")])
def test_the_command(run, text, tmp_path, objective, tokenizer):
    out = tmp_path / "run"
    status, printed, err = run(*options(text, out), "--objective", objective, "--tokenizer", tokenizer)
    assert (status, err) == (0, "")
    assert printed.startswith(f"{MODELS[objective]} with ")
    assert "validation loss" in printed
    assert run("train", "--resume", "--out", out, "--steps", 5)[0] == 0
    status, printed, err = run("sample", out, "--prompt", "one", "--length", 5)
    if objective == "clm":
        assert (status, err) == (0, "")
        assert printed.startswith("one")
    else:
        assert status == 2
        assert f"fills in hidden tokens (objective {objective}) and writes no texts" in err
    status, _, err = run("translate", out, "one")
    assert status == 2
    assert "Traceback" not in err
    assert ("use `numtrans sample`" in err) == (objective == "clm")


@pytest.mark.parametrize(("wrong", "message"), [
    (["--objective", "mlm", "--position", "rope"], "position='rope' has no meaning with the objective 'mlm'"),
    (["--objective", "span", "--norm", "layer"], "norm='layer' has no meaning with the objective 'span'"),
    (["--objective", "mlm", "--feedforward", "swiglu"], "feedforward is 'swiglu'"),
    (["--vocab-size", 300], "vocab_size has no meaning with the tokenizer 'char'"),
    (["--tokenizer", "bpe", "--vocab-size", 100], "vocab_size must be at least 260"),
    (["--task", "copy", "--objective", "mlm"], "--text has no meaning with --task copy"),
])
def test_what_the_command_refuses(run, text, tmp_path, wrong, message):
    status, _, err = run(*options(text, tmp_path / "run"), *wrong)
    assert status == 2
    assert message in err
    assert "Traceback" not in err
    assert not (tmp_path / "run" / "config.json").exists()


def test_options_of_texts_belong_to_texts(run, tmp_path):
    for option in (["--objective", "mlm"], ["--tokenizer", "bpe"], ["--vocab-size", 300]):
        status, _, err = run("train", "--task", "copy", *option, "--out", tmp_path / "run")
        assert status == 2
        assert f"{option[0]} has no meaning with --task copy" in err


@pytest.mark.parametrize("tokenizer", ["byte", "char"])
def test_a_run_does_not_go_on_with_other_data_of_the_same_vocabulary(run, tmp_path, tokenizer):
    text, out = tmp_path / "text.txt", tmp_path / "run"
    text.write_text("ab ba bab " * 100)
    assert run(*options(text, out), "--tokenizer", tokenizer)[0] == 0
    weights, kept = (out / "model.safetensors").read_bytes(), text.read_text()
    text.write_text(kept[::-1])
    for command in (["train", "--resume", "--out", out, "--steps", 5], ["evaluate", out]):
        status, _, err = run(*command)
        assert status == 2
        assert "the data" in err
        assert "changed" in err
    assert (out / "model.safetensors").read_bytes() == weights
    text.write_text(kept)
    assert run("evaluate", out)[0] == 0
    assert run("train", "--resume", "--out", out, "--steps", 5)[0] == 0


def test_runs_of_an_earlier_version_go_on(run, text, tmp_path):
    out = tmp_path / "run"
    assert run(*options(text, out))[0] == 0
    config = json.loads((out / "config.json").read_text())
    for name in ("objective", "tokenizer", "vocab_size", "data_digest", "recompute"):
        del config["settings"][name]
    (out / "config.json").write_text(json.dumps(config))
    assert type(load_run(out).model).__name__ == "GPT"
    assert run("sample", out, "--prompt", "one", "--length", 5)[0] == 0
    assert run("train", "--resume", "--out", out, "--steps", 5)[0] == 0
    assert json.loads((out / "history.jsonl").read_text().splitlines()[-1])["step"] == 5


def test_subword_runs_of_an_earlier_version_go_on(run, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    pairs, out = tmp_path / "pairs.tsv", tmp_path / "run"
    pairs.write_text("".join(f"number {i} it is\tdie Nummer {i} ist es\n" for i in range(60)))
    small = ["--layers", 1, "--d-model", 16, "--heads", 2, "--batch", 16, "--steps", 3]
    assert run("train", "--task", "pairs", "--source", pairs, "--level", "subword", *small, "--out", out)[0] == 0
    config = json.loads((out / "config.json").read_text())
    now = load_run(out)
    for name in ("source_vocab", "target_vocab"):
        config[name] = {"level": "subword", "tokenizer": json.loads(as_before(tokenizers, getattr(now, name)).to_str())}
    (out / "config.json").write_text(json.dumps(config))
    old = load_run(out)
    assert old.source_vocab == now.source_vocab
    assert old.translate(["number 7 it is"]) == now.translate(["number 7 it is"])
    assert run("train", "--resume", "--out", out, "--steps", 5)[0] == 0


def as_before(tokenizers, encoder):
    """The tokenizer that an earlier version would have stored."""
    letters = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    names = sorted(letters.alphabet())
    spelled = {bytes([b]): name for b, name in zip([t[0] for t in encoder.tokens[:256]], names, strict=True)}
    name = ["".join(spelled[bytes([b])] for b in token) for token in encoder.tokens]
    vocab = {t: i for i, t in enumerate(["<pad>", "<bos>", "<eos>", "<unk>", *name])}
    merges = [(name[a - 4], name[b - 4]) for a, b in encoder.merges]
    return tokenizers.Tokenizer(tokenizers.models.BPE(vocab, merges))


def test_mistakes_are_named(text, tmp_path):
    with pytest.raises(ConfigError, match="unknown objective 'rtd'; the objectives are clm, mlm, span"):
        made(text, "rtd")
    run, task = made(text, "mlm", steps=1)
    train_run(run, task, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["settings"]["objective"] = "clm"                             # then there is no place for the mask
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="do not have the sizes"):
        load_run(tmp_path)
    for name, value in (("objective", ["mlm"]), ("objective", 5), ("block", None), ("block", -1), ("block", "64")):
        wrong = {**config, "settings": {**config["settings"], "objective": "mlm", name: value}}
        (tmp_path / "config.json").write_text(json.dumps(wrong))
        with pytest.raises(CheckpointError, match=f"config.json: not the configuration of a run .*{name}"):
            load_run(tmp_path)
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(CheckpointError, match=r"config\.json: cannot be read: maximum recursion"):
        load_run(tmp_path)
