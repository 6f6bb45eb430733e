"""What a server counts, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from pyflow.batch.completion import Completion
from pyflow.batch.local_runner import Usage

KIND = "text/plain; version=0.0.4; charset=utf-8"
_SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
_LONG = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 600)


_USAGE = {
    "n_free": ("cells_free", "Cells that neither running nor kept texts hold."),
    "n_kept": ("texts_kept", "Texts whose cells are kept for later ones."),
    "n_put_back": ("put_back", "Texts that lost their cells to others for a while."),
    "n_read": ("rows_read", "Rows of prompts in all steps."),
    "n_written": ("rows_written", "Rows of texts being written."),
    "n_drafted": ("rows_drafted", "Rows of drafts."),
    "mask_s": ("mask_seconds", "Time that masks of grammars took, of texts that have ended."),
}
"""Of the loaded models: by the attribute of `Usage`, name and text."""


class Metrics:
    """Counters of one server. Safe to use from several threads."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = self._counter("requests", "Requests, by route and status.", "route status")
        self.refused = self._counter("refused", "Requests refused by the guard.", "status")
        self.ignored = self._counter("ignored_fields", "Unknown fields of requests.")
        self.cancelled = self._counter("cancelled", "Requests whose client went away.")
        self.computed = self._counter("prompt_tokens_computed", "Prompt tokens that were read.")
        self.cached = self._counter("prompt_tokens_cached", "Prompt tokens found in the cache.")
        self.generated = self._counter("generated_tokens", "Tokens that were drawn.")
        self.drafted = self._counter("drafted_tokens", "Tokens that were drafted and run.")
        self.accepted = self._counter("accepted_tokens", "Drafted tokens that were right.")
        self.step = self._histogram("step_seconds", "Time of a step.", _SHORT)
        self.first_token = self._histogram(
            "time_to_first_token_seconds", "From the queue to the first token.", _LONG
        )
        self.total = self._histogram("request_seconds", "From the queue to the end.", _LONG)
        self.queued = self._histogram("queue_seconds", "From the queue to the first step.", _LONG)
        self.gap = self._histogram(
            "inter_token_seconds", "Between steps that wrote on a text.", _SHORT
        )

    def count(self, completion: Completion, seconds: float) -> None:
        """A text has ended. seconds: since it came into the queue."""
        timings = completion.timings
        own = timings.prompt_ms + timings.predicted_ms
        self.queued.observe(max(0.0, seconds - own / 1e3))
        self.computed.inc(timings.prompt_n)
        self.cached.inc(max(0, len(completion.prompt_tokens) - timings.prompt_n))
        self.generated.inc(timings.predicted_n)
        if (drafts := completion.speculation or completion.pipeline) is not None:
            self.drafted.inc(drafts.drafted)
            self.accepted.inc(drafts.accepted)

    def usages(self, found: Callable[[], Sequence[Usage]]) -> None:
        """What the runners of the loaded models have done, added up when it is asked for."""
        for attribute, (name, text) in _USAGE.items():

            def total(attribute: str = attribute) -> float:
                return float(sum(getattr(usage, attribute) for usage in found()))

            self.gauge(name, text, total)

    def gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        """A number that is looked up when it is asked for."""
        Gauge(f"pyflow_{name}", text, registry=self._registry).set_function(value)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def _counter(self, name: str, text: str, labels: str = "") -> Counter:
        return Counter(f"pyflow_{name}", text, labels.split(), registry=self._registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"pyflow_{name}", text, registry=self._registry, buckets=buckets)
