"""What a model.bin of CTranslate2 says of its model, by the names that families read.

Settings are variables of rank 0 (ctranslate2/specs/transformer_spec.py), sizes are shapes, and
tokens stand in config.json and the vocabulary beside it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from pyflow.errors import FormatError, UnsupportedError
from pyflow.formats import Checkpoint
from pyflow.formats.side_files import is_file
from pyflow.formats.vocabularies import read_vocabulary
from pyflow.specs.language.facts import read_config
from pyflow.text import printable

FORMAT = "CTranslate2"
_VOCABULARIES = ("shared_vocabulary.json", "shared_vocabulary.txt")
ALIAS = "alias/"
"""Metadata: before a further name of a variable."""
_SPEC = "TransformerSpec"
_ACTIVATIONS = {0: "relu", 1: "gelu_tanh", 2: "silu", 3: "gelu"}
# Families by norms before branches, and a norm of embeddings.
_FAMILIES = {
    (False, False): "post_norm",
    (False, True): "post_norm_of_embeddings",
    (True, False): "pre_norm",
    (True, True): "pre_norm_of_embeddings",
}
# Settings that change nothing here, or nothing at these values.
_WITHOUT_EFFECT = ("alignment_layer", "alignment_heads", "embeddings_merge")
_ONLY_ZERO = (
    "multi_query_attention",
    "alibi",
    "alibi_use_positive_positions",
    "scale_alibi",
)
_SCALE = "queries_scale"
_READ = (
    "num_heads",
    "pre_norm",
    "activation",
    "scale_embeddings",
    "scale_outputs",
    "start_from_zero_embedding",
    _SCALE,
    "relative_attention_max_distance",
)
_LAYER = re.compile(r"(encoder|decoder)/layer_(\d{1,4})/")
_ATTENTION, _BIASES = "layer_0/self_attention/", "relative_attention_bias"


def aliases(checkpoint: Checkpoint) -> dict[str, str]:
    """Variables by their further names."""
    return {
        name.removeprefix(ALIAS): found
        for name, found in checkpoint.metadata.items()
        if name.startswith(ALIAS) and isinstance(found, str)  # a setting may be called so
    }


def facts(checkpoint: Checkpoint) -> tuple[str, dict[str, Any]]:
    """The family, and the values of a model. UnsupportedError: pyflow does not run such a model.
    FormatError: a file beside it is missing or broken, or a variable is."""
    return _Reader(checkpoint).facts()


class _Reader:
    def __init__(self, checkpoint: Checkpoint) -> None:
        self._path, self._settings = checkpoint.path, checkpoint.metadata
        self._shapes = {t.name: t.shape for t in checkpoint.tensors}
        for name, variable in aliases(checkpoint).items():
            self._shapes[name] = self._shapes[variable]

    def facts(self) -> tuple[str, dict[str, Any]]:
        self._check()
        table = self._shape("decoder/embeddings/weight")
        n_rows, n_embd = table[0], table[-1]
        if self._shape("encoder/embeddings_0/weight") != table:
            raise self._refusal("embeddings", "one vocabulary for both languages", "two")
        starts_at_zero = bool(self._of("decoder", "start_from_zero_embedding", 0))
        eps = self._config().get("layer_norm_epsilon")
        is_t5 = f"encoder/{_ATTENTION}{_BIASES}" in self._shapes
        values = {
            "n_vocab": n_rows + starts_at_zero,
            "n_zeros": int(starts_at_zero),
            "start": n_rows if starts_at_zero else self._start(n_rows),
            "n_embd": n_embd,
            "n_layers": self._n_layers("encoder"),
            "n_decoder_layers": self._n_layers("decoder"),
            "n_heads": self._of("encoder", "num_heads"),
            "n_decoder_heads": self._of("decoder", "num_heads"),
            "n_ff": self._shape("encoder/layer_0/ffn/linear_0/weight")[0],
            "n_decoder_ff": self._shape("decoder/layer_0/ffn/linear_0/weight")[0],
            "activation": self._activation(),
            "embed_scale": self._embed_scale(n_embd),
            "eps": eps if eps is not None else 1e-6 if is_t5 else 1e-5,
        }
        return self._t5(values) if is_t5 else self._other(values)

    def _other(self, values: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        self._expect_scale(None)
        self._expect("decoder/scale_outputs", (None, 1.0), "logits without a scale")
        values["n_ctx"] = self._shape("encoder/position_encodings/encodings")[0]
        has_norm = "encoder/layernorm_embedding/gamma" in self._shapes
        return _FAMILIES[bool(self._of("encoder", "pre_norm")), has_norm], values

    def _t5(self, values: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        self._expect_scale(1.0)
        self._expect("encoder/pre_norm", (1,), "norms before branches")
        if (scale := values["embed_scale"]) != 1:
            raise self._refusal("encoder/scale_embeddings", "no scale", repr(scale))
        n_heads = values["n_heads"]
        biases = f"encoder/{_ATTENTION}{_BIASES}"
        rows = self._shape(f"encoder/{_ATTENTION}linear_0/weight")[0]
        distance = self._settings.get(f"encoder/{_ATTENTION}relative_attention_max_distance")
        values |= {
            "head_dim": rows // (3 * n_heads) if n_heads else 0,
            "n_buckets": self._shape(biases)[0],
            "max_distance": 128 if distance is None else distance,
            "gated": "encoder/layer_0/ffn/linear_0_noact/weight" in self._shapes,
            "head_scale": self._of("decoder", "scale_outputs", 1.0),
        }
        return "t5", values

    def _check(self) -> None:
        """UnsupportedError: another kind of model, or a setting that pyflow has not."""
        if (spec := self._settings["spec"]) != _SPEC:
            raise self._refusal("the kind of model", f"{_SPEC}, a translator", repr(spec))
        for name, value in self._settings.items():
            stack, _, key = name.partition("/")
            if stack not in ("encoder", "decoder"):
                continue
            last = key.rpartition("/")[2]
            if last in (*_READ, *_WITHOUT_EFFECT) or (last in _ONLY_ZERO and not value):
                continue
            raise self._refusal(f"{name:.100}", "a setting that pyflow has", repr(value))

    def _activation(self) -> str:
        number = self._of("encoder", "activation")
        self._expect("decoder/activation", (number,), "the activation of the encoder")
        if (word := _ACTIVATIONS.get(number)) is None:
            raise self._refusal("encoder/activation", "0 to 3", repr(number))
        return word

    def _embed_scale(self, n_embd: int) -> float:
        scale = self._of("encoder", "scale_embeddings", 1)
        self._expect("decoder/scale_embeddings", (scale,), "the scale of the encoder")
        if isinstance(scale, int):  # a flag
            return math.sqrt(n_embd) if scale else 1.0
        return float(scale)

    def _start(self, n_rows: int) -> int:
        """The token that texts begin with; the end of texts, where the user gives a language."""
        config = self._config()
        token = config.get("decoder_start_token") or config.get("eos_token", "</s>")
        paths = (self._path.with_name(name) for name in _VOCABULARIES)
        path = next((path for path in paths if is_file(path)), None)
        if path is None:
            raise FormatError(
                f"{self._path}: expected {' or '.join(_VOCABULARIES)} beside it, found none; "
                "convert the model again"
            )
        texts = read_vocabulary(path)
        if len(texts) != n_rows:
            raise FormatError(f"{path}: expected {n_rows:,} tokens, found {len(texts):,}")
        if token not in texts:
            raise FormatError(f"{path}: expected the token {token!r:.40}, found none")
        return texts.index(token)

    def _config(self) -> Mapping[str, Any]:
        path = self._path.with_name("config.json")
        return read_config(path) if is_file(path) else {}

    def _n_layers(self, stack: str) -> int:
        found = {int(m[2]) for name in self._shapes if (m := _LAYER.match(name)) and m[1] == stack}
        return max(found, default=-1) + 1

    def _of(self, stack: str, key: str, otherwise: Any = None) -> Any:
        found = self._settings.get(f"{stack}/{key}", otherwise)
        if found is None:
            raise FormatError(f"{self._path}: expected the setting {stack}/{key}, found none")
        return found

    def _shape(self, name: str) -> tuple[int, ...]:
        found = self._shapes.get(name)
        if found is None or not found:
            raise FormatError(f"{self._path}: expected the variable {name}, found none")
        return found

    def _expect(self, name: str, known: tuple[Any, ...], what: str) -> None:
        if (found := self._settings.get(name)) not in known:
            raise self._refusal(name, what, repr(found))

    def _expect_scale(self, scale: float | None) -> None:
        """UnsupportedError: an attention scales its queries otherwise. None: by heads' sizes."""
        for name in {f"encoder/{_ATTENTION}{_SCALE}", *self._settings}:
            if name.endswith(_SCALE):
                self._expect(name, (scale,), "the scale of such models")

    def _refusal(self, name: str, expected: str, found: str) -> UnsupportedError:
        return UnsupportedError(
            printable(f"{self._path}: {name}: expected {expected}, found {found:.60}")
            + "; take the model that it was converted from"
        )
