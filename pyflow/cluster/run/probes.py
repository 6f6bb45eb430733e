"""Requests to the drafter, the questions that it asks the model, and guesses of the last stage."""

from __future__ import annotations

from collections.abc import Sequence

from pyflow.cluster.wire.messages import Answers, Guessed, Questions, Result, Run
from pyflow.engine.cached_text import common_prefix


class Inquiry:
    """The drafter's questions and the model's answers.

    Questions wait for a run that begins with the newest token, one set in flight at a time. Answers
    wait for the next request.
    """

    def __init__(self) -> None:
        self.answers: Answers | None = None
        """The latest answers."""
        self.guessed: Guessed | None = None
        """The latest guesses."""
        self._waiting: Questions | None = None
        self._sent = False

    def ask(self, questions: Questions | None) -> None:
        """Replaces the waiting questions. Questions already answered are dropped."""
        answered = questions and self.answers and questions.number <= self.answers.number
        self._waiting = None if answered else questions

    def send(self, n_rows: int, depth: int) -> Questions | None:
        """The questions for a run with room for n_rows more rows and depth more positions."""
        found = self._waiting
        if self._sent or found is None or len(found.tokens) > n_rows or found.depth > depth:
            return None
        self._waiting, self._sent = None, True
        return found

    def hear(self, run: Run, result: Result) -> None:
        """Takes the result of a run, in order. A skipped run loses its questions, and the drafter
        asks them again."""
        if result.guesses:
            row = n_borne_out(run, result.draws) - 1
            position = run.position + len(run.tokens) - run.n_draws + row + 1
            tokens = (result.draws[row], *result.guesses)
            self.guessed = Guessed(position, tokens, result.probabilities)
        if run.questions is None:
            return
        self._sent = False
        if not result.skipped:
            self.answers = Answers(run.questions.number, run.position, result.answers)


def n_borne_out(run: Run, draws: Sequence[int]) -> int:
    """How many of a run's draws stand if its first one does: those after tokens that were drawn."""
    drafted = run.tokens[len(run.tokens) - run.n_draws + 1 :]
    return 1 + common_prefix(drafted, draws)


class Requests:
    """The drafter's knowledge of the text, and the request that it has not answered yet."""

    def __init__(self) -> None:
        self.number = 0  # of the latest request
        self.asked = 0  # the unanswered request; 0 if there is none
        self.position = 0  # where its draft begins
        self.dry = False  # the last draft was empty; until the next result
        self.n_dry = 0
        self._known: list[int] = []
        self._n_text = 0  # how many of these are accepted text

    def tell(self, text: list[int], guesses: list[int]) -> tuple[int, tuple[int, ...]]:
        """Begins a request: how many tokens of text and drafts the drafter knows, and the rest."""
        self.number += 1
        base = text[self._n_text :] + guesses
        same = common_prefix(base, self._known[self._n_text :])
        keep = self._n_text + same
        self._known[keep:] = base[same:]
        self._n_text = len(text)
        return keep, tuple(base[same:])
