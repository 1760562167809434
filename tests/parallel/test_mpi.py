"""Training over the ranks of MPI: the parameters of one process, equal replicas, and an end for every failure.

The ranks run mpi_job.py; all that they survive is looked at in one start of four of them.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import mpi_job
import numpy as np
import pytest

from numtrans import cli
from numtrans.checkpoint import read_arrays
from numtrans.errors import ConfigError
from numtrans.layers import BatchNorm, Linear
from numtrans.losses import CrossEntropyLoss, MSELoss
from numtrans.parallel import Ranks, make_workers
from numtrans.parallel.mpi import processes_started, world

RANKS = 4
FREE = {  # Open MPI counts cores and asks who runs it
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
}  # fmt: skip


def mpirun(ranks, *arguments, seconds=100):
    """Run Python under mpirun and mpi4py. Skips where either is missing; a job that hangs is an error."""
    pytest.importorskip("mpi4py")
    command = shutil.which("mpirun", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if command is None:
        pytest.skip("no mpirun")
    line = [command, "-n", str(ranks), sys.executable, "-m", "mpi4py", *map(str, arguments)]
    environment = {**os.environ, **FREE}
    return subprocess.run(line, capture_output=True, text=True, timeout=seconds, env=environment, check=False)


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """The folder in which four ranks have left what they found."""
    folder = tmp_path_factory.mktemp("mpi")
    result = mpirun(RANKS, mpi_job.__file__, folder)
    assert result.returncode == 0, result.stderr
    return folder


def found(job, name):
    """What each rank found under `name`."""
    return [json.loads((job / f"rank{rank}.json").read_text())[name] for rank in range(RANKS)]


def alone():
    """The trainer of one process that works through the whole batches."""
    trainer = mpi_job.make_trainer(workers=1)
    trainer.fit(mpi_job.Batches(), len(mpi_job.ROWS))
    return trainer


@pytest.mark.parametrize("what", ["workers1", "workers2", "resumed"])
def test_ranks_are_equal_and_train_as_one_process_does(job, what):
    ranks = [dict(np.load(job / f"{what}-rank{rank}.npz")) for rank in range(RANKS)]
    expected = mpi_job.state(alone())
    assert set(expected) == set(ranks[0])
    assert any(name.startswith("optimizer.") for name in expected)
    for name, array in expected.items():
        np.testing.assert_allclose(ranks[0][name], array, rtol=0, atol=1e-10, err_msg=name)
        assert all((rank[name] == ranks[0][name]).all() for rank in ranks), name


def test_gradients_are_added_to_those_that_are_there(job):
    trainer = alone()
    trainer.model.zero_grad()
    for _ in range(2):
        trainer.model.load_random_state(dict.fromkeys(trainer.model.random_state(), 0))
        trainer.compute_gradients(*mpi_job.Batches().batch(1))
    expected = np.abs(trainer.model.output.E.grad).sum()
    assert found(job, "gradient") == pytest.approx([expected] * RANKS, rel=1e-9)


def test_the_layout_of_a_gradient_does_not_matter(job):
    model, loss = Linear(100, 100, rng=np.random.default_rng(0)).astype(np.float64), MSELoss()
    x = np.linspace(0, 1, 100)
    loss(model(x[None]), x[None])
    model.backward(loss.backward())
    for rank in range(RANKS):
        np.testing.assert_allclose(np.load(job / f"turned-rank{rank}.npy"), model.W.grad, rtol=0, atol=1e-15)


def test_ctrl_c_on_one_rank_ends_all_at_the_same_step(job):
    assert found(job, "stopped") == [[3, True]] * RANKS
    assert read_arrays(job / "stopped" / "checkpoint.safetensors")[2]["step"] == len(mpi_job.ROWS)
    lines = (job / "stopped" / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3, 4, 5, 6]


def test_only_rank_0_evaluates_and_its_patience_ends_all(job):
    assert found(job, "patience") == [[4, True, 2], *[[4, True, 0]] * (RANKS - 1)]


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("nan", r"NonFiniteError: Trainer: at step 1 the loss is nan"),
        ("other batch", r"WorkerError: rank \d: its batch is not that of the other ranks"),
        ("other seed", r"WorkerError: the model of rank 2 is not that of rank 0 at the start"),
        ("other steps", r"WorkerError: rank 1 has other settings than rank 0, in steps \(here [56]\)"),
        ("other saves", r"WorkerError: rank 1 has other settings than rank 0, in save_every \(here [23]\)"),
        ("other loss", r"WorkerError: rank 1 has other settings than rank 0, in the loss"),
        ("other rate", r"WorkerError: rank 1 has other settings than rank 0, in optimizer"),
        ("other dropout", r"WorkerError: rank 1 has other settings than rank 0, in the layers"),
        ("other parameters", r"WorkerError: the model of rank 1 is not that of rank 0 at step 2"),
    ],
)
def test_what_all_ranks_see_is_raised_on_all(job, what, message):
    assert all(re.match(message, text) for text in found(job, what))


@pytest.mark.parametrize(("how", "text"), [("raises", "ZeroDivisionError: rank 1 breaks"), ("killed", "")])
def test_a_rank_that_fails_ends_the_job(tmp_path, how, text):
    result = mpirun(3, mpi_job.__file__, tmp_path, how)
    assert result.returncode != 0
    assert text in result.stderr


def test_the_command_trains_as_one_process_and_resumes(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("To be, or not to be, that is the question. " * 20, encoding="utf-8")
    train = ["train", "--task", "text", "--text", text, "--layers", 1, "--d-model", 16, "--heads", 2, "--block", 16,
             "--batch", 5, "--dropout", 0.1, "--lr", 1e-4, "--warmup", 0, "--final-lr", 1]  # fmt: skip
    one, many = tmp_path / "one", tmp_path / "many"
    result = mpirun(2, "-m", "numtrans", *train, "--steps", 2, "--out", many)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("written to") == result.stdout.count("parameters, 2 steps") == 1
    result = mpirun(2, "-m", "numtrans", "train", "--out", many, "--resume", "--steps", 4)
    assert result.returncode == 0, result.stderr
    assert cli.main([*map(str, train), "--steps", "4", "--out", str(one)]) == 0
    assert {path.name for path in many.iterdir()} == {path.name for path in one.iterdir()}
    ours, theirs = ((folder / "history.jsonl").read_text().splitlines() for folder in (many, one))
    assert [json.loads(line)["step"] for line in ours] == [2, 4]
    assert json.loads(ours[-1]) == pytest.approx(json.loads(theirs[-1]), rel=1e-5)
    refused = mpirun(2, "-m", "numtrans", *train, "--out", many)
    assert refused.returncode == 2
    assert "already holds a run" in refused.stderr


def test_a_run_is_not_touched_before_the_ranks_agree(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("To be, or not to be, that is the question. " * 20, encoding="utf-8")
    train = ["train", "--task", "text", "--text", str(text), "--layers", "1", "--d-model", "16", "--heads", "2",
             "--block", "16", "--batch", "5", "--steps", "2", "--out", str(tmp_path / "run")]  # fmt: skip
    assert cli.main(train) == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    for option, first in (("--batch", 3), ("--seed", 0), ("--label-smoothing", 0)):
        script = tmp_path / "unlike.py"  # its ranks are given other settings
        arguments = [*train, "--overwrite", option]
        script.write_text(
            "import sys\nfrom mpi4py import MPI\nfrom numtrans.cli import main\n"
            f"sys.exit(main({arguments!r} + [str({first} + MPI.COMM_WORLD.rank)]))"
        )
        result = mpirun(2, script)
        assert result.returncode != 0
        assert "rank 1" in result.stderr
        assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


# ---- without MPI


def test_commands_that_do_not_share_their_work_are_refused_under_mpirun(monkeypatch, capsys):
    monkeypatch.setenv("PMI_SIZE", "2")
    assert cli.main(["demo"]) == 2
    assert "numtrans demo: mpirun started 2 processes" in capsys.readouterr().err
    monkeypatch.setenv("PMI_SIZE", "abc")  # of something else
    assert processes_started() == 1


def test_what_is_no_communicator_is_refused():
    model, loss = Linear(2, 2), MSELoss()
    for comm in ("world", SimpleNamespace(size=2, rank=0, is_inter=True)):
        with pytest.raises(ConfigError, match=r"Ranks: comm is .*, expected one of mpi4py"):
            make_workers(model, loss, comm=comm)


def test_a_plain_command_does_not_load_mpi4py(monkeypatch):
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"):
        monkeypatch.delenv(name, raising=False)
    code = "import sys, numtrans.runs; from numtrans.parallel.mpi import world; assert world() is None; "
    subprocess.run([sys.executable, "-c", code + "assert 'mpi4py' not in sys.modules"], check=True)


@pytest.mark.parametrize("name", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"])
def test_mpirun_without_mpi4py_is_refused(monkeypatch, name):
    monkeypatch.setenv(name, "3")
    with pytest.raises(ConfigError, match=r"started 3 processes.*mpirun -n 4 python -m mpi4py -m numtrans train"):
        world()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r'pip install "numtrans\[mpi\]"'):
        world()
    monkeypatch.setenv(name, "1")
    assert world() is None


def test_what_ranks_refuse(monkeypatch):
    comm, loss = SimpleNamespace(size=2, rank=0), MSELoss()
    with pytest.raises(ConfigError, match="BatchNorm needs the whole batch"):
        Ranks(comm, BatchNorm(3), loss)
    model = mpi_job.make_trainer().model
    with pytest.raises(ConfigError, match="an error in one rank must end all"):
        make_workers(model, CrossEntropyLoss(), comm=comm)
    monkeypatch.setattr("numtrans.parallel.mpi.backend_name", lambda array: "cupy")
    with pytest.raises(ConfigError, match="the model is on cupy"):
        make_workers(model, CrossEntropyLoss(), comm=SimpleNamespace(size=1, rank=0)).__enter__()
