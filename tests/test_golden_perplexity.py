"""Perplexity of real models stays within half a percent of llama.cpp's."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyflow.quant.measure.perplexity import Perplexity, Regime, perplexity

import pyflow
from pyflow import _core

GOLDEN = Path(__file__).parent / "golden" / "perplexity.json"
TOLERANCE = 0.005
# Two right engines that round differently give one token log-probabilities 0.14 apart (root mean
# square, measured): 0.2 % over the 6,120 predictions of 24 chunks, but 0.5 % over those of 3.
SHORT_TOLERANCE = 0.015


@dataclass(frozen=True, slots=True)
class Case:
    """What llama.cpp found for one model and context, here and (at the end) on another CPU."""

    model: str
    n_ctx: int
    cumulative: list[float]
    elsewhere: float | None

    def __str__(self) -> str:
        return f"{self.model}-{self.n_ctx}"


CASES = [
    Case(case["model"], case["n_ctx"], case["cumulative_ppl"], case["elsewhere_ppl"])
    for case in json.loads(GOLDEN.read_text())["cases"]
]
SMOLLM2 = CASES[0]
SIMD_TABLES = [isa for isa in _core.runnable_isas() if isa != "scalar"]
Measure = Callable[[Case, str, Regime, int], Perplexity]


@pytest.fixture
def measure(
    model_path: Callable[[str], Path], wikitext2: str, monkeypatch: pytest.MonkeyPatch
) -> Measure:
    """Perplexity of a case's model by one kernel table ("" for the best) over some chunks."""

    def run(case: Case, isa: str, regime: Regime, n_chunks: int) -> Perplexity:
        monkeypatch.setenv("PYFLOW_ISA", isa)
        with pyflow.load(model_path(case.model), n_threads=2) as model:
            return perplexity(model, wikitext2, n_ctx=case.n_ctx, n_chunks=n_chunks, regime=regime)

    return run


def test_three_chunks_of_smollm2_agree_with_llama_cpp(measure: Measure) -> None:
    found = measure(SMOLLM2, "", "prefill", 3)
    assert found.chunks[-1] == pytest.approx(SMOLLM2.cumulative[2], rel=SHORT_TOLERANCE)
    assert found.tokens == 3 * 255


@pytest.mark.accept
@pytest.mark.parametrize("regime", ["prefill", "decode"])
@pytest.mark.parametrize("isa", SIMD_TABLES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_perplexity_agrees_with_llama_cpp_on_every_table_and_in_both_regimes(
    measure: Measure, case: Case, isa: str, regime: Regime
) -> None:
    found = measure(case, isa, regime, len(case.cumulative))
    assert found.ppl == pytest.approx(case.cumulative[-1], rel=TOLERANCE)
    if case.elsewhere is not None:
        assert found.ppl == pytest.approx(case.elsewhere, rel=TOLERANCE)
    # No chunk may stray, which a mean over many would hide. The first estimates rest on so few
    # tokens that two engines which round differently lie 1.6 % apart.
    assert found.chunks == pytest.approx(case.cumulative, rel=0.03)


@pytest.mark.accept
@pytest.mark.parametrize("regime", ["prefill", "decode"])
@pytest.mark.parametrize("case", CASES[:3], ids=str)
def test_one_chunk_scores_bitwise_the_same_on_every_table(
    measure: Measure, case: Case, regime: Regime
) -> None:
    scalar = measure(case, "scalar", regime, 1)
    assert scalar.ppl == pytest.approx(case.cumulative[0], rel=0.03)
    for isa in SIMD_TABLES:
        vector = measure(case, isa, regime, 1)
        assert (vector.ppl, vector.stderr) == (scalar.ppl, scalar.stderr)


@pytest.mark.accept
@pytest.mark.skipif(platform.machine() != "x86_64", reason="tiles are emulated on x86-64 alone")
def test_prompts_by_tiles_score_one_chunk_as_decoding_does(measure: Measure) -> None:
    tiles = measure(SMOLLM2, "amx_emulated", "prefill", 1)
    assert tiles.ppl == pytest.approx(SMOLLM2.cumulative[0], rel=0.03)
    assert tiles.ppl == pytest.approx(measure(SMOLLM2, "", "decode", 1).ppl, rel=SHORT_TOLERANCE)
