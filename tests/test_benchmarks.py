"""The benchmarks: their arithmetic, their processes, and that both libraries do the same work. Never a time."""

import json
import os
import sys
import time

import numpy as np
import pytest

from numtrans.bench import Contestant, ContestantError, Worker, compete, median_seconds, peak_memory, ratio


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


# what the processes of the tests below run


def fine(value):
    return (lambda: value), {"note": value}


def broken():
    raise ValueError("this one\nis broken")


def dying():
    sys.stderr.write("about to die\n")
    os._exit(7)


def dying_later(calls):
    def run():
        calls.append(1)
        if len(calls) > 3:
            os._exit(9)

    return run, {}


def sleeping():
    time.sleep(60)


def printing():
    print("not a reply")
    return (lambda: print("neither")), {}


def environment():
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
    return (lambda: None), {name: os.environ.get(name) for name in names}


def large():
    kept = np.ones(4_000_000)  # 32 MB
    return (lambda: float((kept + kept)[0])), {}  # another 32 MB during the call


def contestant(function, **arguments):
    return Contestant(function, f"test_benchmarks:{function}", arguments, threads=1)


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
        worker.ask(0.2, do="setup", factory="test_benchmarks:sleeping", arguments={})
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
    assert 30e6 < found["made"] < 40e6
    assert 60e6 < found["peak"] < 80e6


def test_a_contestant_that_fails_has_no_memory():
    with pytest.raises(ContestantError, match="ValueError: this one"):
        peak_memory(contestant("broken"))
