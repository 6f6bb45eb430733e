"""Each kind against a float64 reference in numpy, and its gradients against finite differences."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyflow import formats
from pyflow.train.base import Base
from pyflow.train.folder import write_config, write_weights
from pyflow.train.kinds.head import OUTSIDE, Head
from pyflow.train.kinds.kangaroo import Kangaroo
from pyflow.train.kinds.kind import Kind
from pyflow.train.kinds.medusa import Medusa
from pyflow.train.kinds.mlp import Mlp

D, V, N = 8, 20, 5  # columns, tokens, positions
KINDS: list[Kind] = [
    Mlp(n_embd=D, n_vocab=V, inner=6, n_heads=3, tied=tied, embedding_scale=1.25)
    for tied in (False, True)
]
KINDS += [
    Medusa(n_embd=D, n_vocab=V, n_heads=2, n_layers=2, base_name="tiny"),
    Kangaroo(
        n_embd=D, n_vocab=V, n_query=2, n_keys=1, head_dim=4, rope_theta=100.0, eps=1e-6, n_ctx=64,
        exit_layer=1,
    ),
]  # fmt: skip
KIND_IDS = ["mlp", "mlp tied", "medusa", "kangaroo"]


class Rows:
    """A table whose rows are at hand."""

    def __init__(self, values: Any) -> None:
        self._values, self.shape = values, values.shape

    def rows(self, ids: Any) -> Any:
        return self._values[ids]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(11)


@pytest.fixture
def base(rng: np.random.Generator) -> Base:
    embedding, head = (Rows(rng.standard_normal((V, D))) for _ in range(2))
    bias = rng.standard_normal(V)
    made: Any = Base
    return made(  # type: ignore[no-any-return]
        facts={"name": "tiny"}, embedding=embedding, head=head, bias=bias, scale=0.7, softcap=3.0
    )


@pytest.fixture
def head(base: Base, oracle: Callable[[str], Any]) -> Head:
    token_map = np.array([1, 2, 3, 5, 8, 13, 19], np.int32)
    return Head(base, token_map, "cpu", oracle("torch").float64)


def parameters_of(kind: Kind, rng: np.random.Generator) -> dict[str, Any]:
    return {name: rng.standard_normal(shape) for name, shape in kind.shapes().items()}


def rms(x: Any) -> Any:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)


def logits_of(base: Base, head: Head, x: Any) -> Any:
    assert base.bias is not None
    plain = x @ base.head.rows(head.token_map).T + base.bias[head.token_map]
    return base.softcap * np.tanh(base.scale * plain / base.softcap)


def expected(kind: Kind, p: dict[str, Any], z: Any, embedded: Any) -> Iterator[Any]:
    """What each head gives to the base's head, by the layout of the files."""
    erf = np.vectorize(math.erf)
    state = rms(z) / math.sqrt(2)
    for i in range(kind.n_heads):
        if isinstance(kind, Mlp):
            j, k = (min(i, 1), 0) if kind.tied else (i, i)
            s = "speculator."
            mixed = state @ p[f"{s}proj.{j}.weight"].T
            mixed = mixed + embedded[:, i] @ p[f"{s}emb_proj.{k}.weight"].T
            mixed = p[f"{s}ln.{k}.weight"] * rms(mixed) + p[f"{s}ln.{k}.bias"]
            state = mixed * 0.5 * (1 + erf(mixed / math.sqrt(2)))
            yield p[f"{s}head_gain.{k}.weight"] * (state @ p[f"{s}head_proj.{k}.weight"].T)
        elif isinstance(kind, Medusa):
            x = z
            for j in range(kind.n_layers):
                linear = x @ p[f"{i}.{j}.linear.weight"].T + p[f"{i}.{j}.linear.bias"]
                x = x + linear / (1 + np.exp(-linear))
            yield x


def expected_adapter(kind: Kangaroo, p: dict[str, Any], f: Any) -> Any:
    """y of one text, position by position and head by head."""
    normed = rms(f) * p["layers.0.input_layernorm.weight"]
    half = kind.head_dim // 2

    def turned(x: Any, position: int) -> Any:
        out = x.copy()
        for i in range(half):
            angle = position * kind.rope_theta ** (-2 * i / kind.head_dim)
            a, b = x[i], x[i + half]
            out[i] = a * math.cos(angle) - b * math.sin(angle)
            out[i + half] = b * math.cos(angle) + a * math.sin(angle)
        return out

    q, k, v = (normed @ p[f"layers.0.self_attn.{n}_proj.weight"].T for n in "qkv")
    mixed = np.zeros_like(q)
    for h in range(kind.n_query):
        at = slice(h * kind.head_dim, (h + 1) * kind.head_dim)
        shared = h * kind.n_keys // kind.n_query
        of = slice(shared * kind.head_dim, (shared + 1) * kind.head_dim)
        for t in range(len(f)):
            query = turned(q[t, at], t)
            scores = np.array([query @ turned(k[u, of], u) for u in range(t + 1)])
            weights = np.exp(scores / math.sqrt(kind.head_dim))
            mixed[t, at] = weights / weights.sum() @ v[: t + 1, of]
    y = f + mixed @ p["layers.0.self_attn.o_proj.weight"].T
    return rms(y) * p["norm.weight"]


