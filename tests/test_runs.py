"""Runs as functions, without the command line."""

import functools

import numpy as np
import pytest

from numtrans import cli, runs
from numtrans.cli.train import settings_of
from numtrans.data import DateTask
from numtrans.errors import ConfigError
from numtrans.layers import Checkpoint
from numtrans.runs import default_settings, exact_match, load_run, make_run, train_run


@pytest.mark.parametrize(("task", "command"), [("dates", "demo"), ("dates", "train"), ("text", "train")])
def test_default_settings_are_those_of_the_command_line(task, command):
    arguments = cli.parser().parse_args([command])
    assert settings_of(arguments, task) == default_settings(task)


def test_changes():
    settings = default_settings("copy", steps=7, d_model=16, seed=3)
    assert (settings["task"], settings["steps"], settings["d_model"], settings["seed"]) == ("copy", 7, 16, 3)
    unchanged = {name: value for name, value in settings.items() if name not in ("steps", "d_model", "seed")}
    assert unchanged.items() <= default_settings("copy").items()
    assert default_settings("copy")["steps"] != 7
    with pytest.raises(ConfigError, match="unknown settings width; the settings are"):
        default_settings("dates", width=16)


def test_a_run_from_the_default_settings(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "DateTask", functools.partial(DateTask, n_train=64, n_valid=8, n_test=8))
    task = runs.make_task("dates")
    settings = default_settings("dates", steps=3, layers=1, d_model=16, heads=2, batch=8)
    run = make_run(task, settings)
    trainer = train_run(run, task, tmp_path)
    assert trainer.step == 3
    assert np.isfinite(trainer.history["loss"]).all()
    again = load_run(tmp_path)
    assert again.settings["d_model"] == 16
    assert exact_match(again, task.test) == exact_match(run, task.test)


def test_recomputation_trains_the_same_weights(tmp_path, monkeypatch):
    """Bit for bit, dropout included; the weights load into a plain model, and a run may go on with it."""
    monkeypatch.setattr(runs, "DateTask", functools.partial(DateTask, n_train=64, n_valid=8, n_test=8))
    task = runs.make_task("dates")
    settings = default_settings("dates", layers=2, d_model=16, heads=2, batch=8, dropout=0.2)

    def train(folder, steps, recompute, resume=False):
        run = make_run(task, {**settings, "steps": steps, "recompute": recompute})
        history = train_run(run, task, tmp_path / folder, resume=resume).history
        layers = [part for part in run.model.modules() if isinstance(part, Checkpoint)]
        assert len(layers) == (4 if recompute else 0)
        assert load_run(tmp_path / folder).settings["recompute"] == recompute
        return load_run(tmp_path / folder).model.state_dict(), history

    for steps, first, second in ((3, False, True), (5, True, False)):  # then each goes on in the other way
        weights, history = train("a", steps, first, resume=steps > 3)
        others, other_history = train("b", steps, second, resume=steps > 3)
        assert history == other_history
        assert all((others[name] == value).all() for name, value in weights.items())


@pytest.mark.parametrize("wrong", [dict(task="date"), dict(task=None), dict(stepz=1)])
def test_default_settings_refuse_what_is_unknown(wrong):
    with pytest.raises(ConfigError, match="unknown"):
        default_settings(**wrong)
