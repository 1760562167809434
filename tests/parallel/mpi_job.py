"""What the ranks of tests/parallel/test_mpi.py run: ``mpirun -n N python -m mpi4py mpi_job.py FOLDER [how]``.

Each rank writes what it found to FOLDER as ``rank0.json`` and so on, and its parameters as ``.npz``.
"""

import json
import os
import signal
import sys
from pathlib import Path

import numpy as np

from numtrans.errors import NumtransError
from numtrans.layers import Linear
from numtrans.losses import CrossEntropyLoss, MSELoss
from numtrans.models import GPT, GPTConfig
from numtrans.optim import AdamW
from numtrans.parallel import make_workers
from numtrans.training import Trainer

ROWS = (7, 4, 1, 9, 3, 8)  # rows of the batches: more than there are ranks, as many, and fewer


class Turned(Linear):
    """Its gradient lies in memory column by column."""

    def backward(self, dy):
        dx = super().backward(dy)
        self.W.grad = np.asfortranarray(self.W.grad)
        return dx


class Batches:
    """Batches of unequal sizes, whose rows count unequal numbers of targets."""

    def __init__(self, seed=0, rows=ROWS, before=None):
        self.seed, self.rows, self.before = seed, rows, before

    def batch(self, step):
        if self.before is not None:
            self.before(step)
        rng, rows = np.random.default_rng((self.seed, step)), self.rows[(step - 1) % len(self.rows)]
        ids, targets = rng.integers(1, 17, (rows, 6)), rng.integers(0, 17, (rows, 6))
        targets[0, 1:], targets[rows // 2, 3:] = -100, -100
        return ids, targets


def make_trainer(comm=None, seed=0, smoothing=0.1, lr=1e-2, dropout=0.3, **options):
    """A trainer of a small GPT in float64, with dropout and a frozen parameter."""
    config = GPTConfig(17, max_len=6, d_model=8, num_heads=2, num_layers=2, dropout=dropout)
    model = GPT(config, rng=np.random.default_rng(seed)).astype(np.float64)
    model.layers.layers[0].feedforward.sublayer.linear1.b.requires_grad = False
    loss, optimizer = CrossEntropyLoss(label_smoothing=smoothing), AdamW(model.parameters(), lr=lr)
    return Trainer(model, loss, optimizer, comm=comm, log_every=1, progress=False, **options)


def state(trainer):
    """All that the next step of `trainer` depends on."""
    moments = {f"optimizer.{name}": array for name, array in trainer.optimizer.state_dict()["arrays"].items()}
    counters = np.array(list(trainer.model.random_state().values()))
    losses = np.array(trainer.history["loss"])
    return {**trainer.model.state_dict(), **moments, "counters": counters, "losses": losses}


def error_of(function, *arguments):
    """Class and text of the error that `function` raises."""
    try:
        function(*arguments)
    except NumtransError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def checks(comm, folder):
    """All that no rank dies of; the numbers of rank 0 are compared with those of one process."""
    found = {}
    # 1. training, with one thread in each rank and with two
    for workers in (1, 2):
        trainer = make_trainer(comm, workers=workers)
        trainer.fit(Batches(), len(ROWS))
        np.savez(folder / f"workers{workers}-rank{comm.rank}.npz", **state(trainer))
    # 2. gradients are added to those that are there
    trainer.model.zero_grad()
    batch = Batches().batch(1)
    for _ in range(2):
        trainer.model.load_random_state(dict.fromkeys(trainer.model.random_state(), 0))
        trainer.compute_gradients(*batch)
    found["gradient"] = float(np.abs(trainer.model.output.E.grad).sum())
    # 3. a large gradient in another memory layout, on a rank while the others have no rows
    turned = Turned(100, 100, rng=np.random.default_rng(0)).astype(np.float64)
    x = np.linspace(0, 1, 100)[None]
    make_workers(turned, MSELoss(), comm=comm).gradients(x, x)
    np.save(folder / f"turned-rank{comm.rank}.npy", turned.W.grad)
    # 4. Ctrl-C on one rank ends all after the same step; then all go on
    out = folder / "stopped"
    press = Batches(before=lambda step: step == 3 and comm.rank == 1 and os.kill(os.getpid(), signal.SIGINT))
    trainer = make_trainer(comm, out=out, save_every=100)
    trainer.fit(press, len(ROWS))
    found["stopped"] = [trainer.step, trainer.interrupted]
    trainer = make_trainer(comm, out=out).resume()
    trainer.fit(Batches(), len(ROWS))
    np.savez(folder / f"resumed-rank{comm.rank}.npz", **state(trainer))
    # 5. only rank 0 evaluates, and its patience ends all ranks
    calls = []

    def validate():
        calls.append(1)
        return {"valid_loss": 1.0}

    trainer = make_trainer(comm, evaluate_every=2, patience=1)
    trainer.fit(Batches(), 50, validate)
    found["patience"] = [trainer.step, trainer.stopped_early, len(calls)]
    # 6. errors that all ranks see
    trainer = make_trainer(comm)
    trainer.model.output.E.data[3] = np.nan
    found["nan"] = error_of(trainer.fit, Batches(), 3)
    found["other batch"] = error_of(make_trainer(comm).fit, Batches(seed=int(comm.rank == 2)), 3)
    found["other seed"] = error_of(make_trainer(comm, seed=int(comm.rank == 2)).fit, Batches(), 3)
    # 7. settings that would end in a wait forever, or in a sum of unlike gradients
    one = int(comm.rank == 1)
    unlike = {
        "other steps": (make_trainer(comm), 5 + one),
        "other saves": (make_trainer(comm, save_every=2 + one), 6),
        "other loss": (make_trainer(comm, smoothing=0.1 + one / 10), 6),
        "other rate": (make_trainer(comm, lr=1e-2 * (1 + one)), 6),
        "other dropout": (make_trainer(comm, dropout=0.3 + one / 10), 6),
    }
    for name, (trainer, steps) in unlike.items():
        found[name] = error_of(trainer.fit, Batches(), steps)
    trainer = make_trainer(comm, save_every=2)

    def drift(step):
        if step == 2 and comm.rank == 1:
            trainer.model.output.E.data[0, 0] += 1e-12  # one ulp might be rounded away by the step

    found["other parameters"] = error_of(trainer.fit, Batches(before=drift), 6)
    return found


def main(folder, how="checks"):
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    if how == "checks":
        found = checks(comm, Path(folder))
        (Path(folder) / f"rank{comm.rank}.json").write_text(json.dumps(found))
        return

    def fail(step):
        if step == 2 and comm.rank == 1:
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ZeroDivisionError("rank 1 breaks")

    make_trainer(comm).fit(Batches(before=fail), 6)


if __name__ == "__main__":
    main(*sys.argv[1:])
