"""Gemma 3n and 4: layers that share cells, streams and embeddings of layers that rows carry."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pyflow import _core, formats
from pyflow.errors import FormatError, PyflowError, ShapeError, UnsupportedError
from pyflow.specs import build_spec, describe

from .. import tiny
from ..test_families import fixture

POOLS = [_core.ThreadPool(n, False) for n in (1, 3)]
NAMES = ["hf_gemma3n", "hf_gemma4", "hf_gemma4_moe"]


def spec_of(path: Path) -> Any:
    return build_spec(formats.open(path))


def context(path: Path, layers: tuple[int, int | None] = (0, None), pool: int = 1) -> _core.Context:
    checkpoint = formats.open(path)
    stage = _core.Stage(checkpoint.native, build_spec(checkpoint).stage(*layers), POOLS[pool])
    return _core.Context(stage, n_ctx=64, n_seq_max=2, n_batch=64, cache_type="f16")


def run(of: _core.Context, rows: Any, first: int, wanted: bool, regime: str) -> NDArray[np.float32]:
    at = np.arange(first, first + len(rows), dtype=np.int32)
    none = np.zeros(0, np.int32)
    return of.forward(rows, at, 0, np.arange(len(rows), dtype=np.int32) if wanted else none, regime)


@pytest.mark.parametrize("name", NAMES)
def test_cuts_of_text_layers_and_threads_change_no_bit(name: str, tmp_path: Path) -> None:
    golden = fixture(name)
    path, tokens = tiny.write(tmp_path / "m", golden), np.array(golden["tokens"], np.int32)
    want = run(context(path), tokens, 0, True, "decode")
    one = context(path, pool=0)
    found = [run(one, tokens[i : i + 1], i, True, "decode") for i in range(len(tokens))]
    assert np.concatenate(found).tobytes() == want.tobytes()
    for cuts in ([3, 4, 11], [17]):
        whole = context(path)
        ends = [*cuts, len(tokens)]
        parts = [
            run(whole, tokens[a:b], a, True, "decode")
            for a, b in zip([0, *cuts], ends, strict=True)
        ]
        assert np.concatenate(parts).tobytes() == want.tobytes()
    spec = spec_of(path)
    for cuts in ([1], [3], [2, 3], [1, spec.n_layers - 1], [*range(1, spec.n_layers)]):
        rows: Any = tokens
        for first, last in zip([0, *cuts], cuts, strict=False):
            stage = context(path, (first, last), pool=first % 2)
            run(stage, rows, 0, False, "decode")
            rows = stage.hidden()
            assert rows.shape == (len(tokens), spec.row_width)
        found = run(context(path, (cuts[-1], None)), rows, 0, True, "decode")
        assert found.tobytes() == want.tobytes()


def test_layers_that_share_cells_have_none(tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "m", fixture("hf_gemma4"))
    spec = spec_of(path)
    assert spec.cell_readers == {4: 2, 5: 3}
    whole = context(path)
    run(whole, np.arange(1, 9, dtype=np.int32), 0, False, "decode")
    assert [whole.read_cells(i, 0, 4, 8).nbytes > 0 for i in range(4)] == [True] * 4
    with pytest.raises(ShapeError):
        whole.read_cells(4, 0, 4, 8)
    with pytest.raises(UnsupportedError, match="share"):
        spec.shallow([0, 1])


def test_an_earlier_layer_with_the_same_heads_must_have_the_cells(tmp_path: Path) -> None:
    checkpoint = formats.open(tiny.write(tmp_path / "m", fixture("hf_gemma4")))
    for layer, error in ((5, "earlier layer"), (4, "earlier layer"), (3, "like those")):
        stage = build_spec(checkpoint).stage()
        block = next(b for b in stage["layers"][4] if b["kind"] == "attention")  # type: ignore[index]
        block["kv_layer"] = layer
        with pytest.raises(ShapeError, match=error):
            _core.Stage(checkpoint.native, stage, POOLS[0])
    stage = build_spec(checkpoint).stage()
    with pytest.raises(ShapeError, match="layer 2, whose cells it reads"):
        _core.Context(
            _core.Stage(checkpoint.native, stage, POOLS[0]),
            n_ctx=64,
            n_seq_max=1,
            n_batch=8,
            cache_type="f16",
            layers=[0, 1, 3, 4, 5],
        )


def test_carried_values_must_be_within_the_row(tmp_path: Path) -> None:
    checkpoint = formats.open(tiny.write(tmp_path / "m", fixture("hf_gemma3n")))
    spec = build_spec(checkpoint)
    for n in (-1, 0, spec.n_carried - 1):
        with pytest.raises(ShapeError, match="carry"):
            _core.Stage(checkpoint.native, spec.stage() | {"n_carried": n}, POOLS[0])


CHANGES: list[tuple[str, dict[str, Any], type[PyflowError], str]] = [
    ("hf_gemma4", {"num_kv_shared_layers": 6}, UnsupportedError, "keys and values of their own"),
    ("hf_gemma4", {"num_kv_shared_layers": 5}, FormatError, "found none"),
    ("hf_gemma4", {"num_kv_shared_layers": -1}, UnsupportedError, "keys and values of their own"),
    ("hf_gemma4", {"rope_parameters": {"rope_theta": 5}}, UnsupportedError, "full_attention"),
    ("hf_gemma3n", {"rope_parameters": "x"}, FormatError, "table"),
    ("hf_gemma4", {"use_bidirectional_attention": "all"}, UnsupportedError, "later tokens"),
    ("hf_gemma4", {"per_layer_config": {"1": {"sliding_window": 9}}}, UnsupportedError, "head_dim"),
    ("hf_gemma4", {"per_layer_config": {"0": {"head_dim": 8}}}, UnsupportedError, "head_dim"),
    ("hf_gemma3n", {"altup_active_idx": 4}, FormatError, "active stream below 4"),
    ("hf_gemma3n", {"altup_num_inputs": 9}, FormatError, "2 to 8"),
    ("hf_gemma3n", {"activation_sparsity_pattern": [0.5]}, FormatError, "index"),
    ("hf_gemma3n", {"activation_sparsity_pattern": 1.0}, FormatError, "quantile"),
    ("hf_gemma3n", {"intermediate_size": [96]}, FormatError, "index"),
]


@pytest.mark.parametrize(("name", "change", "error", "match"), CHANGES)
def test_hostile_configurations_are_refused(
    name: str, change: dict[str, Any], error: type[PyflowError], match: str, tmp_path: Path
) -> None:
    path = tiny.write(tmp_path / "m", fixture(name))
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(error, match=match):
        describe(formats.open(path)).spec  # noqa: B018


def test_sizes_may_be_given_layer_by_layer(tmp_path: Path) -> None:
    golden = fixture("hf_gemma4")
    path = tiny.write(tmp_path / "m", golden)
    want = spec_of(path)
    config = json.loads((path / "config.json").read_text())
    del config["global_head_dim"]
    config["per_layer_config"] = {str(i): {"head_dim": 32} for i in (1, 3, 5)}
    (path / "config.json").write_text(json.dumps(config))
    assert spec_of(path) == want


@pytest.mark.parametrize("share", [0.5, 0.3])
def test_gates_may_be_cut_at_their_mean_and_below(share: float, tmp_path: Path) -> None:
    """The deviations of such a share are 0, or less."""
    path = tiny.write(tmp_path / "m", fixture("hf_gemma3n"))
    config = json.loads((path / "config.json").read_text())
    config["activation_sparsity_pattern"] = [share] * 6
    (path / "config.json").write_text(json.dumps(config))
    cutoffs = {b.cutoff for b in spec_of(path).blocks() if b.kind == "ffn"}
    assert cutoffs == {NormalDist().inv_cdf(share)}


@pytest.mark.parametrize("name", ["rope_freqs.weight", "blk.3.layer_output_scale.weight"])
def test_gguf_files_must_have_what_changes_values(name: str, tmp_path: Path) -> None:
    golden = fixture("gguf_gemma4")
    tensors = {key: shape for key, shape in golden["tensors"].items() if key != name}
    path = tiny.write(tmp_path / "m", golden | {"tensors": tensors})
    with pytest.raises((UnsupportedError, FormatError), match=name.partition(".w")[0]):
        spec_of(path)
