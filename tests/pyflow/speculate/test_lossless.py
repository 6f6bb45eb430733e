"""No drafter changes a token: real models, all methods, greedy and sampled."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import adversaries as bad
import numpy as np
import pyflow_testing
import pytest

import pyflow
from pyflow import _core
from pyflow.sampling import SamplingParams
from pyflow.speculate import Method, SpeculationStats, Speculator
from pyflow.speculate.costs import StepCosts
from pyflow.speculate.drafters.draft_model import DraftModel
from pyflow.speculate.drafters.jacobi import Jacobi
from pyflow.speculate.drafters.lookahead import Lookahead
from pyflow.speculate.drafters.lookup import PromptLookup
from pyflow.speculate.drafters.pool import NgramPool

from .trained.methods import heads, kangaroo

pytestmark = pytest.mark.model

PROMPTS = [
    "Repeat: red green blue red green blue red green blue red",
    "The history of the Roman empire begins with",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
]
N_PREDICT = 40
SAMPLINGS = {
    "greedy": SamplingParams(temperature=0, seed=1),
    "default": SamplingParams(seed=2),
    "penalties": SamplingParams(
        temperature=1.3, top_k=90, top_p=0.9, repeat_penalty=1.2, presence_penalty=0.3, seed=3
    ),
}


@pytest.fixture(scope="module")
def model(model_path: Callable[[str], Path]) -> Iterator[pyflow.Model]:
    with pyflow.load(model_path("smollm2"), n_threads=2) as model:
        yield model


@pytest.fixture(scope="module")
def plain(model: pyflow.Model) -> Callable[[str], list[pyflow.Completion]]:
    known: dict[str, list[pyflow.Completion]] = {}

    def get(sampling: str) -> list[pyflow.Completion]:
        if sampling not in known:
            known[sampling] = model.generate(
                PROMPTS, n_predict=N_PREDICT, sampling=SAMPLINGS[sampling]
            )
        return known[sampling]

    return get


def references(plain: list[pyflow.Completion]) -> list[list[int]]:
    return [c.prompt_tokens + c.tokens for c in plain]


def shallow(model: pyflow.Model) -> list[int]:
    """A draft model: some layers of the target."""
    n = len(model.spec.layers)
    return [*range(n // 3), n - 1]


METHODS: dict[str, Callable[[pyflow.Model, list[list[int]]], list[Method]]] = {
    "lookup": lambda _m, _r: [PromptLookup()],
    "pool": lambda m, _r: [NgramPool.from_tokens(m.tokenizer.encode(PROMPTS[0] * 3))],
    "lookahead": lambda _m, _r: [Lookahead(window=3, ngram=4, guesses=3)],
    "jacobi": lambda _m, _r: [Jacobi(window=5)],
    "draft chain": lambda m, _r: [DraftModel(m, layers=shallow(m), p_min=0)],
    "draft tree": lambda m, _r: [DraftModel(m, layers=shallow(m), p_min=0.05, p_split=0.1)],
    "draft whole": lambda m, _r: [DraftModel(m, p_min=0)],
    "two drafts": lambda m, _r: [DraftModel(m, filler=DraftModel(m, layers=shallow(m)))],
    "several": lambda m, _r: [PromptLookup(), DraftModel(m, layers=shallow(m))],
    "oracle": lambda _m, r: [bad.oracle(r)],
    "off by one": lambda _m, r: [bad.off_by_one(r)],
    "half right": lambda m, r: [bad.half_right(r, m.spec.n_vocab)],
    "random": lambda m, _r: [bad.noise(m.spec.n_vocab)],
    "spam": lambda m, _r: [bad.spam(next(iter(m.tokenizer.stop_ids)))],
    "empty": lambda _m, _r: [bad.nothing()],
    "exit": lambda _m, r: [bad.exits(r, 11)],
    "hidden": lambda _m, _r: [bad.Hidden()],
    "mlp": lambda m, _r: heads(m, "mlp"),
    "medusa": lambda m, _r: heads(m, "medusa"),
    "kangaroo": lambda m, _r: kangaroo(m, 25),
    "mlp damaged": lambda m, _r: heads(m, "mlp", damaged=True),
}


def check(done: Any, expected: list[pyflow.Completion]) -> SpeculationStats:
    """The same tokens, text and end; statistics that add up."""
    done = done if isinstance(done, list) else [done]
    for mine, theirs in zip(done, expected, strict=True):
        assert mine.tokens == theirs.tokens
        assert (mine.text, mine.stop_reason) == (theirs.text, theirs.stop_reason)
        stats = mine.speculation
        assert stats.accepted <= stats.drafted
        assert sum(stats.lengths.values()) == stats.steps
        assert stats.accepted == sum(n * count for n, count in stats.lengths.items())
        longest = max(stats.lengths, default=0)
        ctars = [stats.ctar(w) for w in range(1, longest + 1)]
        assert stats.tokens_per_step == pytest.approx(1 + sum(ctars) if stats.steps else 0)
    return SpeculationStats.total(c.speculation for c in done)


# Every pair of method and sampling, and every other factor with each of both. Prompts come together
# or one after another; then two of them, for a method knows the first when it sees the second.
PAIRS = [
    (method, sampling, (i + j) % 2 == 0, [] if (i + j) % 3 else [j, (j + 1) % 3])
    for (i, method), (j, sampling) in itertools.product(enumerate(METHODS), enumerate(SAMPLINGS))
]


@pytest.mark.parametrize(("method", "sampling", "fixed", "order"), PAIRS)
def test_speculation_changes_no_token(
    model: pyflow.Model,
    plain: Callable[[str], list[pyflow.Completion]],
    method: str,
    sampling: str,
    fixed: bool,
    order: list[int],
) -> None:
    expected = plain(sampling)
    made = METHODS[method](model, references(expected))
    options: dict[str, Any] = {"n_predict": N_PREDICT, "sampling": SAMPLINGS[sampling]}
    # Draft models cost the most time by far, and four of their guesses tell as much as seven.
    slow = "draft" in method or method == "kangaroo"
    n_max = 24 if method == "lookahead" else 4 if slow else 7
    with Speculator(made, n_max=n_max, fixed=fixed) as speculator:
        if not order:
            check(model.generate(PROMPTS, speculator=speculator, **options), expected)
        for i in order:
            check(model.generate(PROMPTS[i], speculator=speculator, **options), [expected[i]])


def test_early_exits_are_right_now_and_then(
    model: pyflow.Model, plain: Callable[[str], list[pyflow.Completion]]
) -> None:
    """Alone, where verification goes on from the first layers, and beside others."""
    expected = plain("greedy")
    with Speculator(kangaroo(model, 27), n_max=3, fixed=True) as speculator:
        options: dict[str, Any] = {"n_predict": N_PREDICT, "sampling": SAMPLINGS["greedy"]}
        alone = model.generate(PROMPTS[0], speculator=speculator, **options)
        together = model.generate(PROMPTS[:2], speculator=speculator, **options)
    for done in ([alone], together):
        assert check(done, expected[: len(done)]).accepted > 0


LONG = {
    "greedy": SAMPLINGS["greedy"],
    "free": SamplingParams(
        temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, repeat_penalty=1.15, seed=9
    ),
}


@pytest.fixture(scope="module", params=["smollm2", "gemma3"])
def long_runs(request: pytest.FixtureRequest, model_path: Callable[[str], Path]) -> Iterator[Any]:
    """A model, 20 prompts, and its plain continuations by sampling."""
    golden = Path(__file__).parents[2] / "golden" / f"continuations_{request.param}.json"
    prompts = [entry["ids"] for entry in json.loads(golden.read_text())["prompts"]][-20:]
    with pyflow.load(model_path(request.param), n_threads=2) as model:
        yield (
            model,
            prompts,
            {
                name: model.generate(prompts, n_predict=200, sampling=sampling)
                for name, sampling in LONG.items()
            },
        )


@pytest.mark.accept
@pytest.mark.parametrize("sampling", LONG)
@pytest.mark.parametrize("method", METHODS)
def test_speculation_changes_no_token_of_long_texts(
    long_runs: Any, method: str, sampling: str
) -> None:
    model, prompts, plain = long_runs
    expected = plain[sampling]
    made = METHODS[method](model, references(expected))
    options = {"n_predict": 200, "sampling": LONG[sampling]}
    n_max = 24 if method == "lookahead" else 7
    with Speculator(made, n_max=n_max, fixed=sampling == "greedy") as speculator:
        if method == "exit":  # which runs layers of the target only for a single sequence
            for prompt, one in zip(prompts, expected, strict=True):
                check(model.generate(prompt, speculator=speculator, **options), [one])
        else:
            check(model.generate(prompts, speculator=speculator, **options), expected)


@pytest.mark.parametrize("gamma", [1, 4, 7])
@pytest.mark.parametrize("sampling", ["greedy", "default"])
def test_an_oracle_is_always_right(
    model: pyflow.Model,
    plain: Callable[[str], list[pyflow.Completion]],
    gamma: int,
    sampling: str,
) -> None:
    expected = plain(sampling)[1:2]
    n = 1 + 4 * (gamma + 1)  # the first token comes with the prompt
    with Speculator([bad.oracle(references(expected), gamma)], fixed=True) as speculator:
        done = model.generate(
            PROMPTS[1], n_predict=n, sampling=SAMPLINGS[sampling], speculator=speculator
        )
    assert done.tokens == expected[0].tokens[:n]
    stats = done.speculation
    assert stats is not None
    assert stats.tokens_per_step == gamma + 1
    assert stats.acceptance_rate == 1


def test_guessing_blindly_brings_nothing(
    model: pyflow.Model, plain: Callable[[str], list[pyflow.Completion]]
) -> None:
    with Speculator([bad.noise(model.spec.n_vocab)], fixed=True) as speculator:
        done = model.generate(
            PROMPTS, n_predict=N_PREDICT, sampling=SAMPLINGS["greedy"], speculator=speculator
        )
    assert check(done, plain("greedy")).tokens_per_step == 1


class KnownCosts(StepCosts):
    """Steps that take as long as expected, whatever else the machine does."""

    def observe(self, n_rows: int, seconds: float) -> None:
        del seconds
        super().observe(n_rows, 0.01 * self._prior(n_rows))


def test_what_never_pays_is_switched_off(
    model: pyflow.Model, plain: Callable[[str], list[pyflow.Completion]]
) -> None:
    # Kinds of guesses fade, and are then tried again for a while: hence most steps, and not all.
    with Speculator([bad.noise(model.spec.n_vocab)]) as speculator:
        speculator.controller.costs = KnownCosts()
        runs = [
            model.generate(
                PROMPTS[1], n_predict=N_PREDICT, sampling=SAMPLINGS["greedy"], speculator=speculator
            )
            for _ in range(6)
        ]
    stats = check(runs[-2:], plain("greedy")[1:2] * 2)
    assert stats.plain_steps > 0.6 * stats.steps


@pytest.mark.parametrize("layer", [1, 17, 30])
def test_exited_features_go_on_as_a_full_forward(
    model: pyflow.Model, plain: Callable[[str], list[pyflow.Completion]], layer: int
) -> None:
    expected = plain("default")[1:2]
    with Speculator([bad.exits(references(expected), layer)], fixed=True) as speculator:
        done = model.generate(
            PROMPTS[1],
            n_predict=N_PREDICT,
            sampling=SAMPLINGS["default"],
            speculator=speculator,
        )
        # What it has run, and is then not wanted, leaves no trace.
        speculator.controller.fixed = False
        again = model.generate(
            PROMPTS[1],
            n_predict=N_PREDICT,
            sampling=SAMPLINGS["default"],
            speculator=speculator,
        )
    assert check(done, expected).tokens_per_step > 1.5
    check(again, expected)


def test_hidden_states_are_those_of_plain_decoding(model: pyflow.Model) -> None:
    tokens = model.tokenizer.encode(PROMPTS[2])
    states = []
    for drafted in ([], tokens[5:8]):
        with model.context(64) as context:
            sampler = SAMPLINGS["greedy"].sampler()
            context.forward(tokens[:4], logits="none")
            at = 4
            found = {}
            while at < 12:
                after = tokens[at + 1 : at + 1 + len(drafted)]
                draft = _core.Draft(after, range(-1, len(after) - 1), 0)
                one = _core.Entry(0, [tokens[at]], sampler, draft=draft, hidden=[-1])
                (result,) = context.step([one])
                found[at] = result.hidden
                at += 1
            states.append(found)
    for a, b in zip(*(s.values() for s in states), strict=True):
        assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
@pytest.mark.parametrize("cache_type", ["f16", "q8_0"])
def test_cells_are_bitwise_those_of_sequential_decoding(
    model_path: Callable[[str], Path], name: str, cache_type: Any
) -> None:
    """Trees accepted, cut and aborted, past the end of gemma3's windows of 512."""
    rng = np.random.default_rng(11)
    with pyflow.load(model_path(name), n_threads=2) as model:
        text = rng.integers(0, model.spec.n_vocab, 660).tolist()
        start = 500 if name == "gemma3" else 30
        text = text[: start + 60]
        with model.context(1024, cache_type=cache_type) as plain:
            plain.forward(text[:start], regime="prefill", logits="none")
            for token in text[start:]:
                plain.forward([token], logits="none")
            with model.context(1024, cache_type=cache_type) as context:
                context.forward(text[:start], regime="prefill", logits="none")
                _decode_by_trees(context, text, start, rng, model.spec.n_vocab)
                probe = rng.integers(0, model.spec.n_vocab, 3)
                expected = plain.forward(probe, logits="all")
                assert context.forward(probe, logits="all").tobytes() == expected.tobytes()
                if cache_type == "f16":
                    _same_cells(context, plain, model)


