"""KL divergence and its kin, against float64 arithmetic on whole rows."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from pyflow.quant.measure.journal import Journal
from pyflow.quant.measure.kld import Divergence, compare, diverge, estimate, n_figures
from pyflow.quant.measure.windows import Window, cut

from pyflow.errors import PyflowError

N_VOCAB = 1000


@dataclass
class Source:
    """Logits by the text so far: a function of its last token and its length."""

    table: NDArray[np.float32]
    seen: list[int] = field(default_factory=list)
    n_calls: int = 0

    def forward(
        self, tokens: NDArray[np.int32], *, logits: str, regime: str
    ) -> NDArray[np.float32]:
        assert regime == "prefill"
        self.n_calls += 1
        at = np.arange(len(self.seen), len(self.seen) + len(tokens))
        self.seen += tokens.tolist()
        rows = self.row(tokens, at)
        return rows if logits == "all" else rows[:0]

    def row(self, tokens: NDArray[np.int32], at: NDArray[np.int64]) -> NDArray[np.float32]:
        return np.stack([np.roll(self.table[t], p) for t, p in zip(tokens, at, strict=True)])

    def clear(self) -> None:
        self.seen = []


def table(seed: int, noise: float) -> NDArray[np.float32]:
    base = np.random.default_rng(0).standard_normal((20, N_VOCAB)) * 3
    return (base + noise * np.random.default_rng(seed).standard_normal(base.shape)).astype("f4")


TEXT = np.random.default_rng(1).integers(0, 20, 130)
WINDOWS = cut(TEXT, 32).windows


def journal(n_others: int, path: Path | None = None) -> Journal:
    return Journal(path, {}, [w.n_scored for w in WINDOWS], n_figures(n_others))


def measured(*noises: float, n_threads: int = 1) -> list[Divergence]:
    others = [Source(table(i + 1, noise)) for i, noise in enumerate(noises)]
    records = journal(len(noises))
    diverge(Source(table(9, 0)), others, WINDOWS, records, n_vocab=N_VOCAB, n_threads=n_threads)
    return [compare(records.records, k) for k in range(len(noises))]


def exact(noise: float, seed: int) -> dict[str, NDArray[np.float64]]:
    """The same of whole rows in float64."""

    def log_probabilities(source: Source, window: Window) -> NDArray[np.float64]:
        x = source.row(window.tokens, np.arange(len(window.tokens))).astype(np.float64)
        x -= x.max(-1, keepdims=True)
        return x - np.log(np.exp(x).sum(-1, keepdims=True))

    out: dict[str, list[float]] = {"base": [], "nll": [], "kl": [], "same": []}
    for window in WINDOWS:
        p = log_probabilities(Source(table(9, 0)), window)
        q = log_probabilities(Source(table(seed, noise)), window)
        for r in range(window.first, len(window.tokens) - 1):
            target = window.tokens[r + 1]
            out["base"].append(-p[r, target])
            out["nll"].append(-q[r, target])
            out["kl"].append(float((np.exp(p[r]) * (p[r] - q[r])).sum()))
            out["same"].append(float(p[r].argmax() == q[r].argmax()))
    return {name: np.array(values) for name, values in out.items()}


@pytest.mark.parametrize("noise", [0.01, 1.0])
def test_figures_are_those_of_float64_arithmetic(noise: float) -> None:
    (found,) = measured(noise)
    e = exact(noise, 1)
    dp = np.exp(-e["nll"]) - np.exp(-e["base"])
    n = e["kl"].size
    assert found.tokens == n == 60
    assert found.kl.mean == pytest.approx(e["kl"].mean(), rel=1e-4, abs=1e-8)
    assert found.kl.stderr == pytest.approx(e["kl"].std() / math.sqrt(n - 1), rel=1e-3)
    assert found.kl_max == pytest.approx(e["kl"].max(), rel=1e-4, abs=1e-7)
    quantiles = np.percentile(e["kl"], [50, 90, 95, 99, 99.9])
    assert found.kl_quantiles == pytest.approx(quantiles, rel=1e-3, abs=1e-7)
    assert found.same_top.mean == e["same"].mean()
    assert found.rms_dp.mean == pytest.approx(math.sqrt(np.square(dp).mean()), rel=1e-4)
    assert found.mean_dp.mean == pytest.approx(dp.mean(), rel=1e-3, abs=1e-8)
    assert found.ppl.mean == pytest.approx(math.exp(e["nll"].mean()), rel=1e-6)
    assert found.base_ppl.mean == pytest.approx(math.exp(e["base"].mean()), rel=1e-6)
    ratio = e["nll"] - e["base"]
    assert found.ln_ratio.mean == pytest.approx(ratio.mean(), rel=1e-3, abs=1e-7)
    assert found.ln_ratio.stderr == pytest.approx(ratio.std() / math.sqrt(n - 1), rel=1e-3)
    assert math.log1p(found.ppl_change.mean) == pytest.approx(found.ln_ratio.mean)


def test_a_model_is_not_far_from_itself_at_all() -> None:
    (found,) = measured(0.0)
    assert found.kl.mean == found.kl_max == found.rms_dp.mean == found.ln_ratio.stderr == 0
    assert found.same_top.mean == 1


def test_paired_errors_are_far_below_those_of_either_perplexity() -> None:
    (found,) = measured(0.05)
    assert found.ppl_change.stderr < 0.2 * found.ppl.stderr / found.ppl.mean


def test_others_do_not_touch_each_other_nor_do_threads() -> None:
    assert measured(0.1, 0.5) == measured(0.1, 0.5, n_threads=3)
    assert measured(0.1, 0.5)[0] == measured(0.1)[0]


def test_measuring_goes_on_from_what_a_journal_has(tmp_path: Path) -> None:
    def run(n_windows: int, path: Path) -> tuple[Journal, int]:
        base = Source(table(9, 0))
        with journal(1, path) as records:
            diverge(base, [Source(table(1, 0.1))], WINDOWS[:n_windows], records, n_vocab=N_VOCAB)
        return records, base.n_calls

    path = tmp_path / "j"
    run(2, path)
    done, calls = run(len(WINDOWS), path)
    assert calls == 2 * (len(WINDOWS) - 2)
    assert [compare(done.records, 0)] == measured(0.1)
    assert run(len(WINDOWS), path)[1] == 0


def test_a_broken_logit_is_named_by_chunk_and_position() -> None:
    broken = table(1, 0)
    broken[WINDOWS[1].tokens[20], 7] = np.nan
    others = [Source(table(8, 0)), Source(broken)]
    with pytest.raises(PyflowError, match=r"chunk \d, position \d+: model 3 of 3"):
        diverge(Source(table(9, 0)), others, WINDOWS, journal(2), n_vocab=N_VOCAB)
    with pytest.raises(PyflowError, match="model 1 of 2"):
        diverge(Source(broken), [Source(table(9, 0))], WINDOWS, journal(1), n_vocab=N_VOCAB)


def test_the_error_of_one_value_is_unknown() -> None:
    assert estimate(np.array([2.0])).stderr == math.inf
