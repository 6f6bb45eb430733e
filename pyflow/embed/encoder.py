"""An encoder and what its texts give: vectors, scores of classes, guesses of masked tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pyflow import _core, formats
from pyflow.embed.framing import Framed, Packed, frame
from pyflow.embed.recipe import DenseModule, Recipe, read_recipe
from pyflow.engine.loaded import LoadedModel
from pyflow.engine.sources import EncoderScratch
from pyflow.errors import FormatError, ShapeError, UnsupportedError
from pyflow.specs.model_spec import Chain, Pool

# Texts of one call into the extension: between two calls Ctrl-C is heard, and lists stay short.
_AT_ONCE = 1024

Vectors = NDArray[np.float32]


class Encoder:
    """Makes vectors of texts by a loaded model that sees whole texts. Safe to share between
    threads: each call takes scratch memory of its own."""

    def __init__(self, model: LoadedModel) -> None:
        """Raises like `read_recipe`, and UnsupportedError for a model that writes text."""
        if not model.spec.is_encoder:
            raise UnsupportedError(f"{model.name}: expected an encoder, found a model that writes")
        self.model = model
        self.recipe: Recipe = read_recipe(model.checkpoint, model.spec)
        files = [_dense_file(model, module) for module in self.recipe.dense]
        self._scratch = EncoderScratch(model.name, model.stage, files)

    @property
    def n_embd(self) -> int:
        """Values of a vector, before any are cut off."""
        if self.recipe.dense:
            return self.recipe.dense[-1].n_out
        return len(self.recipe.pools) * self.model.spec.n_embd

    @property
    def width(self) -> int:
        """Values of a vector by another pool than the recipe's."""
        return self.model.spec.n_embd

    def frame(
        self,
        text: str,
        other: str | None = None,
        *,
        truncate: bool = False,
        parse_special: bool = False,
    ) -> Framed:
        """A text, or a pair, as tokens; raises like `framing.frame`."""
        return frame(
            self.model.tokenizer,
            text,
            other,
            most=self.recipe.max_tokens,
            truncate=truncate,
            n_types=self.model.spec.n_types,
            parse_special=parse_special,
        )

    def vectors(
        self,
        texts: Sequence[Framed],
        *,
        pools: Sequence[Pool] | None = None,
        normalize: bool | None = None,
        first_pooled: int = 0,
    ) -> Vectors:
        """(len(texts), n_embd); pools and normalize: instead of the recipe's. first_pooled: so many
        tokens at the start of each text do not count, unless the recipe includes prompts.

        Other pools than the recipe's skip its dense layers, which were trained on those.
        """
        chosen = tuple(pools or self.recipe.pools)
        return self._run(
            texts,
            {
                "pools": [*chosen],
                "files": bool(self.recipe.dense) and chosen == self.recipe.pools,
                "normalize": self.recipe.normalize if normalize is None else normalize,
                "first_pooled": first_pooled,
            },
        )

    def classes(self, texts: Sequence[Framed]) -> Vectors:
        """Scores of classes as they come out of the model's head: (len(texts), n_classes)."""
        chain = self._chain("classify", "a head for classes")
        if chain.pool == "none":
            raise UnsupportedError(f"{self.model.name}: scores of single tokens are not supported")
        return self._run(texts, {"pools": [chain.pool], "chain": "classify"})

    def guesses(self, text: Framed, rows: Sequence[int]) -> Vectors:
        """Logits of the tokens at these places of a text: (len(rows), n_vocab)."""
        self._chain("fill", "a head for masked tokens")
        return self._run([text], {"chain": "fill"}, np.array(rows, np.int64))

    def states(self, texts: Sequence[Framed]) -> Vectors:
        """The last layer's hidden states of all tokens, text after text: (n_tokens, n_embd)."""
        return self._run(texts, {}, np.arange(sum(len(text.ids) for text in texts)))

    def _chain(self, name: str, what: str) -> Chain:
        found = self.model.spec.chains.get(name)
        if found is None:
            raise UnsupportedError(f"{self.model.name}: expected {what}, found none in its files")
        return found

    def _run(
        self,
        texts: Sequence[Framed],
        readout: _core.Readout,
        rows: NDArray[np.int64] | None = None,
    ) -> Vectors:
        parts, begun = [], 0
        with self._scratch.lent(max((len(text.ids) for text in texts), default=0)) as native:
            for at in range(0, len(texts), _AT_ONCE):
                packed = Packed.of(texts[at : at + _AT_ONCE])
                wanted = np.empty(0, np.int64)
                if rows is not None:
                    end = begun + packed.tokens.size
                    wanted = rows[(rows >= begun) & (rows < end)] - begun
                    begun = end
                parts.append(
                    native.encode(packed.tokens, packed.types, packed.ends, readout, wanted)
                )
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.empty((0, self.n_embd), np.float32)

    def close(self) -> None:
        """Frees scratch memory and files; idempotent."""
        self._scratch.close()


def _dense_file(model: LoadedModel, module: DenseModule) -> _core.DenseFile:
    """The weights of a layer with a file of its own. FormatError, ShapeError: they are not there,
    or do not fit."""
    path = _weights(module.folder)
    checkpoint = formats.open(path)
    names = {tensor.name for tensor in checkpoint.tensors}
    expected = {"linear.weight"} | ({"linear.bias"} if module.bias else set())
    if names != expected:
        raise FormatError(
            f"{path}: expected the tensors {', '.join(sorted(expected))}, found "
            f"{', '.join(sorted(names))[:80] or 'none'}"
        )
    layer = {
        "kind": "dense",
        "weight": "linear.weight",
        "bias": "linear.bias" if module.bias else None,
        "n_in": module.n_in,
        "n_out": module.n_out,
        "activation": module.activation,
    }
    return _core.DenseFile(
        checkpoint.native, [layer], model.stage, pack_as=model.checkpoint.pack_as
    )


def _weights(folder: Path) -> Path:
    for name in ("model.safetensors", "pytorch_model.bin"):
        if (folder / name).is_file():
            return folder / name
    raise FormatError(f"{folder}: expected model.safetensors or pytorch_model.bin, found neither")


def check_dimensions(dimensions: int | None, n_embd: int) -> None:
    """ShapeError unless vectors of n_embd values can be cut to so many."""
    if dimensions is not None and not 1 <= dimensions <= n_embd:
        raise ShapeError(f"dimensions: expected 1 to {n_embd}, found {dimensions}")


def cut(vectors: Vectors, dimensions: int | None, *, normalize: bool) -> Vectors:
    """The first values of each vector, of length one again where vectors are normalized."""
    if dimensions is None or dimensions == vectors.shape[1]:
        return vectors
    short = vectors[:, :dimensions]
    return normalized(short) if normalize else short.copy()


def normalized(vectors: Vectors) -> Vectors:
    """Vectors of length one; zero ones stay. Row by row, so that the others change no bit."""
    squares = [float((row * row).sum()) for row in vectors.astype(np.float64)]
    lengths = np.maximum(np.sqrt(squares), 1e-12)
    made: Vectors = (vectors / lengths[:, None]).astype(np.float32)
    return made
