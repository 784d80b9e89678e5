"""A fixed number of workers and the results of their jobs."""

from dataclasses import dataclass
from threading import Condition, Thread

from crew.channel import Channel


@dataclass(frozen=True)
class Failure:
    """In place of a result: the exception that a job ended with."""

    error: Exception


class Pool:
    """Workers.

    Args:
        workers: how many threads there are.
    """

    def __init__(self, workers=2):
        if workers < 1:
            raise ValueError(f"workers is {workers}: it must be at least 1")
        self._jobs = Channel()
        self._done = Condition()
        self._results = []
        self._submitted = 0
        self._threads = [Thread(target=self._work, daemon=True) for _ in range(workers)]
        for thread in self._threads:
            thread.start()

    def submit(self, function, *arguments):
        """Have a job done; its number."""
        number = self._submitted
        self._jobs.put((number, function, arguments))
        self._submitted += 1
        return number

    def _work(self):
        for number, function, arguments in self._jobs:
            result = function(*arguments)
            with self._done:
                self._results.append(result)
                self._done.notify()

    def results(self):
        """The results of all jobs that were submitted so far, in that order; waits for them."""
        with self._done:
            self._done.wait_for(lambda: len(self._results) == self._submitted)
            return list(self._results)

    def close(self):
        """Let the workers end once everything is done."""
        self._jobs.close()
        for thread in self._threads:
            thread.join()