def _decode_by_trees(
    context: pyflow.Context, text: list[int], at: int, rng: np.random.Generator, n_vocab: int
) -> None:
    rows: list[tuple[int, int]] = []  # token and parent of the pending tree
    while at < len(text):
        sampler = SAMPLINGS["greedy"].sampler()
        n = int(rng.integers(1, 6))
        rows, path = [(text[at], -1)], [0]
        for token in text[at + 1 : at + n]:
            for _ in range(rng.integers(0, 3)):
                rows.append((int(rng.integers(n_vocab)), int(rng.integers(0, len(rows)))))
            rows.append((token, path[-1]))
            path.append(len(rows) - 1)
        context.guess([t for t, _ in rows], [p for _, p in rows], 0, [], [], sampler)
        how = rng.random()
        if how < 0.2:
            context.abort()
            continue
        keep = path[: int(rng.integers(1, len(path) + 1))]
        context.commit([(row, 0) for row in keep])
        at += len(keep)


def _same_cells(a: pyflow.Context, b: pyflow.Context, model: pyflow.Model) -> None:
    caches = [pyflow_testing.context_kv(c.native) for c in (a, b)]
    for cache in caches:
        cache.check()
    for layer in range(len(model.spec.layers)):
        seen = []
        for cache in caches:
            cells = cache.cells(cache.group_of(layer), 0)
            seen.append([p for p, _ in cells])
        assert seen[0] == seen[1]
        positions = [dict(cache.cells(cache.group_of(layer), 0)) for cache in caches]
        keys = [cache.keys(layer).view(np.uint16) for cache in caches]
        values = [cache.values(layer).view(np.uint16) for cache in caches]
        n_slots = -(-caches[0].groups()[caches[0].group_of(layer)][1] // 16) * 16
        width = keys[0].size // n_slots
        for p in seen[0]:
            slots = [where[p] for where in positions]
            k = [
                key.reshape(-1, width, 16)[slot // 16, :, slot % 16]
                for key, slot in zip(keys, slots, strict=True)
            ]
            v = [value.reshape(-1, width)[slot] for value, slot in zip(values, slots, strict=True)]
            assert (k[0] == k[1]).all()
            assert (v[0] == v[1]).all()
