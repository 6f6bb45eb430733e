"""Blocks do what pyflow/specs/blocks says, and a row depends on nothing but its own past."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from pyflow import _core
from pyflow.errors import ShapeError, UnsupportedError
from pyflow.specs.block import Block
from pyflow.specs.blocks.attention import Attention
from pyflow.specs.blocks.moe import Moe
from pyflow.specs.model_spec import ModelSpec
from pyflow.specs.parts import TensorRef, tensors_of

from .block_reference import Reference
from .everything import everything
from .tiny_models import HOST_ONLY, N_EMBD, N_VOCAB, TINY, Draft, around, attention, write

Logits = NDArray[np.float32]
N = 34
TOKENS = np.random.default_rng(3).integers(0, N_VOCAB, N).astype(np.int32)
AT = np.arange(N, dtype=np.int32)
POOL = _core.ThreadPool(2, False)


def stage(
    file: _core.Checkpoint, spec: ModelSpec, pool: _core.ThreadPool = POOL, load: bool = True
) -> _core.Stage:
    return _core.Stage(file, spec.stage(), pool, load)


def context(of: _core.Stage, n_ctx: int = 70, n_batch: int = 64) -> _core.Context:
    return _core.Context(of, n_ctx=n_ctx, n_seq_max=2, n_batch=n_batch, cache_type="f16")


def run(of: _core.Context, first: int = 0, last: int = N) -> Logits:
    rows = np.arange(last - first, dtype=np.int32)
    return of.forward(TOKENS[first:last], AT[first:last], 0, rows)


def one_by_one(of: _core.Context, n: int = N) -> Logits:
    return np.concatenate([run(of, i, i + 1) for i in range(n)])


def same(a: Logits, b: Logits) -> bool:
    return a.shape == b.shape and a.tobytes() == b.tobytes()


def built(name: str, tmp_path: Path) -> tuple[ModelSpec, Draft, _core.Checkpoint]:
    draft = Draft()
    spec = (everything if name == "everything" else {**TINY, **HOST_ONLY}[name])(draft)
    return spec, draft, write(tmp_path / "tiny.safetensors", draft)


@pytest.mark.parametrize(
    ("name", "n_ctx"),
    [*((name, 70) for name in (*TINY, *HOST_ONLY)), ("long_rope", 80), ("everything", 70)],
)
def test_logits_are_those_of_the_definition(name: str, n_ctx: int, tmp_path: Path) -> None:
    spec, draft, file = built(name, tmp_path)
    native = stage(file, spec)
    assert native.used_tensors == spec.tensors() == set(draft.tensors) - _unused(name, draft)
    got = run(context(native, n_ctx))
    want = Reference(spec, draft.tensors, n_ctx).logits(TOKENS)
    # The cells are rounded to f16 from f32 here and from f64 there: a few differ by one step.
    step = 5e-4 * want.std() * max(1, spec.n_layers // 2)
    np.testing.assert_allclose(got, want, rtol=0, atol=step)
    assert same(one_by_one(context(native, n_ctx)), got)


def _unused(name: str, draft: Draft) -> set[str]:
    """Of the models that `everything` is made of, embeddings and heads are left out."""
    if name != "everything":
        return set()
    ends = ("embd", "out_norm", "head", "out", "out.b", "head.b", "on")
    return {n for n in draft.tensors if "/" in n and n.split("/")[1] in ends}


@pytest.fixture(scope="module")
def mixed(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[ModelSpec, _core.Checkpoint, Logits]:
    """A model of all blocks, and its rows, each computed by itself."""
    spec, _, file = built("everything", tmp_path_factory.mktemp("tiny"))
    return spec, file, one_by_one(context(stage(file, spec)))


Mixed = tuple[ModelSpec, _core.Checkpoint, Logits]


@pytest.mark.parametrize("n_rows", [2, 4, 5, 8, 9, 17])
def test_rows_do_not_see_their_batch(mixed: Mixed, n_rows: int) -> None:
    spec, file, alone = mixed
    native = context(stage(file, spec), n_batch=n_rows)
    rows = [run(native, i, min(i + n_rows, N)) for i in range(0, N, n_rows)]
    assert same(np.concatenate(rows), alone)


@pytest.mark.parametrize("n_threads", [1, 3])
def test_rows_do_not_see_the_thread_count(mixed: Mixed, n_threads: int) -> None:
    spec, file, alone = mixed
    native = stage(file, spec, _core.ThreadPool(n_threads, False))
    assert same(run(context(native)), alone)
    assert same(one_by_one(context(native)), alone)


@pytest.mark.parametrize("isa", _core.cpu_info()["tables"])
def test_rows_do_not_see_the_instruction_set(
    mixed: Mixed, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, file, alone = mixed
    monkeypatch.setenv("PYFLOW_ISA", isa)
    native = stage(file, spec)
    assert native.isa == isa
    assert same(run(context(native)), alone)


def test_two_stages_equal_one_wherever_they_are_cut(mixed: Mixed) -> None:
    spec, file, alone = mixed
    for cut in range(1, spec.n_layers):
        front = context(_core.Stage(file, spec.stage(0, cut), POOL))
        back = context(_core.Stage(file, spec.stage(cut), POOL))
        front.forward(TOKENS, AT, 0, [])
        hidden = front.hidden()
        assert same(back.forward(hidden, AT, 0, AT), alone), cut


def test_sequences_of_one_batch_do_not_meet(mixed: Mixed) -> None:
    spec, file, alone = mixed
    order = np.random.default_rng(1).permutation(2 * N)
    seqs, at = (order // N).tolist(), (order % N).astype(np.int32)
    native = _core.Context(stage(file, spec), n_ctx=70, n_seq_max=2, n_batch=70, cache_type="f16")
    by_position = np.argsort(at, kind="stable")
    seqs, at = [seqs[i] for i in by_position], at[by_position]
    ids = np.where(np.array(seqs) == 0, TOKENS[at], TOKENS[::-1][at]).astype(np.int32)
    out = native.forward(ids, at, seqs, np.arange(2 * N, dtype=np.int32))
    assert same(np.ascontiguousarray(out[np.array(seqs) == 0]), alone)


def test_positions_end_where_the_table_does(tmp_path: Path) -> None:
    spec, _, file = built("learned_positions", tmp_path)
    native = context(stage(file, spec))
    assert native.forward([1], [39], 0, [0]).shape == (1, N_VOCAB)
    with pytest.raises(ShapeError, match=r"position 40\b"):
        native.forward([1], [40], 0, [0])
    with pytest.raises(UnsupportedError):
        native.seq_add(0, 0, -1, -1)
    native.clear()
    assert same(run(native), one_by_one(context(stage(file, spec))))


def test_positions_stand_first_of_all(tmp_path: Path) -> None:
    spec, _, file = built("learned_positions", tmp_path)
    (positions, *first), second = spec.layers
    for wrong, says in (
        ((tuple(first), (positions, *second)), "positions"),
        (((*first, positions), second), "positions"),
        (((replace(positions, output="h"), *first), second), "positions"),
        (((replace(positions, offset=-1), *first), second), r"\b40\b.*-1\b"),
        (((replace(positions, n_positions=41), *first), second), "43 x 64.*42 x 64"),
    ):
        with pytest.raises(ShapeError, match=says):
            stage(file, replace(spec, layers=wrong), load=False)


def test_cells_move_where_slopes_alone_know_their_positions(tmp_path: Path) -> None:
    spec, _, file = built("slopes", tmp_path)
    moved, still = context(stage(file, spec)), context(stage(file, spec))
    for native, at in ((moved, AT + 5), (still, AT)):
        native.forward(TOKENS[:20], at[:20], 0, [])
    moved.seq_add(0, 0, -1, -5)
    assert same(run(moved, 20), run(still, 20))


def test_a_token_needs_the_experts_it_chooses_and_no_tables(tmp_path: Path) -> None:
    spec, draft, file = built("experts", tmp_path)
    native = stage(file, spec)
    one = 3 * 48 * N_EMBD * 4  # 40 rows are packed as 48; the other way 40 columns
    one -= 8 * N_EMBD * 4
    assert native.weight_bytes - native.token_bytes == 2 * 3 * one
    spec, draft, file = built("learned_positions", tmp_path)
    native = stage(file, spec)
    tables = 112 * N_EMBD * 4 + 48 * N_EMBD * 4
    assert native.weight_bytes - native.token_bytes == tables
    assert stage(file, spec, load=False).weight_bytes == native.weight_bytes
    assert draft.tensors["pos"].shape == (42, N_EMBD)


def with_attention(spec: ModelSpec, **changes: object) -> ModelSpec:
    """The same with another first attention block."""

    def changed(block: Block) -> Block:
        return replace(block, **changes) if isinstance(block, Attention) else block  # type: ignore[arg-type]

    first, *rest = spec.layers
    return replace(spec, layers=(tuple(map(changed, first)), *rest))


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"q": TensorRef("q", ((0, 63),))}, ShapeError, r"\b64\b.*\b63\b"),
        ({"q": TensorRef("q", ((1, 64),))}, ShapeError, r"\b65\b.*\b64\b"),
        ({"q": TensorRef("q", ((0, 32), (-2, 32)))}, ShapeError, "q"),
        ({"q": TensorRef("q", ((1 << 60, 1 << 60),))}, ShapeError, "q"),
        ({"q": TensorRef("q", ((0, 64),), step=2)}, ShapeError, r"\b128\b.*\b64\b"),
        ({"q": TensorRef("q", ((0, 64),), step=0)}, ShapeError, "q.*step"),
        ({"q": TensorRef("q", inputs=(0, 8))}, ShapeError, "inputs 0 to 8"),
        (
            {"k": TensorRef("k", transposed=True, inputs=(8, 32))},
            ShapeError,
            "inputs 8 to 40 of 32",
        ),
        ({"q": TensorRef("q", add=1.0)}, ShapeError, "q"),
        ({"k": TensorRef("k", transposed=True)}, ShapeError, "64 x 32.*32 x 64"),
        ({"q_bias": TensorRef("0/nothing")}, ShapeError, "0/nothing"),
        ({"q_bias": TensorRef("qn", ((0, 60),))}, ShapeError, r"\b64\b.*\b60\b"),
        ({"q_bias": TensorRef("qn", transposed=True)}, ShapeError, "qn"),
        ({"q_norm": ("1.qn",) * 3}, ShapeError, r"\b64\b.*\b3\b"),
        ({"q_norm": ("1.qn", "1.qn")}, ShapeError, r"1\.qn.*1 x 32.*1 x 16"),
        ({"alibi": (0.1, 0.2)}, ShapeError, r"alibi.*\b4\b.*\b2\b"),
        ({"rope": 9}, ShapeError, r"rope 9\b"),
        ({"norm_type": "mean"}, UnsupportedError, "rms.*layer"),
        ({"norm_span": "row"}, UnsupportedError, "head.*all"),
        ({"input": "y"}, ShapeError, "y.*x, h"),
    ],
)
def test_what_does_not_fit_is_refused(
    changes: dict[str, object], error: type[Exception], says: str, tmp_path: Path
) -> None:
    spec, _, file = built("norms_of_each_head", tmp_path)
    with pytest.raises(error, match=says):
        stage(file, with_attention(spec, **changes), load=False)


def test_experts_must_be_as_many_as_are_said(tmp_path: Path) -> None:
    for name, says in (("experts", r"\b4\b.*\b5\b"), ("shared_expert", r"\b144\b")):
        spec, _, file = built(name, tmp_path)
        layers = tuple(
            tuple(
                replace(
                    b,
                    n_experts=b.n_experts - 1,
                    router=TensorRef(b.router, ((0, b.n_experts - 1),)),
                )
                if isinstance(b, Moe)
                else b
                for b in layer
            )
            for layer in spec.layers
        )
        with pytest.raises(ShapeError, match=says):
            stage(file, replace(spec, layers=layers), load=False)


def test_rows_of_quantized_tensors_are_cut_whole(tmp_path: Path) -> None:
    """Fused Q4_K rows, in segments out of order, give the bits of tensors of their own."""
    rng = np.random.default_rng(5)
    n_embd, draft = 256, Draft()
    qkv = rng.integers(0, 256, (128, 144), dtype=np.uint8)
    qkv[:, :4] = np.array([0.002, 0.001], np.float16).view(np.uint8)
    segments = {
        "k": ((16, 8), (0, 8), (40, 16)),
        "q": ((56, 64),),
        "v": ((8, 8), (24, 16), (120, 8)),
    }
    floats = {
        "embd": rng.normal(0, 1, (N_VOCAB, n_embd)),
        "o": rng.normal(0, 0.1, (n_embd, 64)),
        "n": rng.normal(1, 0.1, n_embd),
        "norm": rng.normal(1, 0.1, n_embd),
    }

    def written(name: str, packed: dict[str, NDArray[np.uint8]]) -> _core.Checkpoint:
        writer = gguf.GGUFWriter(tmp_path / name, "llama")
        for tensor, values in floats.items():
            writer.add_tensor(tensor, values.astype(np.float32))
        for tensor, raw in packed.items():
            writer.add_tensor(tensor, raw, raw_dtype=gguf.GGMLQuantizationType.Q4_K)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return _core.GgufFile(tmp_path / name)

    def spec(**refs: object) -> ModelSpec:
        block = attention(draft, "", o="o", **refs)
        whole = draft.spec((*around(draft, "", block)[:1], block, around(draft, "", block)[2]))
        head = replace(whole.head, norm="n")
        return replace(whole, n_embd=n_embd, head=head)

    parts = {
        n: np.concatenate([qkv[start : start + count] for start, count in cuts])
        for n, cuts in segments.items()
    }
    apart = stage(written("apart.gguf", parts), spec(q="q", k="k", v="v"))
    fused_file = written("fused.gguf", {"qkv": qkv})
    fused = stage(fused_file, spec(**{n: TensorRef("qkv", c) for n, c in segments.items()}))
    assert same(run(context(fused)), run(context(apart)))
    assert fused.weight_bytes == apart.weight_bytes
    assert fused.used_tensors == {"qkv", "o", "n", "norm", "embd"}
    with pytest.raises(UnsupportedError, match="Q4_K"):
        stage(fused_file, spec(q=TensorRef("qkv", ((0, 64),), transposed=True), k="k", v="v"))
    bias = {"q_bias": TensorRef("qkv", ((3, 64),))}
    whole = spec(**{n: TensorRef("qkv", c) for n, c in segments.items()})
    with pytest.raises(UnsupportedError):
        stage(fused_file, with_attention(whole, **bias))
    assert "qkv" in set(tensors_of(whole.layers[0][1]))


def test_floats_packed_as_q8_0_give_the_bits_of_a_file_of_q8_0(tmp_path: Path) -> None:
    spec, draft, _ = built("interleaved_heads", tmp_path)
    spec = replace(
        spec, layers=tuple(around(draft, f"{i}/", b[2]) for i, b in enumerate(spec.layers))
    )
    safetensors = write(tmp_path / "more.safetensors", draft)
    writer = gguf.GGUFWriter(tmp_path / "q8.gguf", "llama")
    for name in spec.tensors():
        values = draft.tensors[name]
        if values.ndim > 1:
            raw = _core.quantize("Q8_0", values)
            writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    stored = stage(_core.GgufFile(tmp_path / "q8.gguf"), spec)
    packed = _core.Stage(safetensors, spec.stage(), POOL, pack_as="Q8_0")
    planned = _core.Stage(safetensors, spec.stage(), POOL, load=False, pack_as="Q8_0")
    assert packed.weight_bytes == stored.weight_bytes == planned.weight_bytes
    assert same(run(context(packed)), run(context(stored)))
    with pytest.raises(UnsupportedError, match=r"Q4_K.*\b256\b"):
        _core.Stage(safetensors, spec.stage(), POOL, pack_as="Q4_K")
    draft.tensors["0.qkv"][70, 3] = np.inf
    broken = write(tmp_path / "broken.safetensors", draft)
    with pytest.raises(UnsupportedError, match=r"0\.qkv.*row"):
        _core.Stage(broken, spec.stage(), POOL, pack_as="Q8_0")
