"""A pipeline writes what one place writes: all models, modes, guesses, ranks and transports."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cache
from itertools import combinations, groupby, product
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from pyflow.cluster.run.drafts import by_models
from pyflow.cluster.run.threads import ThreadPipeline

from .conftest import Rig
from .cover import FACTORS, PROMPTS, SIZES, Case, cases, check, pairwise, prompt_tokens, sampling
from .ranks import Start, assert_silent

pytestmark = pytest.mark.model

N_PREDICT, N_LONG = 40, 200
CASES = cases()
LONG = cases(n_ranks=(3, 5), transport=("mpi",), prompt=range(len(PROMPTS)))
# What make accept runs at once, in less than two minutes.
N_AT_ONCE = 11
LONG_PARTS = [
    some[first : first + N_AT_ONCE]
    for n in (3, 5)
    for some in [[case for case in LONG if case.n_ranks == n]]
    for first in range(0, len(some), N_AT_ONCE)
]

Texts: TypeAlias = Callable[[Case, int], tuple[list[int], list[int]]]


@pytest.mark.parametrize("factors", [FACTORS, {"a": range(4), "b": "xy", "c": range(5)}])
def test_any_two_values_meet_in_a_cover(factors: dict[str, Sequence[Any]]) -> None:
    rows = pairwise(factors)
    for a, b in combinations(factors, 2):
        assert {(row[a], row[b]) for row in rows} == set(product(factors[a], factors[b]))
    most = sorted(map(len, factors.values()))[-2:]
    assert len(rows) <= most[0] * most[1] * 5 // 4
    assert rows == pairwise(factors)


@pytest.fixture(scope="module")
def texts(rigs: Callable[[str], Rig]) -> Texts:
    """A case's prompt, and how one place goes on from it, by so many tokens."""

    @cache
    def plain(model: str, prompt: int, is_greedy: bool, n: int) -> tuple[list[int], list[int]]:
        one = rigs(model).model
        tokens = prompt_tokens(model, one.tokenizer, prompt)
        how = sampling(is_greedy, one.tokenizer.stop_ids)
        written = one.generate(tokens, n_predict=n, sampling=how).tokens
        assert len(written) == n
        return tokens, written

    return lambda case, n: plain(case.model, case.prompt, case.is_greedy, n)


@pytest.mark.parametrize("case", [c for c in CASES if c.transport == "threads"], ids=str)
def test_stages_in_threads_write_what_one_place_writes(
    rigs: Callable[[str], Rig], texts: Texts, case: Case
) -> None:
    rig = rigs(case.model)
    prompt, plain = texts(case, N_PREDICT)
    how = sampling(case.is_greedy, rig.model.tokenizer.stop_ids)
    stages = rig.stages(case.n_ranks, case.n_ranks > 1)
    with ThreadPipeline(stages) as pipeline:
        done = check(
            case,
            pipeline,
            how,
            prompt=prompt,
            plain=plain,
            n_vocab=rig.model.spec.n_vocab,
            window=rig.model.spec.window,
        )
        assert pipeline.reset(how, keep=done.n_past) == done.n_past
    if case.model == "smollm2":  # without windows
        n_ctx = SIZES["n_ctx"]
        assert n_ctx is not None
        assert [stage.n_free for stage in stages] == [n_ctx - done.n_past] * case.n_ranks


@pytest.mark.parametrize("mode", ["speculative", "no asynchrony"])
@pytest.mark.parametrize("is_greedy", [True, False])
def test_a_model_that_guesses_for_itself_is_always_right(
    rigs: Callable[[str], Rig], texts: Texts, mode: str, is_greedy: bool
) -> None:
    rig = rigs("smollm2")
    case = Case("smollm2", mode, "1.0", 4, is_greedy, 2, "threads", 1)
    prompt, plain = texts(case, N_PREDICT)
    how = sampling(is_greedy, rig.model.tokenizer.stop_ids)
    drafter = by_models([rig.model], n_ctx=len(prompt) + len(plain) + 16)
    drafter.begin(how, 0)
    with ThreadPipeline(rig.stages(2, True)) as pipeline:
        check(case, pipeline, how, prompt=prompt, plain=plain, n_vocab=0, drafter=drafter)


