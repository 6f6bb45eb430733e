"""Files of CTranslate2 and Marian give the bits of the Hugging Face folder of the same weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pyflow
from pyflow import formats
from pyflow.errors import FormatError, PyflowError, UnsupportedError
from pyflow.generate.beams import Beams
from pyflow.sampling import SamplingParams
from pyflow.specs import build_spec

from . import converted
from .converted import Array, Codes, Tensors

KINDS = ["marian", "bart", "m2m_100", "mbart", "t5", "t5_untied", "umt5"]
SOURCE, TOKENS = [5, 17, 80, 33, 6, 1], [9, 9, 41, 70, 12, 2]


def same(one: Path, other: Path) -> None:
    """The same bits of logits; the same texts of a search, which both write whole."""
    found = []
    for path in (one, other):
        with pyflow.load(path, n_threads=1) as model:
            assert model.spec.source is not None
            logits = model.logits([model.spec.source.start, *TOKENS], SOURCE)
            greedy = model.generate(SOURCE, n_predict=8, sampling=SamplingParams(temperature=0))
            searched = model.beam_search(SOURCE, Beams(n=3, n_return=2), n_predict=8)
            found.append((logits.tobytes(), greedy.tokens, searched))
    assert found[0] == found[1]


def as_codes(name: str, one: Array) -> list[tuple[str, Array]]:
    """A variable of CTranslate2 as int8, if such are."""
    if not name.endswith("weight"):
        return [(name, one)]
    codes = Codes(one, per_row=True)
    return [(name, codes.codes), (f"{name}_scale", codes.divisors)]


def as_halves(name: str, one: Array) -> list[tuple[str, Array]]:
    return [(name, one.astype(np.float16))]


def with_codes(tensors: Tensors, *, per_row: bool, zeros: int = 0) -> dict[str, Array | Codes]:
    found: dict[str, Array | Codes] = {}
    for name, one in tensors.items():
        if not converted.is_matrix(name):
            found[name] = one
            continue
        inner = one[: len(one) - zeros] if "shared" in name else one
        codes = Codes(inner, per_row=per_row)
        if len(inner) < len(one):  # the start
            codes.codes = np.vstack([codes.codes, np.zeros_like(codes.codes[:1])])
            codes.divisors = np.append(codes.divisors, 1) if per_row else codes.divisors
        found[name] = codes
    return found


@pytest.mark.parametrize("name", KINDS)
def test_ctranslate2_gives_the_bits_of_the_folder(name: str, tmp_path: Path) -> None:
    config, tensors = converted.model(name)
    plain = converted.folder(tmp_path / "plain", config, tensors)
    same(plain, converted.ctranslate2(tmp_path / "ct2", config, tensors))


@pytest.mark.parametrize("name", ["marian", "t5"])
def test_int8_of_ctranslate2_keeps_its_codes(name: str, tmp_path: Path) -> None:
    config, tensors = converted.model(name)
    blocks = with_codes(tensors, per_row=True, zeros=name == "marian")
    plain = converted.folder(tmp_path / "plain", config, blocks)
    same(plain, converted.ctranslate2(tmp_path / "ct2", config, tensors, as_codes))


def test_float16_of_ctranslate2_is_that_of_the_folder(tmp_path: Path) -> None:
    config, tensors = converted.model("bart")
    halves = {name: one.astype(np.float16) for name, one in tensors.items()}
    plain = converted.folder(tmp_path / "plain", config, halves)
    same(plain, converted.ctranslate2(tmp_path / "ct2", config, tensors, as_halves))


@pytest.mark.parametrize("end", ["npz", "bin", "codes.bin"])
def test_files_of_marian_give_the_bits_of_the_folder(end: str, tmp_path: Path) -> None:
    config, tensors = converted.model("marian")
    config["decoder_ffn_dim"] = config["encoder_ffn_dim"]
    for name, one in tensors.items():  # which has one size for both stacks
        if "decoder" in name and "fc" in name and "fc2.bias" not in name:
            tensors[name] = np.ascontiguousarray(one[:96] if "fc1" in name else one[:, :96])
    arrays: Mapping[str, Any] = converted.marian(tensors)
    given: Mapping[str, Any] = tensors
    (tmp_path / "own").mkdir()
    path = tmp_path / f"own/model.{end}"
    if end == "npz":
        converted.write_npz(path, config, arrays)
    else:
        if end == "codes.bin":
            given = with_codes(tensors, per_row=False, zeros=1)
            arrays = {
                name: Codes(one, per_row=False) if converted.is_marian_matrix(name) else one
                for name, one in arrays.items()
            }
        converted.write_bin(path, config, arrays)
    (tmp_path / "own/lex.s2t.bin").write_bytes(b"a shortlist")
    plain = converted.folder(tmp_path / "plain", config, given)
    (plain / "pyflow.toml").write_text(converted.MARIAN_SPEC)
    config_path = plain / "config.json"
    told = json.loads(config_path.read_text()) | {"bad_words_ids": [[89]]}
    config_path.write_text(json.dumps(told))
    same(plain, tmp_path / "own")


def test_damaged_files_end_in_an_error_of_ours(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    config, tensors = converted.model("t5")
    ct2 = converted.ctranslate2(tmp_path / "ct2", config, tensors, as_codes) / "model.bin"
    config, tensors = converted.model("marian")
    (tmp_path / "own").mkdir()
    converted.write_bin(tmp_path / "own/model.bin", config, converted.marian(tensors))
    for path in (ct2, tmp_path / "own/model.bin"):
        sound = path.read_bytes()
        for _ in range(80):
            edited = bytearray(sound)
            for at in random.integers(0, 4000, 3):
                edited[at] = random.integers(0, 256)
            path.write_bytes(edited)
            with suppress(PyflowError):
                build_spec(formats.open(path))


def test_models_that_would_run_wrongly_are_refused(tmp_path: Path) -> None:
    config, tensors = converted.model("marian")
    sound = converted.ctranslate2(tmp_path / "ct2", config, tensors)
    weights = (sound / "model.bin").read_bytes()
    for old, new, says in (
        (b"TransformerSpec\0", b"FransformerSpec\0", "expected TransformerSpec"),
        (b"decoder/pre_norm", b"decoder/pre_form", "decoder/pre_form: expected a setting that"),
        (b"encoder/num_heads", b"encoder/num_feads", "encoder/num_feads"),
        (
            b"decoder/activation\0\0\1\1\0\0\0\2",
            b"decoder/activation\0\0\1\1\0\0\0\1",
            "activation",
        ),
    ):
        assert old in weights
        (sound / "model.bin").write_bytes(weights.replace(old, new, 1))
        with pytest.raises((UnsupportedError, FormatError), match=says):
            pyflow.load(sound, n_threads=1)
    arrays = converted.marian(tensors)
    for key, value in (
        ("transformer-preprocess", "n"),
        ("type", "s2s"),
        ("transformer-ffn-activation", "gelu"),
        ("enc-depth", "many"),
        ("tied-embeddings-all", "false"),
    ):
        shutil.rmtree(tmp_path / "own", ignore_errors=True)
        (tmp_path / "own").mkdir()
        told = converted.marian_config(config)
        lines = [line for line in told.split(b"\n") if not line.startswith(f"{key}:".encode())]
        said = {"said": b"\n".join([f"{key}: {value}".encode(), *lines])}
        converted.write_npz(tmp_path / "own/model.npz", said, arrays)
        with pytest.raises((UnsupportedError, FormatError), match=f"{key}: expected"):
            pyflow.load(tmp_path / "own", n_threads=1)
