"""What a loaded model gives besides text: vectors of texts, scores of pairs, guesses of tokens."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pyflow.embed import decoder
from pyflow.embed.encoder import Encoder, Vectors, check_dimensions, cut, normalized
from pyflow.embed.framing import Framed, frame
from pyflow.embed.recipe import POOLS, Recipe, read_recipe
from pyflow.engine.loaded import LoadedModel
from pyflow.engine.sources import reads_sources
from pyflow.errors import PyflowError, ShapeError, UnsupportedError
from pyflow.generate.any_model import AnyModel
from pyflow.specs.model_spec import Pool

MASK = "[MASK]"
"""Where `fill_mask` looks for a token, whatever the model's own is called."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """A document by its place in the list, and how well it fits a query."""

    index: int
    score: float


class Ranking(NamedTuple):
    """Documents, the best first, and what became of the texts."""

    ranked: list[Ranked]
    n_cut: int
    """Texts, or pairs of query and document, whose end was cut off."""


class Guess(NamedTuple):
    """A token in the place of a mask."""

    token: int
    text: str
    probability: float


@dataclass(frozen=True, slots=True)
class Embedded:
    """Vectors of texts, and what became of the texts."""

    vectors: Vectors
    n_tokens: list[int]
    n_cut: int
    """Texts whose end was cut off."""


