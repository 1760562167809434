"""A pool of threads in which the calling thread takes part."""

import contextvars
import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor, wait


class Pool:
    """`workers` threads, one of them the caller's.

    Parameters
    ----------
    workers : int
    """

    def __init__(self, workers):
        self.workers, self._executor, self._process = workers, None, None

    def map(self, function, jobs):
        """As ``list(map(function, jobs))``. Each thread takes the next job that is left.

        An error in a job is raised here as it is, that of the first failed job, when no other job is running.
        """
        jobs = list(jobs)
        left, results, errors = deque(range(len(jobs))), [None] * len(jobs), {}

        def work():
            while True:
                try:
                    i = left.popleft()
                except IndexError:
                    return
                try:
                    results[i] = function(jobs[i])
                except BaseException as error:
                    errors[i] = error
                    left.clear()

        helpers = min(self.workers, len(jobs)) - 1
        if helpers > 0 and self._process != os.getpid():  # a fork has none of the threads
            self._executor, self._process = ThreadPoolExecutor(self.workers - 1, "numtrans"), os.getpid()
        # with the caller's context, in which np.errstate lives
        running = [self._executor.submit(contextvars.copy_context().run, work) for _ in range(helpers)]
        work()
        wait(running)
        if errors:
            raise errors[min(errors)]
        return results

    def end(self):
        """Let the threads end; the next `map` starts others."""
        if self._executor is not None and self._process == os.getpid():
            self._executor.shutdown()
        self._executor, self._process = None, None
