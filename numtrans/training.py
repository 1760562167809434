"""The training loop: history, evaluation, the early best, checkpoints, resume, a clean end on Ctrl-C.

All that a step depends on is the parameters, the optimizer, the counters of the random numbers and the number of the
step: the batch and the learning rate are functions of that number. So a run that is resumed from a checkpoint ends
with the same parameters, bit for bit, as one that was never stopped.
"""

import json
import math
import signal
import threading
import zlib
from pathlib import Path

from tqdm import tqdm

from numtrans.backend import backend_name
from numtrans.checkpoint import (
    append_text,
    check_folder,
    load_state,
    read_arrays,
    under,
    write_arrays,
    write_text,
)
from numtrans.checks import check_count
from numtrans.errors import CheckpointError, ConfigError
from numtrans.module import no_grad
from numtrans.optim import NonFiniteError, clip_grad_norm
from numtrans.parallel import make_workers

CHECKPOINT, BEST, HISTORY = "checkpoint.safetensors", "best.safetensors", "history.jsonl"
MEASURED = ("step", "loss", "lr", "grad_norm")  # in each line of the history; what validate returns comes after


class Trainer:
    """Train a model, step by step.

    Each step: set the learning rate, clear the gradients, ``loss(model(*inputs), targets)``,
    ``model.backward(loss.backward())``, clip, ``optimizer.step()``.

    Parameters
    ----------
    model, loss : Module
    optimizer : Optimizer
    schedule : callable, optional
        Step (from 1) -> learning rate. Without it the rate of the optimizer stays.
    max_grad_norm : float or None, default 1.0
        Gradients are clipped to this global norm; None does not clip.
    micro_batches : int, default 1
        Split the rows of each worker into so many pieces, one after another, to need less memory. The loss is that of
        the whole batch: ``loss.count(targets)`` gives the divisor of all pieces, so tokens weigh the same in each.
    workers : int, optional
        Threads that share the rows of each batch; by default the cores of this process, or 1 where that does not help,
        see `Shards`. The result depends on their number by rounding only.
    worker_kind : {"threads", "processes"}, default "threads"
        What the workers are. For processes see `Processes`.
    comm : mpi4py.MPI.Comm, optional
        Train on all ranks of this communicator, with `workers` threads (default 1) in each, see `Ranks`. Rank 0 alone
        evaluates, writes files and shows progress.
    out : str or Path, optional
        Folder for ``checkpoint.safetensors``, ``best.safetensors`` and ``history.jsonl``. Made if need be.
    log_every : int, default 10
        Steps between lines of the history.
    evaluate_every, save_every : int, optional
        Steps between evaluations and between checkpoints; both are also done at the end.
    best : str, default "valid_loss"
        The number of ``validate`` that decides which weights are best: the lowest if the name ends in ``loss`` or
        ``perplexity``, else the highest.
    patience : int, optional
        Stop after so many evaluations in a row that are not the best.
    overwrite : bool, default False
        Allow a new run in a folder that holds a checkpoint.
    progress : bool, default True
        Show a progress bar, if standard error is a terminal.

    Attributes
    ----------
    step : int
        Steps done.
    best : dict or None
        ``step``, ``value`` and ``weights`` (copies, for ``model.load_state_dict``) of the best evaluation.
    interrupted, stopped_early : bool
        How the latest ``fit`` ended.

    Raises
    ------
    CheckpointError
        If `out` cannot be written to.
    ConfigError
        If a number is out of range, or a new run would overwrite an old one.
    NonFiniteError
        If the loss or a gradient is NaN or infinite, before the weights are changed. On the GPU, where looking waits
        for the device, losses are looked at in the steps that are logged or saved only; no checkpoint is saved after.

    Notes
    -----
    Ctrl-C lets the running step end, saves a checkpoint and returns from ``fit``. A second Ctrl-C stops at once and
    saves nothing. When a step fails, what it had saved is dropped and counters and running statistics are put back, so
    the model is that of the last whole step.
    """

    def __init__(
        self,
        model,
        loss,
        optimizer,
        *,
        schedule=None,
        max_grad_norm=1.0,
        micro_batches=1,
        workers=None,
        worker_kind="threads",
        comm=None,
        out=None,
        log_every=10,
        evaluate_every=None,
        save_every=None,
        best="valid_loss",
        patience=None,
        overwrite=False,
        progress=True,
    ):
        whole = {"micro_batches": micro_batches, "workers": workers, "log_every": log_every}
        whole.update(evaluate_every=evaluate_every, save_every=save_every, patience=patience)
        for name, value in whole.items():
            if value is not None:
                check_count("Trainer", name, value)
        if max_grad_norm is not None and not max_grad_norm > 0:
            raise ConfigError(f"Trainer: max_grad_norm is {max_grad_norm}, expected a number above 0 or None")
        learned = {id(parameter) for parameter in model.parameters()}
        if not any(id(parameter) in learned for parameter in optimizer.parameters):
            raise ConfigError("Trainer: the optimizer holds no parameter of the model, so nothing would be learned")
        self.model, self.loss, self.optimizer, self.schedule = model, loss, optimizer, schedule
        self.max_grad_norm = max_grad_norm
        self.shards = make_workers(model, loss, workers, micro_batches, worker_kind, comm)
        self.log_every, self.evaluate_every, self.save_every = log_every, evaluate_every, save_every
        self.best_name, self.patience, self.overwrite, self.progress = best, patience, overwrite, progress
        self.folder = None if out is None else Path(out)
        self.out = self.folder if self.shards.rank == 0 else None  # other ranks of MPI read only
        if self.out is not None:
            check_folder(self.out)
        self.step, self.best, self.records = 0, None, []
        self.interrupted, self.stopped_early = False, False
        self._started, self._saved_step = False, None

    # ---- what has happened

    @property
    def history(self):
        """Lists by name: ``loss``, ``lr`` and ``grad_norm`` at each ``step``; the numbers of ``validate`` at each
        ``valid_step``."""
        history = {name: [] for name in (*MEASURED, "valid_step")}
        for record in self.records:
            for name, value in record.items():
                history.setdefault(name, []).append(value)
            if len(record) > len(MEASURED):
                history["valid_step"].append(record["step"])
        return history

    # ---- the loop

    def fit(self, batches, steps, validate=None):
        """Train until `steps` steps are done, those before a resume included.

        Parameters
        ----------
        batches : object
            With a method ``batch(step) -> (inputs, targets)`` that depends on `step` (from 1) alone. ``inputs`` is an
            array or a tuple of what the model takes. Arrays are moved to the backend of the model.
        steps : int
        validate : callable, optional
            Returns a dict of numbers, such as ``{"valid_loss": 1.2}``. Called in evaluation mode inside `no_grad`.

        Returns
        -------
        dict
            `history`.
        """
        self.start()
        self.interrupted, measured = False, None
        validate = validate if self.shards.rank == 0 else None
        self.model.train()
        show = self.progress and self.shards.rank == 0
        bar = tqdm(total=steps, initial=self.step, unit="step", disable=None if show else True)
        with self.shards, bar, _CtrlC() as ctrl_c:
            self.agree(steps)
            _, self.stopped_early = self.shards.agree(False, self._patience_is_over())
            while self.step < steps and not self.interrupted and not self.stopped_early:
                step = self.step + 1
                evaluate = validate is not None and (step == steps or _due(self.evaluate_every, step))
                save = step == steps or _due(self.save_every, step)
                log = evaluate or step == steps or _due(self.log_every, step)
                try:
                    measured = self._train_step(batches, look=log or save)
                except KeyboardInterrupt:  # raised by someone else than our handler, or by the second Ctrl-C
                    if ctrl_c.count > 1 or self.shards.ranks > 1:
                        raise
                    self.interrupted = True
                    break
                if log:
                    self._log(measured, validate if evaluate else None, bar)
                if save:
                    self.shards.compare(f"at step {step}")
                if save and self.out is not None:
                    self.save()
                bar.update()
                over = log and self._patience_is_over()
                self.interrupted, self.stopped_early = self.shards.agree(ctrl_c.count > 0, over)
            if self.interrupted or self.stopped_early:
                self.shards.compare(f"at step {self.step}")
            if self.out is not None and self._saved_step != self.step:
                if measured is not None:
                    self._check_finite(self.step, measured[0], measured[2])
                self.save()
        return self.history

    def agree(self, steps, **settings):
        """Raise `WorkerError` unless all ranks of MPI would train alike until `steps`; `settings` are compared, too."""
        if self.shards.ranks == 1:
            return
        self.shards.compare("at the start")
        rates = self.schedule and [self.schedule(step) for step in (self.step + 1, (self.step + steps) // 2, steps)]
        state = self.optimizer.state_dict()
        self.shards.agree_on({
            **settings, "step": self.step, "steps": steps, "save_every": self.save_every, "patience": self.patience,
            "evaluate_every": self.evaluate_every, "log_every": self.log_every, "max_grad_norm": self.max_grad_norm,
            "schedule": rates, "optimizer": state["settings"], "the loss": _plain(self.loss),
            "the layers": _plain(self.model),
            "the state of the optimizer": [(name, zlib.crc32(array)) for name, array in state["arrays"].items()],
        })  # fmt: skip

    def start(self):
        """Begin the files of a new run, unless one has begun; `fit` does it, too.

        Raises
        ------
        ConfigError
            If `out` holds a run and ``overwrite`` is False; nothing is changed then.
        """
        if not self._started and self.out is not None:
            if (self.out / CHECKPOINT).exists() and not self.overwrite:
                raise ConfigError(
                    f"Trainer: {self.out} already holds a run. Go on with it (resume), choose another folder, or allow "
                    "overwriting it (overwrite)."
                )
            for name in (CHECKPOINT, BEST):  # or a kill before the first save would leave those of another run
                (self.out / name).unlink(missing_ok=True)
            write_text(self.out / HISTORY, "")
        self._started = True

    def _train_step(self, batches, look):
        """One step; returns loss, learning rate and gradient norm. A step that fails leaves no trace."""
        step = self.step + 1
        before = self._volatile()
        try:
            # 1. the learning rate and the batch: functions of the step
            if self.schedule is not None:
                self.optimizer.lr = self.schedule(step)
            inputs, targets = batches.batch(step)
            # 2. gradients
            self.model.zero_grad()
            self.loss.zero_grad()
            loss = self.compute_gradients(inputs, targets)
            # 3. clip, and look before the weights are touched
            look = look or backend_name(loss) != "cupy"
            if look:
                self._check_finite(step, loss)
            try:
                norm = clip_grad_norm(self.model.parameters(), self.max_grad_norm or math.inf)
            except NonFiniteError as error:
                raise NonFiniteError(f"Trainer: step {step} stopped before the weights changed. {error}") from error
            if look:
                self._check_finite(step, loss, norm)
        except BaseException:
            self._put_back(before)
            raise
        # 4. the step; what forwards keep for a look (attention weights) need not outlive it
        self.shards.step(self.optimizer)
        self.shards.clear()
        self.step = step
        return loss, self.optimizer.lr, norm

    def compute_gradients(self, inputs, targets):
        """Forward and backward of one batch. Adds to the gradients of the parameters and returns the loss."""
        return self.shards.gradients(inputs, targets)

    def _check_finite(self, step, loss, norm=None):
        wrong = [] if math.isfinite(float(loss)) else [f"the loss is {float(loss)}"]
        if norm is not None and not math.isfinite(float(norm)):
            wrong.append(f"the norm of the gradients is {float(norm)}")
        if wrong:
            raise NonFiniteError(
                f"Trainer: at step {step} {' and '.join(wrong)}. The checkpoint is still that of an earlier "
                "step. Usual causes: a learning rate too high, no warm-up, NaN in the data."
            )

    def _volatile(self):
        """What a forward changes although no optimizer has stepped: counters and running statistics."""
        buffers = [(m, name, getattr(m, name).copy()) for m in self.model.modules() for name in m._buffers]
        return self.model.random_state(), buffers

    def _put_back(self, volatile):
        counters, buffers = volatile
        self.model.load_random_state(counters)
        for module, name, array in buffers:
            setattr(module, name, array)
        self.shards.clear()
        self.model.zero_grad()

    # ---- evaluation and history

    def _log(self, measured, validate, bar):
        loss, lr, norm = measured
        record = {"step": self.step, "loss": float(loss), "lr": float(lr), "grad_norm": float(norm)}
        if validate is not None:
            record.update(self._evaluate(validate))
        self.records.append(record)
        if self.out is not None:
            append_text(self.out / HISTORY, _line(record))
        shown = {name: f"{value:.4g}" for name, value in record.items() if name not in ("step", "grad_norm")}
        bar.set_postfix(shown, refresh=False)

    def _evaluate(self, validate):
        self.model.eval()
        try:
            with no_grad():
                values = {name: float(value) for name, value in validate().items()}
        finally:
            self.model.train()
        if self.best_name not in values or not {*MEASURED, "valid_step"}.isdisjoint(values):
            raise ConfigError(
                f"Trainer: validate returned {sorted(values)}, expected {self.best_name!r} (the argument best) and "
                "no name of the training history"
            )
        value = values[self.best_name]
        sign = 1 if self.best_name.endswith(("loss", "perplexity")) else -1
        if not math.isnan(value) and (self.best is None or sign * value < sign * self.best["value"]):
            self.best = {"step": self.step, "value": value, "weights": self.model.state_dict()}
            self._write_best()
        return values

    def _patience_is_over(self):
        if self.patience is None or self.best is None:
            return False
        return sum(step > self.best["step"] for step in self.history["valid_step"]) >= self.patience

    def _write_best(self):
        if self.out is not None and self.best is not None:
            about = {"step": self.best["step"], self.best_name: self.best["value"]}
            write_arrays(self.out / BEST, self.best["weights"], "weights", about)

    # ---- checkpoints

    def save(self, path=None):
        """Write all that is needed to go on to `path` (default: ``checkpoint.safetensors`` in `out`).

        Of several ranks of MPI, rank 0 writes.
        """
        if self.shards.rank:
            return
        state = self.optimizer.state_dict()
        parts = {"model": self.model.state_dict(), "optimizer": state["arrays"]}
        settings = {
            "step": self.step,
            "optimizer": state["settings"],
            "random": self.model.random_state(),
            "records": self.records,
            "best": None,
        }
        if self.best is not None:
            parts["best"] = self.best["weights"]
            settings["best"] = {"step": self.best["step"], "value": self.best["value"]}
        arrays = {f"{part}.{name}": array for part, those in parts.items() for name, array in those.items()}
        write_arrays(self._path(path), arrays, "training", settings)
        self._saved_step = self.step

    def resume(self, path=None):
        """Take over the state that `save` wrote, as if this trainer had done those steps; returns the trainer.

        The files in `out` are brought to that step too: later lines of the history are cut off.

        Raises
        ------
        CheckpointError
            If the file cannot be read, is no training checkpoint, or does not fit the model or the optimizer.
        """
        path = self._path(path)
        arrays, kind, settings = read_arrays(path)
        if kind != "training":
            raise CheckpointError(f"{path}: holds {kind}, expected a training checkpoint")
        missing = {"step", "optimizer", "random", "records", "best"} - set(settings)
        if missing:
            raise CheckpointError(f"{path}: not a training checkpoint, it lacks {', '.join(sorted(missing))}")
        load_state(self.model, under("model", arrays), path)
        load_state(self.optimizer, {"settings": settings["optimizer"], "arrays": under("optimizer", arrays)}, path)
        self.model.load_random_state(settings["random"])
        self.model.zero_grad()
        self.model.clear()
        self.step, self.records, self.best = settings["step"], settings["records"], settings["best"]
        if self.best is not None:
            self.best["weights"] = under("best", arrays)
        if self.out is not None:
            write_text(self.out / HISTORY, "".join(_line(record) for record in self.records))
            self._write_best()
        self._started, self._saved_step = True, None
        return self

    def _path(self, path):
        if path is None and self.folder is None:
            raise ConfigError("Trainer: needs a path, or the argument out")
        return self.folder / CHECKPOINT if path is None else Path(path)


def _plain(module):
    """The settings of `module` and its parts: what they hold that is a number, a text or None, and no counter."""
    kinds = (int, float, str, type(None))
    return [
        (type(part).__name__, {k: v for k, v in vars(part).items() if isinstance(v, kinds) and k != "counter"})
        for part in module.modules()
    ]


class _CtrlC:
    """Within this context the first Ctrl-C is only counted; the second raises KeyboardInterrupt.

    Signals reach the main thread only; in another thread, or where Ctrl-C is ignored, nothing is changed.
    """

    def __enter__(self):
        self.count, self.previous = 0, None
        if threading.current_thread() is threading.main_thread() and callable(signal.getsignal(signal.SIGINT)):
            self.previous = signal.signal(signal.SIGINT, self._seen)
        return self

    def __exit__(self, *error):
        if self.previous is not None:
            signal.signal(signal.SIGINT, self.previous)

    def _seen(self, number, frame):
        self.count += 1
        if self.count > 1:
            raise KeyboardInterrupt


def _due(every, step):
    return every is not None and step % every == 0


def _line(record):
    """One line of JSON; numbers that JSON does not have become null."""
    finite = {name: value if math.isfinite(value) else None for name, value in record.items()}
    return json.dumps(finite) + "\n"