def cross_entropy(logits: Any, wanted: Any) -> float:
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return float(np.mean([-log_p[i, w] for i, w in enumerate(wanted) if w != OUTSIDE]))


def arguments_of(kind: Kind, base: Base, rng: np.random.Generator) -> list[Any]:
    """Inputs of `losses`, after parameters and head."""
    z = rng.standard_normal((N, D))
    if isinstance(kind, Kangaroo):
        return [rng.standard_normal((2, 4, D)), z, np.array([1, 2, 3, 4, 6])]
    tokens = rng.integers(0, V, (N, kind.n_heads))
    wanted = rng.integers(0, 7, (N, kind.n_heads))
    wanted[1, 0] = wanted[4, 1] = OUTSIDE
    embedded = 1.25 * base.embedding.rows(tokens) if isinstance(kind, Mlp) else None
    return [z, embedded, wanted]


def losses_of(kind: Any, torch: Any, p: dict[str, Any], head: Head, arguments: list[Any]) -> Any:
    given = {name: torch.tensor(values, requires_grad=True) for name, values in p.items()}
    tensors = [None if a is None else torch.tensor(a) for a in arguments]
    value, losses = kind.losses(given, head, *tensors)
    value.backward()
    return losses.numpy(), {name: each.grad.numpy() for name, each in given.items()}


@pytest.mark.parametrize("kind", KINDS, ids=KIND_IDS)
def test_losses_are_those_of_the_layout(
    kind: Kind, base: Base, head: Head, rng: np.random.Generator, oracle: Callable[[str], Any]
) -> None:
    p, arguments = parameters_of(kind, rng), arguments_of(kind, base, rng)
    found, _ = losses_of(kind, oracle("torch"), p, head, arguments)
    if isinstance(kind, Kangaroo):
        features, z, rows = arguments
        x = np.concatenate([expected_adapter(kind, p, f) for f in features])[rows]
        given, wanted = logits_of(base, head, x), np.exp(logits_of(base, head, z))
        wanted /= wanted.sum(-1, keepdims=True)
        log_p = given - np.log(np.exp(given).sum(-1, keepdims=True))
        losses = [-(wanted * log_p).sum(-1).mean()]
    else:
        z, embedded, columns = arguments
        outputs = expected(kind, p, z, embedded)
        losses = [
            cross_entropy(logits_of(base, head, x), columns[:, i]) for i, x in enumerate(outputs)
        ]
    np.testing.assert_allclose(found, losses, rtol=1e-10)


@pytest.mark.parametrize("kind", KINDS, ids=KIND_IDS)
def test_gradients_are_those_of_finite_differences(
    kind: Kind, base: Base, head: Head, rng: np.random.Generator, oracle: Callable[[str], Any]
) -> None:
    torch = oracle("torch")
    p, arguments = parameters_of(kind, rng), arguments_of(kind, base, rng)
    _, gradients = losses_of(kind, torch, p, head, arguments)
    step = 1e-6
    for name, values in p.items():
        for at in rng.choice(values.size, min(3, values.size), replace=False):
            sums = []
            for sign in (1, -1):
                moved = {n: v.copy() for n, v in p.items()}
                moved[name].reshape(-1)[at] += sign * step
                sums.append(losses_of(kind, torch, moved, head, arguments)[0].sum())
            slope = (sums[0] - sums[1]) / (2 * step)
            assert gradients[name].reshape(-1)[at] == pytest.approx(slope, rel=1e-5, abs=1e-8), name


@pytest.mark.parametrize("kind", KINDS, ids=KIND_IDS)
def test_a_folder_holds_what_the_layout_says(kind: Kind, base: Base, tmp_path: Path) -> None:
    p = kind.initial(np.random.default_rng(3))
    token_map = np.array([2, 7, 11], np.int32)
    for _ in range(2):  # the second time, it replaces what is there
        write_config(tmp_path, kind, base, len(token_map))
        write_weights(tmp_path, kind, p, token_map)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["pyflow"]["base"] == base.facts
    assert config["vocab_size"] == V
    opened = formats.open(tmp_path / "model.safetensors")
    name = f"{kind.prefix}token_map"
    assert opened.array(name).tolist() == [2, 7, 11]
    assert {t.name for t in opened.tensors} == {*kind.shapes(), name}
    for name, shape in kind.shapes().items():
        assert opened.array(name).shape == shape
        np.testing.assert_array_equal(opened.array(name), p[name])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
