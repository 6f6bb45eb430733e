"""What a step costs: a pass over the weights for its rows, and cells that the rows look at."""

from __future__ import annotations

from pyflow.speculate.costs import StepCosts


class BatchCosts:
    """Seconds of a step by its rows, and by the cells that they see; measured in use."""

    # Rows that see more cells than this tell what cells cost, the others what rows do.
    MANY_CELLS = 512
    KEEP = 0.9

    def __init__(self, rows: StepCosts | None = None) -> None:
        self.rows = rows or StepCosts()
        self.per_cell = 0.0
        """Seconds for one row to look at one cell."""

    def seconds(self, n_rows: int, n_seen: int = 0) -> float:
        """Expected of a step; 0 before any was measured. n_seen: cells that the rows see, added."""
        return self._of_rows(max(1, n_rows)) + self.per_cell * n_seen

    def observe(self, n_rows: int, n_seen: int, seconds: float) -> None:
        """A step took so long."""
        of_rows = self._of_rows(n_rows)
        if of_rows > 0 and n_seen > self.MANY_CELLS * n_rows:
            found = max(0.0, seconds - of_rows) / n_seen
            self.per_cell = self.KEEP * self.per_cell + (1 - self.KEEP) * found
            return
        rest = max(seconds - self.per_cell * n_seen, 0.1 * seconds)
        self.rows.observe(n_rows, rest * min(1.0, StepCosts.MOST_ROWS / n_rows))

    def _of_rows(self, n_rows: int) -> float:
        """Beyond the most rows that are told apart, every row costs the same."""
        return self.rows.seconds(n_rows) * max(1.0, n_rows / StepCosts.MOST_ROWS)
