"""/v1/embeddings: hidden states of texts as vectors of length one."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from typing import Annotated, ClassVar, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from pyflow.batch.completion import Completion
from pyflow.batch.request import Request, View
from pyflow.embed.encoder import cut
from pyflow.embed.framing import Framed, frame
from pyflow.serve.api.completions import Prompt, several
from pyflow.serve.api.sampling import HARMLESS
from pyflow.serve.encoding import How
from pyflow.serve.endpoint import Call
from pyflow.serve.errors import bad_request
from pyflow.serve.http.bodies import Body
from pyflow.serve.http.replies import Reply
from pyflow.serve.models import Served

_MAX_INPUTS = 2048


class EmbeddingBody(Body, kw_only=True):
    """The request of /v1/embeddings."""

    input: Prompt
    dimensions: Annotated[int, msgspec.Meta(ge=1)] | None = None
    encoding_format: Literal["float", "base64"] = "float"
    pooling: Literal["last", "mean", "first", "max", "weighted", "mean_sqrt"] | None = None
    prompt_name: str | None = None
    truncate: bool = False

    harmless: ClassVar[frozenset[str]] = HARMLESS


async def answer(call: Call[EmbeddingBody]) -> Reply:
    body, state = call.body, call.state
    served = call.served
    takes_ids = state.settings.token_embeddings
    if served.encoding is not None:
        encoder = served.encoder_model.encoder
        framed = await state.preparing.run(lambda: _framed(served, body, takes_ids), "input")
        _check_dimensions(body, encoder.n_embd if body.pooling is None else encoder.width)
        found = await served.encoding.vectors(framed, How(body.pooling))
        n = sum(len(text.ids) for text in framed)
        vectors = [*cut(found, body.dimensions, normalize=encoder.recipe.normalize)]
    else:
        _check_dimensions(body, served.model.spec.n_embd)
        if body.pooling not in (None, "last", "mean"):
            raise bad_request(
                f"pooling: expected last or mean of a model that writes, found {body.pooling}",
                "pooling",
            )
        if body.prompt_name is not None:
            raise bad_request("prompt_name: a model that writes has no prompts", "prompt_name")
        prompts = await state.preparing.run(lambda: _tokens(served, body, takes_ids), "input")
        done = await served.answered([_request(served, body, p, call.tenant) for p in prompts])
        n = sum(map(len, prompts))
        vectors = [_vector(each, body) for each in done]
    data = [
        {"object": "embedding", "index": i, "embedding": _written(each, body)}
        for i, each in enumerate(vectors)
    ]
    usage = {"prompt_tokens": n, "total_tokens": n}
    return Reply.of_json(
        {
            "object": "list",
            "data": data,
            "model": served.name,
            "system_fingerprint": served.fingerprint,
            "usage": usage,
        }
    )


def _check_dimensions(body: EmbeddingBody, n_embd: int) -> None:
    if body.dimensions is not None and body.dimensions > n_embd:
        raise bad_request(
            f"dimensions: expected 1 to {n_embd}, found {body.dimensions}", "dimensions"
        )


def _framed(served: Served, body: EmbeddingBody, takes_ids: bool) -> list[Framed]:
    """Texts between the tokens of the encoder. In the preparing thread; raises like `_tokens`."""
    encoder = served.encoder_model.encoder
    lead = encoder.recipe.prompt(body.prompt_name)
    found = []
    for text in _inputs(served, body, takes_ids):
        if isinstance(text, str):
            if not text.strip():
                raise bad_request("input: expected some text, found nothing but blanks", "input")
            found.append(encoder.frame(lead + text, truncate=body.truncate))
        else:
            served.check_tokens(text, param="input", room=0)
            found.append(Framed([*text], [0] * len(text)))
    return found


def _tokens(served: Served, body: EmbeddingBody, takes_ids: bool) -> list[list[int]]:
    """In the preparing thread. ApiError: ids that may be of another tokenizer."""
    found = []
    for text in _inputs(served, body, takes_ids):
        tokenizer, most = served.model.tokenizer, served.n_ctx
        if isinstance(text, str) and body.truncate:
            ids = frame(tokenizer, text, most=most, truncate=True).ids
        else:
            ids = tokenizer.encode(text) if isinstance(text, str) else text
        served.check_tokens(ids, param="input", room=0)
        found.append(ids)
    return found


def _inputs(served: Served, body: EmbeddingBody, takes_ids: bool) -> Iterator[str | list[int]]:
    for text in several(body.input, "input", _MAX_INPUTS):
        if not isinstance(text, str) and not takes_ids:
            raise bad_request(
                "input: expected text, found token ids, perhaps of another tokenizer; LangChain "
                "sends text with check_embedding_ctx_length=False; --token-embeddings takes ids",
                "input",
            )
        if isinstance(text, str) and not body.truncate:
            served.check_size(text, param="input")
        yield text


def _request(served: Served, body: EmbeddingBody, tokens: list[int], tenant: str) -> Request:
    return Request(
        view=View(tokens),
        sampling=served.model.defaults.sampling.seeded(),
        limit=served.n_ctx,
        n_predict=0,
        pooling="mean" if body.pooling == "mean" else "last",
        key=tenant,
        watched=False,
    )


def _vector(completion: Completion, body: EmbeddingBody) -> NDArray[np.float32]:
    pooled = completion.pooled
    assert pooled is not None
    return normed(pooled[: body.dimensions])


def _written(vector: NDArray[np.float32], body: EmbeddingBody) -> Sequence[float] | str:
    if body.encoding_format == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return [float(x) for x in vector]


def normed(vector: NDArray[np.float32]) -> NDArray[np.float32]:
    """Of length one, unless it is zero."""
    length = float(np.linalg.norm(vector.astype(np.float64)))
    return (vector / length).astype(np.float32) if length > 0 else vector
