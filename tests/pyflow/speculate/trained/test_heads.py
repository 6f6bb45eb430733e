"""Speculators' heads: their mathematics, trees and files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

import pyflow
from pyflow import _core
from pyflow.errors import FormatError, PyflowError, ShapeError, UnsupportedError
from pyflow.sampling import SamplingParams
from pyflow.speculate import Speculator
from pyflow.speculate.drafter import Budget, Start
from pyflow.speculate.trained import files
from pyflow.speculate.trained.base import Base
from pyflow.speculate.trained.drafting import HeadsMethod

from ...tiny_models import write_model
from . import speculators as made
from .methods import heads

N_VOCAB, N_EMBD, INNER, N = 96, 64, 96, 3
TOKEN_MAP = [0, 3, 7, 8, 20, 33, 34, 60, 61, 62, 63, 64, 65, 80, 90, 91, 95]
"""Seventeen rows: a tile and one more."""
BASED = {"base_embedding": True, "embedding_scale": 1.7, "base_head": True}
MLPS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "public": ({}, {}),
    "scaled": ({"scale_input": True}, {}),
    "tied": ({"tie_weights": True, "scale_input": True}, {"tied": True}),
    "based": ({"pyflow": BASED}, {"from_base": True, "token_map": TOKEN_MAP}),
    "tied and based": (
        {"pyflow": BASED, "tie_weights": True},
        {"from_base": True, "token_map": TOKEN_MAP, "tied": True},
    ),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pyflow.Model]:
    path = write_model(
        tmp_path_factory.mktemp("base") / "base.gguf",
        n_layers=2,
        window=0,
        n_embd=N_EMBD,
        n_vocab=N_VOCAB,
    )
    with pyflow.load(path, n_threads=2) as model:
        yield model


@pytest.fixture(scope="module")
def tables(model: pyflow.Model) -> tuple[made.Rows, made.Rows]:
    """The model's embedding and head."""
    names = {t.name for t in model.checkpoint.tensors}
    head = "output.weight" if "output.weight" in names else "token_embd.weight"
    return (
        np.float64(model.checkpoint.array("token_embd.weight")),
        np.float64(model.checkpoint.array(head)),
    )


def hidden_row(seed: int = 3) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=N_EMBD).astype(np.float32)


def mlp(folder: Path, name: str) -> tuple[Path, dict[str, Any], made.Arrays]:
    config, weights = MLPS[name]
    config = made.mlp_config(N_VOCAB, N_EMBD, INNER, N, **config)
    tensors = made.mlp_tensors(N_VOCAB, N_EMBD, INNER, N, **weights)
    return made.write(folder, config, tensors), config, tensors


@pytest.mark.parametrize("name", MLPS)
def test_mlp_speculators_compute_what_the_paper_says(
    model: pyflow.Model, tables: tuple[made.Rows, made.Rows], tmp_path: Path, name: str
) -> None:
    path, config, tensors = mlp(tmp_path, name)
    trained = files.load(path, model, pack_as=None)
    tokens = [5, 80, 33]
    expected = made.mlp_logits(config, tensors, np.float64(hidden_row()), tokens, *tables)
    found = trained.heads.logits(hidden_row(), tokens)
    for mine, theirs in zip(found, expected, strict=True):
        assert np.abs(mine - theirs).max() < 1e-4 * np.abs(theirs).max()


@pytest.mark.parametrize(("n_layers", "own_heads"), [(1, True), (2, True), (1, False)])
def test_medusas_heads_compute_what_the_paper_says(
    model: pyflow.Model,
    tables: tuple[made.Rows, made.Rows],
    tmp_path: Path,
    n_layers: int,
    own_heads: bool,
) -> None:
    tensors = made.medusa_tensors(N_VOCAB, N_EMBD, N, n_layers, own_heads=own_heads)
    # Published configurations count wrongly.
    config = {"model_type": "llama", "medusa_num_heads": 2, "original_lm_head": not own_heads}
    trained = files.load(made.write(tmp_path, config, tensors), model, pack_as=None)
    found = trained.heads.logits(hidden_row(), [1] * N)
    expected = made.medusa_logits(tensors, N, n_layers, np.float64(hidden_row()), tables[1])
    for mine, theirs in zip(found, expected, strict=True):
        assert np.abs(mine - theirs).max() < 1e-4 * np.abs(theirs).max()