def over_ranks(
    start: Start,
    rigs: Callable[[str], Rig],
    texts: Texts,
    folder: Path,
    some: list[Case],
    n_predict: int,
) -> None:
    """All cases of a number of ranks, one after the other in one start; and what travels."""
    (n_ranks,) = {case.n_ranks for case in some}
    task: list[dict[str, Any]] = []
    for model, jobs in groupby(sorted(some, key=attrgetter("model")), key=attrgetter("model")):
        rig = rigs(model)
        task.append(
            {
                "path": str(rig.model.path),
                "n_vocab": rig.model.spec.n_vocab,
                "n_embd": rig.model.spec.n_embd,
                "window": rig.model.spec.window,
                "stops": sorted(rig.model.tokenizer.stop_ids),
                "jobs": [
                    {"case": asdict(case), "prompt": prompt, "text": text}
                    for case in jobs
                    for prompt, text in [texts(case, n_predict)]
                ],
            }
        )
    (folder / "task.json").write_text(json.dumps(task))
    assert_silent(start(n_ranks, "cover_driver.py", str(folder)))
    left = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(n_ranks)]
    for part, *ranks in zip(task, *left, strict=True):
        check_traffic(part["jobs"], part["n_embd"], ranks)


def check_traffic(
    jobs: Sequence[dict[str, Any]], n_embd: int, ranks: Sequence[dict[str, Any]]
) -> None:
    """A message per run and hop and one back, and few besides; a row's state for each row."""
    counts = ranks[0]["counts"]
    n_runs = sum(one["runs"] for one in counts)
    n_rows = sum(one["rows"] for one in counts)
    *senders, last = ranks
    for sender in senders:
        # At most one more for each job, which brings the last changes of cells.
        assert n_runs <= sender["messages"]["Frame"] <= n_runs + len(jobs)
        # A row has a state, unless its run is left out, and its token in each of: run, path, and
        # what samplers are told.
        most = 4 * n_embd * n_rows + 250 * (n_runs + len(jobs)) + 4 * 8 * n_rows
        assert 0 < sender["nbytes"]["Frame"] <= most
    if senders:
        assert last["messages"]["Result"] == n_runs
        assert last["nbytes"]["Result"] <= 64 * n_runs + 4 * n_rows
        n_cancels = sum(one["cancelled"] for one in counts)
        assert senders[0]["messages"].get("Cancel", 0) <= n_cancels * len(senders)
    for job, one in zip(jobs, counts, strict=True):
        case, n_tokens = Case(**job["case"]), len(job["text"])
        n_chunks = -(-len(job["prompt"]) // SIZES["n_batch"])
        runs = one["runs"] - n_chunks
        if case.mode == "iterative":
            assert runs == n_tokens - 1
        elif case.mode == "speculative":
            assert runs <= n_tokens - 1
        else:  # what was on its way when a guess turned out wrong, and the token in its place
            assert runs <= (n_tokens - 1) * (case.strategy.n_flight + 1)
        if case.mode == "speculative" and case.guesses == "1.0":
            assert runs <= -(-n_tokens // (case.n_rows + 1)) + 1


@pytest.mark.parametrize(
    "n_ranks",
    [n if n in (2, 5) else pytest.param(n, marks=pytest.mark.accept) for n in FACTORS["n_ranks"]],
)
def test_ranks_write_what_one_place_writes(
    start: Start, rigs: Callable[[str], Rig], texts: Texts, tmp_path: Path, n_ranks: int
) -> None:
    some = [c for c in CASES if c.transport == "mpi" and c.n_ranks == n_ranks]
    over_ranks(start, rigs, texts, tmp_path, some, N_PREDICT)


@pytest.mark.accept
@pytest.mark.parametrize("part", range(len(LONG_PARTS)))
def test_ranks_write_long_texts_of_many_prompts(
    start: Start, rigs: Callable[[str], Rig], texts: Texts, tmp_path: Path, part: int
) -> None:
    over_ranks(start, rigs, texts, tmp_path, LONG_PARTS[part], N_LONG)
