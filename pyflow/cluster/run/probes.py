"""What goes to and fro between scheduler and drafter: what each knows, asks and is told."""

from __future__ import annotations

from pyflow.cluster.wire.messages import Answers, Questions, Result, Run
from pyflow.engine.cached_text import common_prefix


class Inquiry:
    """What the drafter asks the model. Questions wait for a run that begins with the newest token,
    one set on its way at a time; answers wait for the drafter."""

    def __init__(self) -> None:
        self.answers: Answers | None = None
        """The latest that came."""
        self._waiting: Questions | None = None
        self._sent = False

    def ask(self, questions: Questions | None) -> None:
        """In place of what waits. What has been answered meanwhile is not asked again."""
        answered = questions and self.answers and questions.number <= self.answers.number
        self._waiting = None if answered else questions

    def send(self, n_rows: int, depth: int) -> Questions | None:
        """What goes with a run that has room for so many rows and so many positions more."""
        found = self._waiting
        if self._sent or found is None or len(found.tokens) > n_rows or found.depth > depth:
            return None
        self._waiting, self._sent = None, True
        return found

    def hear(self, run: Run, result: Result) -> None:
        """The result of a run, in the order of runs; one that was left out has lost its questions,
        and the drafter will ask them again."""
        if run.questions is None:
            return
        self._sent = False
        if not result.skipped:
            self.answers = Answers(run.questions.number, run.position, result.answers)


class Requests:
    """What the drafter knows, and what is awaited from it."""

    def __init__(self) -> None:
        self.number = 0  # of the latest request
        self.asked = 0  # the request that is awaited; 0: none
        self.position = 0  # where its guesses begin
        self.dry = False  # nothing was likely enough; until the next result
        self.n_dry = 0
        self._known: list[int] = []
        self._n_text = 0  # so many of these are text for certain

    def tell(self, text: list[int], guesses: list[int]) -> tuple[int, tuple[int, ...]]:
        """Of text and guesses: how many tokens are known, and the others. Begins a request."""
        self.number += 1
        base = text[self._n_text :] + guesses
        same = common_prefix(base, self._known[self._n_text :])
        keep = self._n_text + same
        self._known[keep:] = base[same:]
        self._n_text = len(text)
        return keep, tuple(base[same:])