def test_an_adapter_that_names_no_layer_needs_one(model: pyflow.Model, tmp_path: Path) -> None:
    config = made.kangaroo_config(N_VOCAB, N_EMBD, 4, 2, 0)
    path = made.write(tmp_path, config, made.kangaroo_tensors(N_EMBD, 4, 2))
    with pytest.raises(UnsupportedError, match="--exit-layer"):
        files.load(path, model)
    with pytest.raises(FormatError, match="exit layer: expected 1, found 2"):
        files.load(path, model, exit_layer=2)
    adapter = files.load(path, model, exit_layer=1).adapter
    assert adapter is not None
    assert adapter.exit_layer == 1


def test_files_of_other_programs_are_read_alike(
    model: pyflow.Model, tmp_path: Path, oracle: Callable[[str], Any]
) -> None:
    """Pickles, vLLM's names for Medusa, old buffers, and tied stages under all their names."""
    torch = oracle("torch")
    tokens = [1, 2, 3]

    def logits(folder: Path) -> NDArray[np.float32]:
        return files.load(folder, model, pack_as=None).heads.logits(hidden_row(), tokens)

    def saved(folder: Path, name: str, tensors: made.Arrays) -> Path:
        (folder / "model.safetensors").unlink()
        torch.save(
            {k: torch.tensor(v, dtype=torch.float32) for k, v in tensors.items()}, folder / name
        )
        return folder

    medusa = made.medusa_tensors(N_VOCAB, N_EMBD, N, 1)
    config: dict[str, Any] = {"medusa_num_heads": N, "medusa_num_layers": 1}
    expected = logits(made.write(tmp_path / "a", config, medusa))
    renamed = {
        re.sub(r"^(\d)\.0\.linear", r"medusa_heads.blocks.\1.layers.0", name): values
        for name, values in medusa.items()
    }
    renamed = {
        re.sub(r"^(\d)\.1\.", r"medusa_heads.lm_heads.\1.", n): v for n, v in renamed.items()
    }
    assert (logits(made.write(tmp_path / "b", config, renamed)) == expected).all()
    pickled = saved(made.write(tmp_path / "c", config, medusa), "medusa_lm_head.pt", medusa)
    assert (logits(pickled) == expected).all()

    config = made.mlp_config(N_VOCAB, N_EMBD, INNER, N, tie_weights=True)
    tied = made.mlp_tensors(N_VOCAB, N_EMBD, INNER, N, tied=True)
    expected = logits(made.write(tmp_path / "d", config, tied))
    for part in ("emb.{}.weight", "head.{}.weight", "ln.{}.weight", "ln.{}.bias"):
        for i in (1, 2):
            tied[f"speculator.{part.format(i)}"] = tied[f"speculator.{part.format(0)}"]
    tied["speculator.proj.2.weight"] = tied["speculator.proj.1.weight"]
    assert (logits(made.write(tmp_path / "e", config, tied)) == expected).all()

    config = made.kangaroo_config(N_VOCAB, N_EMBD, 4, 2, 1)
    adapter = made.kangaroo_tensors(N_EMBD, 4, 2)
    adapter["layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(8)
    pickled = saved(made.write(tmp_path / "f", config, adapter), "pytorch_model.bin", adapter)
    assert files.load(pickled, model).adapter is not None


@pytest.mark.parametrize(("n_kv_heads", "token_map"), [(4, []), (2, TOKEN_MAP)])
def test_kangaroos_adapter_computes_what_the_paper_says(
    model: pyflow.Model,
    tables: tuple[made.Rows, made.Rows],
    tmp_path: Path,
    n_kv_heads: int,
    token_map: list[int],
) -> None:
    config = made.kangaroo_config(N_VOCAB, N_EMBD, 4, n_kv_heads, 1)
    tensors = made.kangaroo_tensors(N_EMBD, 4, n_kv_heads, token_map=token_map)
    trained = files.load(made.write(tmp_path, config, tensors), model, pack_as=None)
    assert trained.adapter is not None
    features = np.random.default_rng(5).normal(size=(20, N_EMBD)).astype(np.float32)
    before, after = made.kangaroo_hidden(config, tensors, np.float64(features))
    context = _core.Context(
        trained.adapter.stage, n_ctx=32, n_seq_max=1, n_batch=32, cache_type="f16", layers=[]
    )
    context.forward(features, np.arange(20, dtype=np.int32), 0, [])
    found = context.hidden()
    # Keys and values are kept in F16.
    assert np.abs(found - before).max() < 1e-3 * np.abs(before).max()
    rows = tables[1][token_map] if token_map else tables[1]
    expected = rows @ after[-1]
    logits = trained.heads.logits(before[-1], [0])[0]
    assert np.abs(logits - expected).max() < 1e-4 * np.abs(expected).max()


def probabilities(logits: NDArray[np.float32]) -> made.Rows:
    weights = np.exp(np.float64(logits) - logits.max())
    return np.asarray(weights / weights.sum())


@pytest.mark.parametrize("n_nodes", [1, 4, 7, 20])
def test_a_draft_is_the_tree_of_the_likeliest_nodes(
    model: pyflow.Model, tmp_path: Path, n_nodes: int
) -> None:
    path, _, _ = mlp(tmp_path, "based")
    heads = files.load(path, model).heads
    root = 5
    # All paths of two nodes, by the heads run along each.
    first = probabilities(heads.logits(hidden_row(), [root])[0])
    paths = {(i,): float(p) for i, p in zip(TOKEN_MAP, first, strict=True)}
    for i, p in zip(TOKEN_MAP, first, strict=True):
        second = probabilities(heads.logits(hidden_row(), [root, i])[1])
        paths |= {(i, j): float(p * q) for j, q in zip(TOKEN_MAP, second, strict=True)}
    best = sorted(paths, key=lambda path: -paths[path])[:n_nodes]
    tokens, parents, scores = heads.draft(hidden_row(), root, n_nodes=n_nodes, depth=2)
    found: dict[tuple[int, ...], float] = {}
    names: list[tuple[int, ...]] = []
    for token, parent, score in zip(tokens, parents, scores, strict=True):
        before = names[parent] if parent >= 0 else ()
        names.append((*before, token))
        found[names[-1]] = found.get(before, 1.0) * score
    assert sorted(found) == sorted(best)
    for name, p in found.items():
        assert p == pytest.approx(paths[name], rel=1e-4)


def test_unlikely_paths_and_levels_are_left_out(model: pyflow.Model, tmp_path: Path) -> None:
    path, _, _ = mlp(tmp_path, "based")
    heads = files.load(path, model).heads
    tokens, parents, scores = heads.draft(hidden_row(), 5, n_nodes=60, depth=3)
    assert max(parents) >= 0
    least = sorted(s for s, p in zip(scores, parents, strict=True) if p < 0)[1]
    kept, _, _ = heads.draft(hidden_row(), 5, n_nodes=60, depth=3, least=least)
    assert 0 < len(kept) < len(tokens)
    _, parents, _ = heads.draft(hidden_row(), 5, n_nodes=60, depth=3, least_level=1.1)
    assert set(parents) == {-1}
    assert heads.draft(hidden_row(), 5, n_nodes=60, depth=3, least=2.0)[0] == []


def test_heads_that_say_nothing_draft_nothing(model: pyflow.Model, tmp_path: Path) -> None:
    config = made.mlp_config(N_VOCAB, N_EMBD, INNER, N)
    tensors = made.mlp_tensors(N_VOCAB, N_EMBD, INNER, N)
    tensors["speculator.head.0.weight"][7] = np.nan
    heads = files.load(made.write(tmp_path, config, tensors), model, pack_as=None).heads
    assert heads.draft(hidden_row(), 5, n_nodes=8, depth=3)[0] == []


def test_a_row_does_not_depend_on_those_beside_it(model: pyflow.Model, tmp_path: Path) -> None:
    """Drafts of one node and of many agree where they overlap, bit for bit."""
    path, _, _ = mlp(tmp_path, "public")
    heads = files.load(path, model).heads
    many = dict(zip(*heads.draft(hidden_row(), 5, n_nodes=60, depth=1)[::2], strict=True))
    for n in (1, 2, 17):
        few = dict(zip(*heads.draft(hidden_row(), 5, n_nodes=n, depth=1)[::2], strict=True))
        assert few.items() <= many.items()


@pytest.mark.parametrize(
    ("change", "tensor", "shape", "error", "words"),
    [
        ({"vocab_size": 97}, "", (), FormatError, ["vocab_size", "96", "97"]),
        ({"emb_dim": 32}, "", (), FormatError, ["emb_dim", "64", "32"]),
        ({"n_predict": 4}, "", (), ShapeError, ["proj.3.weight", "missing"]),
        ({"n_predict": 2}, "", (), UnsupportedError, [".2.", "unknown"]),
        ({"n_predict": 10**9}, "", (), FormatError, ["n_predict", "64"]),
        ({"inner_dim": -1}, "", (), FormatError, ["inner_dim"]),
        ({"inner_dim": "96"}, "", (), FormatError, ["inner_dim", "config.json"]),
        ({"model_type": "gpt2"}, "", (), UnsupportedError, ["gpt2", "mlp_speculator"]),
        ({}, "proj.1.weight", (96, 95), ShapeError, ["96 x 96", "96 x 95"]),
        ({}, "ln.0.weight", (96, 1), ShapeError, ["ln.0.weight"]),
        ({}, "more.weight", (2, 2), UnsupportedError, ["more.weight"]),
        ({"pyflow": {"base": {"name": "x"}}}, "", (), FormatError, ["base", "n_embd"]),
    ],
)
def test_speculators_that_do_not_fit_are_refused(
    model: pyflow.Model,
    tmp_path: Path,
    change: dict[str, Any],
    tensor: str,
    shape: tuple[int, ...],
    error: type[PyflowError],
    words: list[str],
) -> None:
    config = made.mlp_config(N_VOCAB, N_EMBD, INNER, N) | change
    tensors = made.mlp_tensors(N_VOCAB, N_EMBD, INNER, N)
    if tensor:
        tensors[f"speculator.{tensor}"] = np.zeros(shape)
    with pytest.raises(error) as info:
        files.load(made.write(tmp_path, config, tensors), model)
    assert type(info.value) is error
    for word in words:
        assert word in str(info.value)


def test_weights_without_their_config_are_refused(model: pyflow.Model, tmp_path: Path) -> None:
    (tmp_path / "alone").mkdir()
    weights = mlp(tmp_path, "public")[0] / "model.safetensors"
    moved = weights.rename(tmp_path / "alone/model.safetensors")
    with pytest.raises(FormatError, match=r"no config.json in .*alone; give its folder"):
        files.load(moved, model)


def test_a_speculator_of_another_model_is_refused_by_name(tmp_path: Path) -> None:
    base = write_model(
        tmp_path / "base.gguf", n_layers=1, window=0, n_embd=N_EMBD, has_tokenizer=True
    )
    with pyflow.load(base, n_threads=1) as model:
        d, n_vocab = model.spec.n_embd, model.spec.n_vocab
        mine = msgspec.to_builtins(Base.of(model))
        for change in ({}, {"name": "Other"}, {"tokenizer": "0"}, {"n_layers": 9}):
            config = made.mlp_config(n_vocab, d, 32, 1, pyflow={"base": mine | change})
            path = made.write(tmp_path / "s", config, made.mlp_tensors(n_vocab, d, 32, 1))
            if not change:
                assert files.load(path, model).kind == "mlp"
                continue
            with pytest.raises(UnsupportedError, match=str(next(iter(change.values())))):
                files.load(path, model)


def test_heads_draft_from_the_first_step_after_the_prompt_on(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", n_layers=1, window=0, has_tokenizer=True)
    with pyflow.load(path, n_threads=1) as model:
        for prompts in (["Once"], ["Once", "Twice"]):
            with Speculator(heads(model, "mlp"), fixed=True) as drafts:
                found = model.generate(prompts, n_predict=6, speculator=drafts)
            for text in found:
                assert text.speculation is not None
                assert text.speculation.plain_steps == 1  # the last one, which needs no draft


@pytest.mark.parametrize("token_map", [[-1, 2], [3, 3], [4, 2], [95, 96], [0.5, 1.5], [[1, 2]], []])
def test_vocabularies_that_are_none_are_refused(
    model: pyflow.Model, tmp_path: Path, token_map: list[Any]
) -> None:
    config = made.mlp_config(N_VOCAB, N_EMBD, INNER, N, pyflow=BASED)
    tensors = made.mlp_tensors(N_VOCAB, N_EMBD, INNER, N, from_base=True)
    tensors["speculator.token_map"] = np.asarray(token_map)
    with pytest.raises(ShapeError, match="token_map"):
        files.load(made.write(tmp_path, config, tensors), model)


@pytest.mark.parametrize("kind", ["mlp", "medusa"])
def test_trees_that_grow_together_are_those_that_grow_alone(
    model: pyflow.Model, tmp_path: Path, kind: str
) -> None:
    if kind == "mlp":
        path, _, _ = mlp(tmp_path, "based")
    else:
        tensors = made.medusa_tensors(N_VOCAB, N_EMBD, N, 1)
        path = made.write(tmp_path, {"model_type": "medusa", "medusa_num_heads": N}, tensors)
    trained = files.load(path, model)
    rows, roots = np.stack([hidden_row(i) for i in range(9)]), [*range(0, 90, 10)]
    alone = [trained.heads.draft(*each, 20, N) for each in zip(rows, roots, strict=True)]
    assert trained.heads.draft_all(rows, roots, 20, N) == alone  # of three at a time
    assert trained.heads.draft_all(rows[:0], [], 20, N) == []
    method, sampler = HeadsMethod(trained), SamplingParams(seed=1).sampler()
    starts = [Start([root], sampler, hidden=row) for root, row in zip(roots, rows, strict=True)]
    drafters = [method.start(start) for start in starts]
    drafters[2].close()
    for drafter, (tokens, parents, _) in zip(drafters, alone, strict=True):
        tree = drafter.propose(Budget(n_nodes=20, depth=N))
        assert (tree.tokens, tree.parents) == (tokens, parents)
        short = drafter.propose(Budget(n_nodes=2, depth=1))
        assert max(short.depths()) == 1
        assert len(short) == 2


def test_numbers_out_of_range_are_refused(model: pyflow.Model, tmp_path: Path) -> None:
    path, _, _ = mlp(tmp_path, "public")
    heads = files.load(path, model).heads
    row = hidden_row()
    for hidden, root, sizes in [
        (row[:-1], 5, (1, 1)),
        (row, -1, (1, 1)),
        (row, N_VOCAB, (1, 1)),
        (row, 5, (0, 1)),
        (row, 5, (65, 1)),
        (row, 5, (1, 0)),
    ]:
        with pytest.raises(ShapeError, match="speculator"):
            heads.draft(hidden, root, n_nodes=sizes[0], depth=sizes[1])
    for tokens in ([], [1] * 4, [N_VOCAB]):
        with pytest.raises(ShapeError, match="speculator"):
            heads.logits(row, tokens)
