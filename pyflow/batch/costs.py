"""What a step costs: a pass over the weights for its rows, and cells that the rows look at."""

from __future__ import annotations

from pyflow.speculate.costs import StepCosts


class BatchCosts:
    """Seconds of a step by its rows, and by the cells that they see; measured in use."""

    # Rows that see more cells than this tell what cells cost, the others what rows do.
    MANY_CELLS = 512
    KEEP = 0.9

    def __init__(self, rows: StepCosts | None = None, *, has_prefill: bool = False) -> None:
        """has_prefill: rows of prompts have an arithmetic of their own, with costs of its own."""
        self.rows = rows or StepCosts()
        self.prompts = StepCosts() if has_prefill else None
        self.per_cell = 0.0
        """Seconds for one row to look at one cell."""

    def seconds(self, n_rows: int, n_seen: int = 0, *, n_read: int = 0) -> float:
        """Expected of a step; 0 before any was measured. n_seen: cells that the rows see, added.

        n_read: so many of the rows are of prompts.
        """
        return self._of_rows(max(1, n_rows), n_read) + self.per_cell * n_seen

    def apart(self, n_read: int) -> int:
        """How many rows of prompts take a pass of their own: all or none."""
        return 0 if self.prompts is None else n_read

    def observe(self, n_rows: int, n_seen: int, seconds: float, *, n_read: int = 0) -> None:
        """A step took so long."""
        of_rows = self._of_rows(n_rows, n_read)
        if of_rows > 0 and n_seen > self.MANY_CELLS * n_rows:
            found = max(0.0, seconds - of_rows) / n_seen
            self.per_cell = self.KEEP * self.per_cell + (1 - self.KEEP) * found
            return
        rest = max(seconds - self.per_cell * n_seen, 0.1 * seconds)
        costs, n = self.rows, n_rows
        if self.prompts is not None and n_read:
            # The others are known better, from the steps without prompts.
            costs, n = self.prompts, n_read
            rest = max(rest - _seconds(self.rows, n_rows - n_read), 0.1 * rest)
        costs.observe(n, rest * min(1.0, StepCosts.MOST_ROWS / n))

    def _of_rows(self, n_rows: int, n_read: int) -> float:
        """Two arithmetics are two passes. One that was never measured costs what the other does."""
        if self.prompts is None:
            return _seconds(self.rows, n_rows)
        rows, prompts = self.rows, self.prompts
        if not rows.seconds(1):
            rows = prompts
        elif not prompts.seconds(1):
            prompts = rows
        return _seconds(rows, n_rows - n_read) + _seconds(prompts, n_read)


def _seconds(costs: StepCosts, n_rows: int) -> float:
    """Beyond the most rows that are told apart, every row costs the same."""
    return costs.seconds(n_rows) * max(1.0, n_rows / StepCosts.MOST_ROWS) if n_rows else 0.0
