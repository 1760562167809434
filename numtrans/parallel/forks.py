"""One worker process: a fork of this one, with parameters and gradients in memory that both see."""

import contextlib
import functools
import mmap
import pickle
import signal
import traceback
import warnings

import numpy as np
from threadpoolctl import threadpool_limits

from numtrans.errors import WorkerError
from numtrans.module import sum_of
from numtrans.parallel.pieces import piece_gradients


class RemoteTraceback(Exception):
    """The cause of an error that comes from a worker: where it was raised there."""

    def __str__(self):
        return f"in a worker process:\n{self.args[0]}"


class Fork:
    """A process that works through rows of batches.

    Parameters
    ----------
    shard : Shard
        The model, with parameters in shared memory. The process has it as it is now, see `state` for what follows.
    others : list of Fork
        Those that run already.

    Attributes
    ----------
    gradients : list of array
        Where it writes the gradients of the parameters.
    """

    def __init__(self, shard, others):
        from multiprocessing import get_context

        self.gradients = shared_like([parameter.data for parameter in shard.parameters])
        context = get_context("fork")
        self.connection, there = context.Pipe()
        ours = [self.connection, *(other.connection for other in others)]
        self.process = context.Process(target=_serve, args=(shard, self.gradients, there, ours), daemon=True)
        with warnings.catch_warnings(), _no_ctrl_c():
            # Python warns of forks beside threads, which may hold locks; those of the BLAS let go of theirs before one
            warnings.simplefilter("ignore", DeprecationWarning)
            self.process.start()
        there.close()

    def send(self, *job):
        """Let it work; `job` are the arguments of `_work` after the first."""
        with contextlib.suppress(OSError):  # it has ended, and `receive` says so
            self.connection.send(job)

    def receive(self):
        """Wait for its loss, and a list that says of which parameters it has gradients. Its error is raised here."""
        try:
            answer = self.connection.recv()
        except (EOFError, OSError):
            self.process.join()
            code = self.process.exitcode
            how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
            hint = "; was the memory full?" if code == -signal.SIGKILL else ""
            raise WorkerError(f"Processes: a worker process has ended ({how}{hint}), so the step fails") from None
        if isinstance(answer[0], BaseException):
            raise answer[0] from RemoteTraceback(answer[1])
        return answer

    def end(self):
        """End the process, whatever it does: it holds nothing that must be saved."""
        self.connection.close()
        self.process.kill()
        self.process.join()
        self.process.close()


def shared_like(arrays):
    """New arrays like these, in memory that forks share. It has no name, so none of it can be left behind."""
    starts = np.cumsum([0, *(-(-array.nbytes // 64) * 64 for array in arrays)]).tolist()
    memory = mmap.mmap(-1, max(starts[-1], 1))
    return [np.ndarray(array.shape, array.dtype, memory, start) for array, start in zip(arrays, starts)]


def state(shard):
    """What a worker is told in each step besides the counters: modes, which parameters are frozen, buffers."""
    training = [module.training for module in shard.modules]
    learned = [parameter.requires_grad for parameter in shard.parameters]
    return training, learned, shard.buffers()


@contextlib.contextmanager
def _no_ctrl_c():
    """Within this context Ctrl-C waits; a process that is started in it never gets any, for its parent decides."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# ---- in the worker


def write_gradient(parameter, place, grad, rows):
    """Add to the gradient of `parameter`, which is written to `place`, in shared memory."""
    first, parameter.grad = parameter.grad is None, place
    if first:
        place[...] = grad if rows is None else 0
    if not first or rows is not None:
        sum_of(place, grad, rows, parameter.data)


def _serve(shard, gradients, connection, others):
    """Work through rows until the parent ends."""
    for other in others:  # ends of the parent, which would keep the pipes open after it
        other.close()
    for parameter, place in zip(shard.parameters, gradients, strict=True):
        parameter.collect = functools.partial(write_gradient, parameter, place)
    shard.clear()
    with threadpool_limits(1, "blas"):
        while True:
            try:
                job = connection.recv()
            except (EOFError, OSError):
                return
            try:
                answer = _work(shard, *job)
            except BaseException as error:
                answer = _portable(error), traceback.format_exc()
            try:
                connection.send(answer)
            except OSError:
                return


def _work(shard, pieces, counters, first, whole, changes):
    """The loss of `pieces`, and of which parameters there is now a gradient."""
    for module, training in zip(shard.modules, changes[0]):
        module.training = training
    for module, buffers in zip(shard.buffered, changes[2]):
        vars(module).update(buffers)
    for parameter, learns in zip(shard.parameters, changes[1]):
        parameter.requires_grad, parameter.grad = learns, None
    loss = sum([piece_gradients(shard, piece, counters, first, whole) for piece in pieces])
    shard.check_buffers(changes[2])
    shard.clear()
    return loss, [parameter.grad is not None for parameter in shard.parameters]


def _portable(error):
    """`error`, or if it cannot travel one of ours with its name and text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return WorkerError(f"{type(error).__name__}: {error}")
    return error
