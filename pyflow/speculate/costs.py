"""What a step of n rows costs, as measured while it is used."""

from __future__ import annotations


class StepCosts:
    """Seconds of a step by its number of rows.

    One pass over the weights serves several rows, so the first rows cost little more than one; how
    little depends on CPU, threads and model, and is learned from the steps that are made anyway.
    """

    # Until measured: what a further row adds to the time of one. On two cores with AVX512-VNNI
    # 8 rows of a 1.5B model in Q4_K took 1.4 times one row (docs/performance.md).
    PRIOR_SLOPE = 0.06
    MOST_ROWS = 256
    # A sample counts so much; its deviation from what was expected is cut to a factor of 2, for a
    # neighbour on the machine can hold a step up for any time.
    WEIGHT = 0.15

    def __init__(self) -> None:
        self._one = 0.0  # seconds of a single row
        self._factor = {1: 1.0}  # measured / (prior x one), by rows
        self._seen = {1: 0}
        self._known: dict[int, float] = {}  # ratios since the last step

    def observe(self, n_rows: int, seconds: float) -> None:
        """A step of n rows took so long."""
        n_rows = min(n_rows, self.MOST_ROWS)
        self._known.clear()
        if self._one == 0.0:
            self._one = seconds / self._prior(n_rows)
            self._seen[n_rows] = self._seen.get(n_rows, 0) + 1
            return
        found = seconds / (self._one * self._prior(n_rows) * self._correction(n_rows))
        found = min(2.0, max(0.5, found))
        if n_rows == 1:
            # The weights of the first samples are larger: an average at first.
            seen = self._seen[1] = self._seen[1] + 1
            self._one *= found ** max(self.WEIGHT, 1 / seen)
            return
        seen = self._seen[n_rows] = self._seen.get(n_rows, 0) + 1
        start = self._correction(n_rows)
        self._factor[n_rows] = start * found ** max(self.WEIGHT, 1 / (seen + 1))

    def seconds(self, n_rows: int) -> float:
        """Expected, 0 before anything has been measured."""
        return self._one * self.ratio(n_rows)

    def ratio(self, n_rows: int) -> float:
        """Expected over that of a single row; never less than for fewer rows."""
        n_rows = max(1, min(n_rows, self.MOST_ROWS))
        if n_rows not in self._known:
            least = max((self._at(m) for m in self._factor if m < n_rows), default=1.0)
            self._known[n_rows] = max(least, self._at(n_rows))
        return self._known[n_rows]

    def _at(self, n_rows: int) -> float:
        return self._prior(n_rows) * self._correction(n_rows)

    def _prior(self, n_rows: int) -> float:
        return 1 + self.PRIOR_SLOPE * (n_rows - 1)

    def _correction(self, n_rows: int) -> float:
        """Of the nearest numbers of rows that were measured, between them in proportion."""
        if n_rows in self._factor:
            return self._factor[n_rows]
        below = max(m for m in self._factor if m < n_rows)
        above = min((m for m in self._factor if m > n_rows), default=0)
        if above == 0:
            return self._factor[below]
        share = (n_rows - below) / (above - below)
        return self._factor[below] * (1 - share) + self._factor[above] * share
