"""The benchmarks: their arithmetic, their processes, and that both libraries do the same work. Never a time."""

import argparse
import itertools
import json
import os
import runpy
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from numtrans.bench import (
    Contestant,
    ContestantError,
    Worker,
    _products,
    _profile,
    _worker,
    compete,
    median_seconds,
    peak_memory,
    ratio,
)
from numtrans.errors import DataError
from numtrans.module import Module

sys.path.insert(0, str(Path(__file__).parents[1]))  # the folder of `benchmarks`, which is not installed

from benchmarks import attention, common, demo, generate, growth, imports, memory, plots, profile, table, train  # noqa: E402
from benchmarks.__main__ import main  # noqa: E402


def turns(kept, discarded=()):
    return {"kept": list(kept), "discarded": list(discarded)}


def results(**rounds):
    return {"contestants": {name: {"rounds": those} for name, those in rounds.items()}}


def test_the_ratio_is_the_median_of_the_ratios_of_the_rounds():
    ours = [turns([1.0, 3.0, 2.0]), turns([9.0]), turns([4.0])]
    theirs = [turns([4.0]), turns([3.0]), turns([8.0])]
    found = ratio(results(ours=ours, theirs=theirs), "ours", "theirs")
    assert found["median"] == 0.5  # of 2/4, 9/3, 4/8
    assert found["of_medians"] == 1.0  # 4 / 4
    assert (found["low"], found["high"], found["rounds"], found["clean"]) == (0.5, 1.75, 3, True)


def test_a_round_in_which_one_only_waited_does_not_count():
    ours = [turns([], [100.0]), turns([2.0], [50.0])]
    theirs = [turns([1.0]), turns([4.0])]
    found = results(ours=ours, theirs=theirs)
    assert ratio(found, "ours", "theirs") == {
        "median": 0.5, "low": 0.5, "high": 0.5, "of_medians": 0.5, "rounds": 1, "clean": True,
    }  # fmt: skip
    assert median_seconds(found, "ours") == (2.0, True)


def test_where_all_samples_waited_they_are_taken_and_it_is_said():
    found = results(ours=[turns([], [3.0, 5.0])], theirs=[turns([2.0])])
    assert ratio(found, "ours", "theirs")["median"] == 2.0
    assert ratio(found, "ours", "theirs")["clean"] is False
    assert median_seconds(found, "ours") == (4.0, False)


def test_without_samples_the_numbers_are_nan():
    found = results(ours=[], theirs=[turns([1.0])])
    assert np.isnan(ratio(found, "ours", "theirs")["median"])
    assert np.isnan(median_seconds(found, "ours")[0])
    assert ratio(found, "ours", "theirs")["rounds"] == 0
    assert ratio(found, "ours", "theirs")["clean"]  # no sample that waited was taken
    assert median_seconds(found, "ours")[1]


def contestant(function, **arguments):
    return Contestant(function, f"bench_contestants:{function}", arguments, threads=1)


def test_one_that_fails_or_dies_leaves_the_others_their_results():
    said = []
    names = {"broken": {}, "fine": {"value": 3}, "dying": {}, "dying_later": {"calls": []}}
    entrants = [contestant(name, **arguments) for name, arguments in names.items()]
    found = compete(entrants, 2, want=1, budget=0.1, say=said.append)
    entries = found["contestants"]
    assert entries["fine"]["first"] == 3
    assert entries["fine"]["facts"]["note"] == 3
    assert [len(turn["kept"]) + len(turn["discarded"]) > 0 for turn in entries["fine"]["rounds"]] == [True, True]
    assert entries["broken"]["error"] == "ValueError: this one"
    assert "status 7" in entries["dying"]["error"]
    assert "about to die" in entries["dying"]["error"]
    assert "status 9" in entries["dying_later"]["error"]
    assert [line.partition(":")[0] for line in said if "ready" not in line] == ["broken", "dying", "dying_later"]
    assert not found["interrupted"]
    json.dumps(found)


def test_one_that_does_not_answer_is_ended():
    worker = Worker(1)
    with pytest.raises(ContestantError, match="no answer to 'setup' within 0 seconds"):
        worker.ask(0.2, do="setup", factory="bench_contestants:sleeping", arguments={})
    assert worker.process.poll() is not None


def test_what_a_contestant_prints_is_no_reply():
    found = compete([contestant("printing")], 1, want=1, budget=0.1)
    assert found["contestants"]["printing"]["error"] is None