class EmbeddingModel(LoadedModel, AnyModel):
    """The part of a `Model` that writes nothing."""

    @functools.cached_property
    def encoder(self) -> Encoder:
        """UnsupportedError: this model writes text. FormatError: files beside it are broken."""
        return Encoder(self)

    @functools.cached_property
    def recipe(self) -> Recipe:
        """How texts become vectors. FormatError: files beside the model are broken."""
        return read_recipe(self.checkpoint, self.spec)

    def embed(
        self,
        texts: str | Sequence[str],
        *,
        prompt: str | None = None,
        prompt_name: str | None = None,
        pool: Pool | None = None,
        normalize: bool | None = None,
        dimensions: int | None = None,
        truncate: bool = False,
    ) -> Vectors:
        """Vectors of texts, float32: (n, n_embd), or (n_embd,) for a single text.

        A text's vector does not depend on the others, to the last bit. prompt: what precedes each
        text, or prompt_name: the model's own of this name, such as query. pool, normalize: instead
        of what the model's files say; a model that writes has last, or mean, and normalizes.
        dimensions: the first values of each vector alone. truncate: cut off what the model does not
        take; else such texts are a ShapeError, as are empty ones.
        """
        given = [texts] if isinstance(texts, str) else texts
        found = self.embedded(
            given,
            prompt=prompt,
            prompt_name=prompt_name,
            pool=pool,
            normalize=normalize,
            dimensions=dimensions,
            truncate=truncate,
        ).vectors
        vector: Vectors = found[0]
        return vector if isinstance(texts, str) else found

    def embedded(
        self,
        texts: Sequence[str],
        *,
        prompt: str | None = None,
        prompt_name: str | None = None,
        pool: Pool | None = None,
        normalize: bool | None = None,
        dimensions: int | None = None,
        truncate: bool = False,
    ) -> Embedded:
        """`embed` with what became of the texts."""
        texts = _checked(texts)
        if prompt is not None and prompt_name is not None:
            raise PyflowError("prompt and prompt_name: expected one of them, found both")
        if pool is not None and pool not in POOLS:
            raise UnsupportedError(f"pool {pool!r:.40}: expected one of {', '.join(POOLS)}")
        recipe = self.recipe
        lead = recipe.prompt(prompt_name) if prompt is None else prompt
        dimensions = recipe.dimensions if dimensions is None else dimensions
        if not self.spec.is_encoder:
            led = [lead + text for text in texts]
            return self._decoded(led, pool, normalize, dimensions, truncate)
        framed = self._framed([lead + text for text in texts], truncate)
        n_lead = 0
        if lead and not recipe.include_prompt:
            ends = self.tokenizer.frame()
            n_lead = len(self.encoder.frame(lead).ids) - len(ends.after)
        vectors = self.encoder.vectors(
            framed, pools=pool and (pool,), normalize=normalize, first_pooled=n_lead
        )
        check_dimensions(dimensions, vectors.shape[1])
        is_normal = recipe.normalize if normalize is None else normalize
        return _embedded(cut(vectors, dimensions, normalize=is_normal), framed)

    def _framed(self, texts: Sequence[str], truncate: bool) -> list[Framed]:
        framed = []
        for at, text in enumerate(texts):
            try:
                most = self.recipe.max_tokens
                framed.append(frame(self.tokenizer, text, most=most, truncate=truncate))
            except PyflowError as error:
                if len(texts) == 1:
                    raise
                raise type(error)(f"text {at + 1}: {str(error).removeprefix('text: ')}") from None
        return framed

    def _decoded(
        self,
        texts: Sequence[str],
        pool: Pool | None,
        normalize: bool | None,
        dimensions: int | None,
        truncate: bool,
    ) -> Embedded:
        if self.spec.source:
            raise UnsupportedError(f"{reads_sources(self.spec)}, or a model of the encoder alone")
        recipe = self.recipe
        if recipe.dense or len(recipe.pools) > 1:
            raise UnsupportedError(
                f"{self.name}: dense layers and several pools need an encoder; expected one pool"
            )
        framed = self._framed(texts, truncate)
        pool = recipe.pools[0] if pool is None else pool
        vectors = decoder.hidden_states(self, [one.ids for one in framed], pool)
        check_dimensions(dimensions, self.spec.n_embd)
        vectors = vectors[:, :dimensions]
        is_normal = recipe.normalize if normalize is None else normalize
        return _embedded(normalized(vectors) if is_normal else vectors, framed)

    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_n: int | None = None,
        truncate: bool = True,
    ) -> list[Ranked]:
        """Documents by how well they answer a query, the best first.

        A model with a head for classes reads query and document together, and its score is the
        probability of the last class; others compare vectors by their cosine, the query with the
        prompt of that name if the model has one. Equal scores stay in the order of the list.
        truncate: cut off what the model does not take; else such texts are a ShapeError.
        """
        return self.ranking(query, documents, top_n=top_n, truncate=truncate).ranked

    def ranking(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_n: int | None = None,
        truncate: bool = True,
    ) -> Ranking:
        """`rerank` with what became of the texts."""
        documents = _checked(documents)
        given: object = query
        if not isinstance(given, str) or not given.strip():
            raise PyflowError(f"query: expected some text, found {query!r:.60}")
        if not self.spec.is_encoder:
            raise UnsupportedError(
                f"{self.name}: expected an encoder to compare texts with, found a model that writes"
            )
        scores, n_cut = (
            self._pair_scores(query, documents, truncate)
            if "classify" in self.spec.chains
            else self._cosines(query, documents, truncate)
        )
        ranked = [Ranked(i, float(score)) for i, score in enumerate(scores)]
        ranked.sort(key=lambda one: (-one.score, one.index))
        return Ranking(ranked[:top_n], n_cut)

    def _pair_scores(
        self, query: str, documents: Sequence[str], truncate: bool
    ) -> tuple[Sequence[float], int]:
        framed = [self.encoder.frame(query, one, truncate=truncate) for one in documents]
        scores = [_probabilities(row)[-1] for row in self.encoder.classes(framed).tolist()]
        return scores, sum(pair.n_cut > 0 for pair in framed)

    def _cosines(
        self, query: str, documents: Sequence[str], truncate: bool
    ) -> tuple[Sequence[float], int]:
        names = self.encoder.recipe.prompts
        try:
            asked = self.embedded(
                [query],
                prompt_name="query" if "query" in names else None,
                normalize=True,
                truncate=truncate,
            )
        except ShapeError as error:
            raise ShapeError(f"query: {str(error).removeprefix('text: ')}") from None
        found = self.embedded(
            documents,
            prompt_name="document" if "document" in names else None,
            normalize=True,
            truncate=truncate,
        )
        return (found.vectors @ asked.vectors[0]).tolist(), asked.n_cut + found.n_cut

    def classify(self, texts: Sequence[str], *, truncate: bool = False) -> list[list[float]]:
        """The probability of each class for each text; of a single class, whether it holds.

        UnsupportedError: the model has no head for classes.
        """
        framed = self._framed(_checked(texts), truncate)
        return [_probabilities(row) for row in self.encoder.classes(framed).tolist()]

    def fill_mask(self, text: str, *, top_k: int = 5) -> list[list[Guess]]:
        """The likeliest tokens in the place of each mask: [MASK], or the model's own mask token.

        UnsupportedError: the model has no head for masked tokens. PyflowError: no mask in the text.
        """
        mask = self._mask()
        text = text.replace(MASK, self.tokenizer.token_text(mask))
        framed = self.encoder.frame(text, parse_special=True)
        places = [i for i, token in enumerate(framed.ids) if token == mask]
        if not places:
            raise PyflowError(f"text: expected {MASK} in the place of a token, found none")
        found = []
        for row in self.encoder.guesses(framed, places).astype(np.float64):
            weights = np.exp(row - row.max())
            best = np.argsort(-row, kind="stable")[:top_k].tolist()
            found.append(
                [
                    Guess(i, self.tokenizer.decode([i]).strip(), float(weights[i] / weights.sum()))
                    for i in best
                ]
            )
        return found

    def _mask(self) -> int:
        for name in (MASK, "<mask>"):
            ids = self.tokenizer.encode(name, add_special=False, parse_special=True)
            if len(ids) == 1 and self.tokenizer.is_control(ids[0]):
                return ids[0]
        raise UnsupportedError(f"{self.name}: expected a token for masks, found none")

    def close(self) -> None:
        if "encoder" in self.__dict__:
            self.encoder.close()
        super().close()


def _checked(texts: Sequence[str]) -> Sequence[str]:
    """PyflowError: not a list of texts, or one is empty."""
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        raise PyflowError(f"texts: expected a list of texts, found {texts!r:.60}")
    for at, text in enumerate(texts):
        if not text.strip():
            raise PyflowError(f"text {at + 1}: expected some text, found nothing but blanks")
    return [*texts]


def _embedded(vectors: Vectors, texts: Sequence[Framed]) -> Embedded:
    n_tokens = [len(text.ids) for text in texts]
    return Embedded(vectors, n_tokens, sum(text.n_cut > 0 for text in texts))


def _probabilities(scores: Sequence[float]) -> list[float]:
    """Softmax of scores; of a single one, its sigmoid."""
    if len(scores) == 1:
        x = scores[0]
        return [1 / (1 + math.exp(-x)) if x > -700 else 0.0]
    most = max(scores)
    weights = [math.exp(x - most) for x in scores]
    total = math.fsum(weights)
    return [weight / total for weight in weights]
