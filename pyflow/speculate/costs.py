"""What a step of n rows costs, as measured while it is used."""

from __future__ import annotations

from collections import deque
from statistics import median


class StepCosts:
    """Seconds of a step by its number of rows.

    One pass over the weights serves several rows, so the first rows cost little more than one; how
    little depends on CPU, threads and model, and is learned from the steps that are made anyway.
    """

    # Until measured: what a further row adds to the time of one. On two cores with AVX512-VNNI
    # 8 rows of a 1.5B model in Q4_K took 1.25 to 1.4 times one row (docs/performance.md).
    PRIOR_SLOPE = 0.06
    MOST_ROWS = 256
    # The median of the latest samples counts: other programs can hold up any step.
    SAMPLES = 5
    # A number of rows is known after SURE samples, for AGED steps: to measure plain steps
    # again costs a hundredth of what three tokens per step bring.
    SURE, AGED = 3, 64
    # What no step has run for so long is forgotten: a busy machine may have made rows look dear,
    # and then nobody runs them to see that they are not.
    FORGOTTEN = 256

    def __init__(self) -> None:
        self._samples: dict[int, deque[float]] = {}
        self._factor: dict[int, float] = {}  # median / prior, by rows
        self._measured: dict[int, int] = {}  # by rows, when: in steps
        self._n_steps = 0
        self._known: dict[int, float] = {}  # ratios since the last step

    def stale(self, n_rows: int) -> bool:
        """Whether a step of n_rows should be made again, to be measured.

        Else the first one, which may have been held up, would be what all others are held against.
        """
        return (
            len(self._samples.get(n_rows, ())) < self.SURE
            or self._n_steps - self._measured.get(n_rows, 0) > self.AGED
        )

    def observe(self, n_rows: int, seconds: float) -> None:
        """A step of n rows took so long."""
        n_rows = min(n_rows, self.MOST_ROWS)
        self._n_steps += 1
        self._measured[n_rows] = self._n_steps
        samples = self._samples.setdefault(n_rows, deque(maxlen=self.SAMPLES))
        samples.append(seconds)
        typical = median(samples) if len(samples) >= self.SURE else min(samples)
        self._factor[n_rows] = typical / self._prior(n_rows)
        for old in [m for m, at in self._measured.items() if self._n_steps - at > self.FORGOTTEN]:
            del self._measured[old], self._samples[old], self._factor[old]
        self._known.clear()

    def seconds(self, n_rows: int) -> float:
        """Expected, 0 before anything has been measured."""
        return self._at(1) * self.ratio(n_rows)

    def ratio(self, n_rows: int) -> float:
        """Expected over that of a single row; never more than for more rows.

        Noise only ever makes steps longer, so where two numbers of rows contradict one another, the
        shorter time is believed.
        """
        n_rows = max(1, min(n_rows, self.MOST_ROWS))
        if not self._factor:
            return self._prior(n_rows)
        if n_rows not in self._known:
            self._known[n_rows] = max(1.0, self._at(n_rows) / self._at(1))
        return self._known[n_rows]

    def _at(self, n_rows: int) -> float:
        found = self._prior(n_rows) * self._interpolated(n_rows)
        more = (self._prior(m) * f for m, f in self._factor.items() if m > n_rows)
        return min(found, min(more, default=found))

    def _prior(self, n_rows: int) -> float:
        return 1 + self.PRIOR_SLOPE * (n_rows - 1)

    def _interpolated(self, n_rows: int) -> float:
        """The factor of the nearest numbers of rows that were measured, in proportion."""
        if n_rows in self._factor or not self._factor:
            return self._factor.get(n_rows, 0.0)
        below = max((m for m in self._factor if m < n_rows), default=0)
        above = min((m for m in self._factor if m > n_rows), default=0)
        if below == 0 or above == 0:
            return self._factor[below or above]
        share = (n_rows - below) / (above - below)
        return self._factor[below] * (1 - share) + self._factor[above] * share