def test_threads_are_set_and_variables_that_choose_a_kernel_removed(monkeypatch):
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Prescott")
    monkeypatch.setenv("OPENBLAS_L2_SIZE", "1")
    facts = compete([contestant("environment")], 0)["contestants"]["environment"]["facts"]
    assert [facts[name] for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")] == ["1"] * 3
    assert facts["OPENBLAS_CORETYPE"] is None
    assert facts["OPENBLAS_L2_SIZE"] is None
    assert facts["numpy"] == np.__version__


def test_ctrl_c_keeps_what_has_been_measured(monkeypatch):
    asked = Worker.ask
    count = []

    def ask(self, limit, **request):
        count.append(1)
        if len(count) > 3:
            raise KeyboardInterrupt
        return asked(self, limit, **request)

    monkeypatch.setattr(Worker, "ask", ask)
    found = compete([contestant("fine", value=1)], 9, want=1, budget=0.1)
    assert found["interrupted"]
    assert len(found["contestants"]["fine"]["rounds"]) == 2


def test_memory_counts_what_is_kept_and_what_a_call_needs():
    found = peak_memory(contestant("large"))
    assert 30e6 < found["made"] - found["warm"] < 40e6
    assert 60e6 < found["peak"] - found["warm"] < 80e6
    assert found["imported"] <= found["warm"]


def test_a_contestant_that_fails_has_no_memory():
    with pytest.raises(ContestantError, match="ValueError: this one"):
        peak_memory(contestant("broken"))


def test_a_turn_may_last_its_budget_however_long(monkeypatch):
    limits = []
    asked = Worker.ask

    def ask(self, limit, **request):
        limits.append((request["do"], limit))
        return asked(self, 60.0, **request | {"budget": 0.1} if "budget" in request else request)

    monkeypatch.setattr(Worker, "ask", ask)
    found = compete([contestant("fine", value=1)], 1, want=1, budget=500.0, limit=20.0)
    assert len(found["contestants"]["fine"]["rounds"]) == 1
    assert limits == [("setup", 20.0), ("sample", 520.0)]


# samples


@pytest.fixture
def clock(monkeypatch):
    """A clock that a call moves by a second, and threads that wait as told: a share of each sample."""
    state = {"now": 0.0, "waited": 0.0, "shares": itertools.repeat(0.0)}

    def run():
        state["now"] += 1.0
        state["waited"] += next(state["shares"])

    monkeypatch.setattr(_worker.time, "perf_counter", lambda: state["now"])
    monkeypatch.setattr(_worker, "waiting", lambda: state["waited"])
    monkeypatch.setattr(_worker, "wait_for_quiet", lambda end: None)
    bench = _worker.Bench()
    bench.run = run
    return bench, state


def test_a_sample_that_waited_for_a_core_is_taken_again(clock):
    bench, state = clock
    state["shares"] = iter([0.02, 0.04, 0.5, 0.0, 0.01, 9.0])
    assert bench.sample(want=3, budget=100.0) == {"kept": [1.0] * 3, "discarded": [1.0] * 2}


def test_the_budget_ends_the_tries(clock):
    bench, state = clock
    state["shares"] = itertools.repeat(0.5)
    assert bench.sample(want=3, budget=4.5) == {"kept": [], "discarded": [1.0] * 5}
    assert bench.sample(want=3, budget=0.0) == {"kept": [], "discarded": [1.0] * 2}


def test_where_waiting_is_not_known_all_samples_are_kept(clock, monkeypatch):
    bench, _ = clock
    monkeypatch.setattr(_worker, "waiting", lambda: None)
    assert bench.sample(want=2, budget=100.0) == {"kept": [1.0] * 2, "discarded": []}


def test_short_calls_are_repeated_within_a_sample(clock):
    bench, state = clock
    bench.calls = 4
    state["shares"] = itertools.repeat(0.02)  # 0.08 of 4 seconds
    assert bench.sample(want=1, budget=100.0) == {"kept": [1.0], "discarded": []}


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the system does not tell")
def test_linux_tells_how_long_threads_waited():
    first = _worker.waiting()
    assert first >= 0
    assert _worker.waiting() >= first


# the matrix products


def test_the_products_are_those_of_a_training_step():
    size = dict(kind="gpt", num_layers=3, d_model=8, num_heads=2, d_ff=20, tokens=5, batch=4, vocab_size=7)
    weights = {name: np.ones(shape, np.float32) for name, shape in _products.weight_shapes(size).items()}
    todo = _products.products(size, weights, 4)
    for a, b, out in todo:
        assert (a @ b).shape == out.shape
    matrices = 3 * (3 * 8 * 8 + 8 * 8 + 2 * 8 * 20) + 8 * 7
    attention_each = 4 * 2 * 5 * 5 * 4  # batch, heads, pairs, features
    assert sum(a.size * b.shape[-1] for a, b, _ in todo) == 3 * 4 * 5 * matrices + 3 * 6 * attention_each


def test_an_encoder_decoder_has_cross_attention_and_bert_a_head():
    size = dict(num_layers=2, d_model=8, num_heads=2, d_ff=20, tokens=5, batch=4, vocab_size=7)
    encoder = 2 * (4 * 64 + 2 * 160)
    of = {kind: _products.weight_shapes({"kind": kind, **size}) for kind in ("gpt", "bert", "encoder-decoder")}
    total = {kind: sum(a * b for a, b in shapes.values()) for kind, shapes in of.items()}
    assert total == {"gpt": encoder + 56, "bert": encoder + 64 + 56, "encoder-decoder": 2 * encoder + 2 * 256 + 56}


def test_the_batch_is_split_over_the_threads(monkeypatch):
    size = dict(kind="gpt", num_layers=1, d_model=8, num_heads=2, d_ff=16, tokens=4, batch=3, vocab_size=8)
    work = set()
    for threads in (1, 2, 8):
        monkeypatch.setattr(_products, "THREADS", threads)
        monkeypatch.setattr(_products, "threadpool_limits", lambda *arguments: None)
        step, facts = _products.train(size)
        step()
        work.add(facts["gflop"])
    assert len(work) == 1


# the command line


NUMBERS = (
    ("train", "--threads", "0 -1 1.5 x"), ("import", "--rounds", "0 -1"), ("memory", "--rounds", "0"),
    ("growth", "--threads", "-1"), ("profile", "--rounds", "0"), ("attention", "--lengths", "0 -4"),
    ("generate", "--tokens", "0 -1"), ("train", "--budget", "0 -1 nan inf x"), ("attention", "--budget", "nan"),
)  # fmt: skip


@pytest.mark.parametrize(("command", "option", "values"), NUMBERS, ids=lambda text: text)
def test_a_number_that_makes_no_sense_is_refused(command, option, values, tmp_path, capsys):
    for value in values.split():
        with pytest.raises(SystemExit) as stopped:
            main([command, option, value, "--out", str(tmp_path)])
        assert stopped.value.code == 2
        assert f"argument {option}: " in capsys.readouterr().err


# the benchmarks and their table


def case(**seconds):
    entries = {
        name: {"facts": {}, "first": None, "error": None, "rounds": [turns([s]) for s in those]}
        for name, those in seconds.items()
    }
    return {"contestants": entries, "sees_waiting": True, "interrupted": False}


def named(results, **names):
    """`results` with its contestants renamed."""
    entries = results["contestants"]
    return results | {"contestants": {names.get(name, name): entry for name, entry in entries.items()}}


def training(ours, eager, compiled, products):
    found = case(numtrans=ours, eager=eager, compiled=compiled, products=products)
    return named(found, eager=train.EAGER, compiled=train.COMPILED, products=train.PRODUCTS)


def peaks(highest):
    return {"imported": 10, "warm": 12, "made": 12, "peak": highest, "peak_ever": highest}


def test_the_table_names_goals_numbers_and_commands(tmp_path, capsys):
    common.save(tmp_path, "train-S", {}, training([0.6, 0.6], [1.0, 1.0], [0.5, 0.5], [0.4, 0.4]))
    common.save(tmp_path, "train-S-1-thread", {}, training([1.1], [1.0], [], []))
    common.save(tmp_path, "memory-M", {}, {"numtrans": [peaks(13), peaks(19), peaks(14)], train.EAGER: [peaks(15)]})
    imported = {"seconds": {"numpy": [1.0, 1.0, 2.0], "numtrans": [1.2, 1.2, 9.0]}}
    common.save(tmp_path, "import", {}, imported)
    common.save(tmp_path, "demo", {}, {"seconds": 91})
    table.run(argparse.Namespace(out=tmp_path))
    printed = capsys.readouterr().out.splitlines()
    command = "`python -m benchmarks train --sizes S`"
    assert f"| step S: of PyTorch eager | <= 0.80 | 0.60 (0.60 to 0.60; 2 rounds) | yes | {command} |" in printed
    best = "step S: of PyTorch's best (torch.compile)"
    assert f"| {best} | <= 0.95 | 1.20 (1.20 to 1.20; 2 rounds) | no | {command} |" in printed
    assert f"| step S: of the matrix products | <= 1.35 | 1.50 (1.50 to 1.50; 2 rounds) | no | {command} |" in printed
    assert sum("S-1-thread" in row for row in printed) == 1
    start = "| memory M: of PyTorch eager | <= 0.80 | 0.80 (above a tiny step: 0.67) | yes |"
    assert any(row.startswith(start) for row in printed)
    assert any(row.startswith("| import numtrans: of import numpy | <= 1.5 | 1.20 | yes |") for row in printed)
    assert any(row.startswith("| numtrans demo: training | <= 90 s | 91 s | no |") for row in printed)


def test_attention_has_a_time_a_memory_and_a_growth_of_the_memory(tmp_path):
    for tokens, extra in ((512, 3e6), (1024, 6e6), (2048, 24e6)):
        found = named(case(ours=[1.0], fused=[2.0]), ours=attention.OURS, fused=attention.FUSED)
        found["extra"] = {attention.OURS: extra, attention.FUSED: 12e6}
        common.save(tmp_path, f"attention-{tokens}", {}, found)
    rows = {what: (measured, met) for what, _, measured, met, _ in table.attention_rows(tmp_path)}
    assert rows["attention, T 512: time, of PyTorch fused"] == ("0.50 (0.50 to 0.50; 1 round)", "yes")
    assert rows["attention, T 1024: extra memory, of PyTorch fused"] == ("0.50", "no")
    assert rows["attention: power of T that the memory follows, from T 1024 to 2048"] == ("2.00", "no")
    plots.attention(common.load(tmp_path, "attention"), tmp_path / "attention.png")
    assert (tmp_path / "attention.png").stat().st_size > 1000


def test_tokens_a_second_are_compared_with_the_quicker_peer_and_the_memory():
    found = case(numtrans=[2.0], a=[5.0], b=[4.0], c=[0.01])
    found = named(found, a=generate.GENERATE, b=generate.LOOP, c=generate.MEMORY) | {"tokens": 100}
    assert generate.quicker_peer(found) == generate.LOOP
    assert generate.bound_share(found, generate.NUMTRANS) == pytest.approx(0.5)  # 100 passes of 0.01 s, in 2 s
    entries = found["contestants"]
    for name, tokens in ((generate.NUMTRANS, [1, 2]), (generate.GENERATE, [1, 2]), (generate.LOOP, None)):
        entries[name]["first"] = tokens
    assert generate.same_tokens(found)
    entries[generate.LOOP]["first"] = [1, 3]
    assert not generate.same_tokens(found)


def test_growth_is_a_line_and_a_spread():
    assert growth.line_fit([1, 2, 3], [12.0, 14.0, 16.0]) == pytest.approx((10.0, 2.0, 0.0))
    assert growth.line_fit([0, 1, 2], [1.0, 2.0, 1.0])[2] == pytest.approx(1 / 3)  # the line is 4/3 everywhere
    assert growth.spread([1, 2, 4], [1.0, 2.2, 4.0]) == pytest.approx(0.1)


def test_growth_is_drawn_and_tabled(tmp_path):
    found, line = case(one=[2.0], two=[3.0], three=[4.0]), "1000.0 ms + 125000.0 us each, to 0%"
    cases = {"batch": {"about": "", "unit": "sequence", "points": [8, 16, 24], "results": found},
             "prefix": {"about": "", "unit": None, "points": [8, 16, 24], "results": found}}  # fmt: skip
    for axis, content in cases.items():
        common.save(tmp_path, f"growth-{axis}", {}, content)
    rows = [(measured, met) for _, _, measured, met, _ in table.growth_rows(tmp_path)]
    assert rows == [(f"50% ({line})", "no"), (line, "yes")]
    plots.growth(cases, tmp_path / "growth.png")
    assert (tmp_path / "growth.png").stat().st_size > 1000


def test_training_is_drawn_also_where_a_contestant_failed(tmp_path):
    cases = {"S": {"results": training([1.0], [2.0], [], [0.5])}, "M": {"results": training([1.0], [], [1.0], [0.5])}}
    plots.train(cases, tmp_path / "train.png")
    assert (tmp_path / "train.png").stat().st_size > 1000


def test_a_result_says_where_when_and_how_it_was_made(tmp_path):
    common.save(tmp_path, "train-S", {"threads": 2}, case(numtrans=[1.5]))
    content = common.load(tmp_path, "train")["S"]
    assert content["results"] == case(numtrans=[1.5])
    assert content["threads"] == 2
    assert content["command"].startswith("python -m benchmarks")
    assert {"processor", "cores", "memory_gb", "system", "python"} <= set(content["machine"])


def test_import_lists_large_packages():
    found, interrupted = imports.measure(1)
    assert not interrupted
    assert set(found["seconds"]) == {"numpy", "numtrans"}
    assert len(found["seconds"]["numtrans"]) == 1
    assert found["modules"]["numtrans"] > found["modules"]["numpy"]
    assert not {"torch", "transformers", "matplotlib", "tqdm"} & set(found["heavy"])


def test_memory_is_the_share_of_medians():
    found = {"numtrans": [peaks(11), peaks(12), peaks(40)], train.EAGER: [peaks(14)]}
    assert memory.share(found) == 0.5
    assert np.isnan(memory.share({"numtrans": [peaks(11)]}))


def test_the_profile_has_the_own_time_of_each_class(tmp_path, capsys):
    arguments = ["profile", "--sizes", "S", "--rounds", "1", "--threads", "2", "--out", str(tmp_path)]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "4 layers, width 128, 4 heads, d_ff 512, T 64, batch 6" in printed
    results = common.load(tmp_path, "profile")["S"]["results"]
    found = {(name, direction): seconds for name, direction, seconds in results["contestants"]["profile"]["first"]}
    assert {("Linear", "forward"), ("Linear", "backward"), ("AdamW", "step")} <= found.keys()
    assert all(seconds > 0 for seconds in found.values())
    assert found["EncoderLayer", "forward"] < found["Linear", "forward"] / 10  # its parts are not in it


def test_own_times_are_without_those_of_the_parts(monkeypatch):
    clock = iter(range(100))
    monkeypatch.setattr(_profile.time, "perf_counter", lambda: next(clock))

    class Part(Module):
        def forward(self, x):
            return x

    class Whole(Part):
        def __init__(self):
            super().__init__()
            self.parts = [Part(), Part()]

        def forward(self, x):
            return self.parts[1](self.parts[0](x))

    class Optimizer:
        def step(self):
            pass

    model, optimizer = Whole(), Optimizer()
    found = _profile.own_times([model], optimizer, lambda: (model(1), optimizer.step()))
    # the clock ticks when a call begins and when it ends: 5 ticks in the whole, 1 in each part
    assert found == {("Whole", "forward"): 3, ("Part", "forward"): 2, ("Optimizer", "step"): 1}
    assert "forward" not in vars(model)
    assert "step" not in vars(optimizer)


# results that are there stay


EMPTY = {
    "train-S": case(numtrans=[], eager=[]), "memory-S": {}, "attention-512": case(numtrans=[]),
    "import": {"seconds": {"numpy": [], "numtrans": []}, "modules": {"numpy": 5}, "heavy": []},
    "growth-batch": {"about": "", "unit": None, "points": [1], "results": case(one=[])},
    "generate-gpt2": case(numtrans=[]) | {"tokens": 5, "bytes": 8}, "profile-S": case(profile=[]),
}  # fmt: skip


@pytest.mark.parametrize("name", EMPTY)
def test_nothing_measured_replaces_no_file(name, tmp_path, capsys):
    path = tmp_path / f"{name}.json"
    common.save(tmp_path, name, {}, EMPTY[name])
    assert not path.exists()
    assert f"{name}: nothing was measured, {path} is not written" in capsys.readouterr().err
    path.write_text("good")
    common.save(tmp_path, name, {}, EMPTY[name])
    assert path.read_text() == "good"
    assert f"{name}: nothing was measured, {path} is left as it is" in capsys.readouterr().err


def test_one_round_of_one_contestant_is_written(tmp_path):
    common.save(tmp_path, "train-S", {}, case(numtrans=[1.0], eager=[]))
    common.save(tmp_path, "demo", {}, {"seconds": 0})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demo.json", "train-S.json"]


# Ctrl-C


def stopping(values):
    """A function that returns these values one after the other, and then meets Ctrl-C."""
    values = iter(values)

    def call(*arguments, **more):
        for value in values:
            return value
        raise KeyboardInterrupt

    return call


@pytest.fixture
def command(tmp_path, capsys):
    """Run a benchmark with no warning but of what is outdated; returns (status, stdout, names of the files)."""

    def call(*arguments):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", DeprecationWarning)  # of libraries among each other: an old Matplotlib
            status = main([*arguments, "--out", str(tmp_path)])
        return status, capsys.readouterr().out, sorted(path.name for path in tmp_path.iterdir())

    return call


def test_ctrl_c_in_memory_writes_what_there_is(command, monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "peak_memory", stopping([peaks(30), peaks(40), peaks(50)]))
    status, printed, files = command("memory", "--sizes", "S", "M")
    assert (status, files) == (130, ["memory-S.json"])
    found = common.load(tmp_path, "memory")["S"]["results"]
    assert found == {"numtrans": [peaks(30), peaks(50)], "PyTorch eager": [peaks(40)]}
    assert "1.00" in printed  # the median of 20 and 40, over 30


def test_ctrl_c_in_memory_before_the_peer_prints_a_dash(command, monkeypatch):
    monkeypatch.setattr(memory, "peak_memory", stopping([peaks(30)]))
    status, printed, _ = command("memory", "--sizes", "S")
    assert status == 130
    assert "nan" not in printed
    assert printed.rstrip().splitlines()[-3].endswith("-")


def test_ctrl_c_in_import_writes_the_rounds_that_were_done(command, monkeypatch, tmp_path):
    once = [[0.5, 10, []], [0.5, 20, ["tqdm"]]]  # numtrans first, then numpy first, and the third round is not whole
    rounds = [[9.0, 20, ["tqdm"]], [9.0, 10, []], *once, [0.75, 20, ["tqdm"]]]
    monkeypatch.setattr(imports, "import_once", stopping(rounds))
    status, printed, _ = command("import")
    assert status == 130
    assert common.load(tmp_path, "import")["import"]["results"]["seconds"] == {"numpy": [0.5], "numtrans": [0.5]}
    assert "median of the ratios of 1 rounds: 1.00" in printed


def test_ctrl_c_before_the_first_round_of_import(command, monkeypatch):
    monkeypatch.setattr(imports, "import_once", stopping([[0.5, 20, []], [0.5, 10, []]]))
    assert command("import")[::2] == (130, [])


def test_an_import_that_fails_is_an_error(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(imports, "PROGRAM", "raise ImportError('no {module}')")
    assert main(["import", "--out", str(tmp_path)]) == 2
    assert "benchmarks: import numtrans ended with status 1: " in capsys.readouterr().err


def attention_times(*seconds, interrupted=False):
    found = named(case(ours=seconds, fused=seconds), ours=attention.OURS, fused=attention.FUSED)
    return found | {"interrupted": interrupted}


def test_ctrl_c_in_the_times_of_attention(command, monkeypatch):
    monkeypatch.setattr(attention, "compete", stopping([attention_times(1.0, interrupted=True)]))
    status, _, files = command("attention")
    assert (status, files) == (130, ["attention-512.json", "attention.png"])


def test_ctrl_c_in_the_memory_of_attention(command, monkeypatch, tmp_path):
    monkeypatch.setattr(attention, "compete", stopping([attention_times(1.0)]))
    monkeypatch.setattr(attention, "peak_memory", stopping([peaks(40)]))
    assert command("attention")[0] == 130
    assert common.load(tmp_path, "attention")["512"]["results"]["extra"] == {attention.OURS: 28}


def test_ctrl_c_before_anything_of_attention(command, monkeypatch):
    monkeypatch.setattr(attention, "compete", stopping([attention_times(interrupted=True)]))
    assert command("attention")[::2] == (130, [])


COMPETE = {"train": train, "generate": generate, "growth": growth, "profile": profile}


@pytest.mark.parametrize("name", COMPETE)
def test_ctrl_c_before_the_first_round_prints_no_number(name, command, monkeypatch):
    def compete(contestants, *arguments, **more):
        return case(**{c.name: [] for c in contestants}) | {"interrupted": True}

    about = {"prompt": [1], "bytes": 8, "weights": "random weights"}
    monkeypatch.setattr(COMPETE[name], "compete", compete)
    monkeypatch.setattr(generate, "write_model", lambda *arguments: about)
    status, printed, files = command(name, "--threads", "2")
    assert (status, files) == (130, [])
    assert "nan" not in printed
    assert "~" not in printed
    assert "waited" not in printed


def test_ctrl_c_in_the_demo(command, monkeypatch):
    monkeypatch.setattr(demo.subprocess, "run", stopping([]))
    assert command("demo")[::2] == (130, [])


# what was not measured


def test_no_rounds_of_the_peer_are_no_waiting(capsys):
    found = case(numtrans=[0.5], peer=[])
    found["contestants"]["peer"]["error"] = "ImportError: no"
    common.print_times(found, "peer")
    printed = capsys.readouterr().out
    assert "~" not in printed
    assert "nan" not in printed
    assert next(line for line in printed.splitlines() if line.startswith("numtrans")).split()[:3] == [
        "numtrans", "500.000", "-"]  # fmt: skip


def test_growth_without_a_point_did_not_wait(capsys):
    content = {"about": "", "unit": None, "points": [8, 16], "results": case(one=[2.0], two=[])}
    assert growth.clean(content)
    content["results"]["contestants"]["one"]["rounds"] = [turns([], [1.0])]
    assert not growth.clean(content)


def test_the_table_has_dashes_where_nothing_was_measured(tmp_path, capsys):
    common.save(tmp_path, "train-S", {}, named(case(eager=[1.0]), eager=train.EAGER))
    common.save(tmp_path, "train-M", {}, named(case(own=[1.0], eager=[2.0]), own=train.PROCESSES, eager=train.EAGER))
    common.save(tmp_path, "memory-S", {}, {"numtrans": [peaks(20)]})
    common.save(tmp_path, "attention-512", {}, named(case(numtrans=[1.0], peer=[]), peer=attention.FUSED))
    common.save(tmp_path, "attention-1024", {}, case(numtrans=[1.0]))
    names = {"own": generate.NUMTRANS, "a": generate.GENERATE, "b": generate.LOOP, "c": generate.MEMORY}
    written = named(case(own=[], a=[1.0], b=[], c=[]), **names)
    common.save(tmp_path, "generate-gpt2", {}, written | {"tokens": 5, "bytes": 8})
    assert main(["table", "--out", str(tmp_path)]) == 0
    rows = [line.split(" | ")[:4] for line in capsys.readouterr().out.splitlines() if line.startswith("| ")][1:]
    assert {what.removeprefix("| "): (measured, met) for what, _, measured, met in rows} == {
        "step M, processes: of PyTorch eager": ("0.50 (0.50 to 0.50; 1 round)", "yes"),
        "memory S: of PyTorch eager": ("- (above a tiny step: -)", "-"),
        "attention, T 512: time, of PyTorch fused": ("-", "-"),
        "attention, T 512: extra memory, of PyTorch fused": ("-", "-"),
        "GPT-2 124M: tokens/s, times those of transformers generate": ("-", "-"),
        "GPT-2 124M: share of the memory-bandwidth bound": ("-", "-"),
    }


def test_memory_that_is_none_has_no_power(tmp_path):
    for tokens in (512, 1024):
        found = attention_times(1.0) | {"extra": {attention.OURS: 0, attention.FUSED: 0}}
        common.save(tmp_path, f"attention-{tokens}", {}, found)
    rows = {what: measured for what, _, measured, _, _ in table.attention_rows(tmp_path)}
    assert rows["attention, T 512: extra memory, of PyTorch fused"] == "-"
    assert not any("power" in what for what in rows)


def test_a_picture_of_one_contestant_alone_is_not_drawn(tmp_path):
    plots.train({"S": {"results": named(case(eager=[1.0]), eager=train.EAGER)}}, tmp_path / "train.png")
    assert list(tmp_path.iterdir()) == []


# errors


@pytest.mark.parametrize("choice", [["--sizes", "S-1-thread"], ["--sizes", "S", "--threads", "1"]], ids=" ".join)
def test_no_contestant_left_is_an_error_before_anything_runs(choice, tmp_path, capsys):
    out = tmp_path / "new"
    assert main(["train", *choice, "--contestants", "processes", "--out", str(out)]) == 2
    printed = capsys.readouterr()
    assert f"benchmarks: train: {choice[1]} with 1 thread expected a contestant other than processes" in printed.err
    assert printed.out == ""
    assert not out.exists()


def good(tmp_path):
    common.save(tmp_path, "train-S", {}, case(numtrans=[1.0]))
    return tmp_path / "train-S.json", common.load(tmp_path, "train")["S"]


def without(content, *keys):
    *before, last = keys
    for key in before:
        content = content[key]
    del content[last]


LACKING = (
    ("name",), ("date",), ("machine",), ("machine", "cores"), ("results",), ("results", "contestants"),
    ("results", "contestants", "numtrans", "rounds"), ("results", "contestants", "numtrans", "rounds", 0, "kept"),
)  # fmt: skip


@pytest.mark.parametrize("keys", LACKING, ids=str)
def test_a_file_without_a_part_is_named(keys, tmp_path, capsys):
    path, content = good(tmp_path)
    without(content, *keys)
    path.write_text(json.dumps(content))
    assert main(["table", "--out", str(tmp_path)]) == 2
    printed = capsys.readouterr().err
    assert f"benchmarks: {path}: expected the results of a benchmark" in printed
    assert str(keys[-1]) in printed


@pytest.mark.parametrize("text", ["", "[]", "null", '{"name": "train-S"', "{}", "\xff"])
def test_a_file_that_is_no_result_is_named(text, tmp_path, capsys):
    path, _ = good(tmp_path)
    path.write_bytes(text.encode("latin-1"))
    assert main(["table", "--out", str(tmp_path)]) == 2
    assert f"benchmarks: {path}: " in capsys.readouterr().err


PARTS = (
    ("memory-S", {"numtrans": [{"peak": 1}]}), ("memory-S", {"numtrans": 3}), ("import", {"seconds": {"numpy": [1]}}),
    ("growth-batch", {"unit": None, "points": [1], "results": {}}), ("generate-gpt2", case(numtrans=[1.0])),
    ("attention-0", case(numtrans=[1.0])), ("attention-all", case(numtrans=[1.0])), ("train-S", {"contestants": 3}),
)  # fmt: skip


@pytest.mark.parametrize(("name", "results"), PARTS)
def test_results_of_another_form_are_named(name, results, tmp_path):
    path, content = good(tmp_path)
    path.unlink()
    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps(content | {"name": name, "results": results}))
    with pytest.raises(DataError, match=r"expected (the results of a benchmark|the name attention-T)") as raised:
        table.run(argparse.Namespace(out=tmp_path))
    assert str(raised.value).startswith(f"{path}: ")


def test_a_table_of_no_folder_is_an_error(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    for name in ("none", "file"):
        assert main(["table", "--out", str(tmp_path / name)]) == 2
        assert f"{tmp_path / name}: expected the folder of the results" in capsys.readouterr().err


@pytest.mark.skipif(os.name == "nt", reason="a pipe whose reader ends")
def test_a_reader_that_ends_is_no_error(tmp_path):
    run = [sys.executable, "-m", "benchmarks", "table", "--out", str(tmp_path)]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(run, cwd=Path(__file__).parents[1], stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


# the script of the guide on parallel training


@pytest.fixture(scope="module")
def scaling():
    return runpy.run_path(str(Path(__file__).parents[1] / "docs" / "guides" / "scaling.py"))


@pytest.mark.parametrize("arguments", [["X"], [], ["S", "0"], ["S", "nan"], ["S", "soon"]], ids=" ".join)
def test_a_size_that_is_unknown_and_seconds_that_are_none_are_refused(arguments, scaling, capsys):
    with pytest.raises(SystemExit) as stopped:
        scaling["main"](arguments)
    assert stopped.value.code == 2
    printed = capsys.readouterr().err
    assert "seconds" in printed if arguments[1:] else "size" in printed
    assert "tiny" in printed  # what there is


@pytest.mark.parametrize(("kept", "ratios"), [((3, 4), [True, True]), ((3, 0), [True, False]), ((0, 4), [False] * 2)])
def test_times_as_fast_need_steps_that_did_not_wait(kept, ratios, scaling, capsys):
    scaling["report"]({"one core": (12.0, kept[0]), "2 threads": (8.0, kept[1])})
    one, two = capsys.readouterr().out.splitlines()
    assert ["1.00 times" in one, "1.50 times" in two] == ratios
    assert ["every step waited" in line for line in (one, two)] == [count == 0 for count in kept]


def test_other_ranks_than_the_first_print_nothing(scaling, capsys):
    scaling["report"]({})
    assert capsys.readouterr().out == ""
