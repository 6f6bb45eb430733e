"""/v1/embeddings: hidden states of texts as vectors of length one."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from pyflow.batch.completion import Completion
from pyflow.batch.request import Request, View
from pyflow.serve.api.completions import Prompt, several
from pyflow.serve.api.sampling import HARMLESS
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
    pooling: Literal["last", "mean"] = "last"

    harmless: ClassVar[frozenset[str]] = HARMLESS


async def answer(call: Call[EmbeddingBody]) -> Reply:
    body, state = call.body, call.state
    served = call.served
    n_embd = served.model.spec.n_embd
    if body.dimensions is not None and body.dimensions > n_embd:
        raise bad_request(
            f"dimensions: expected 1 to {n_embd}, found {body.dimensions}", "dimensions"
        )
    takes_ids = state.settings.token_embeddings
    prompts = await state.preparing.run(lambda: _tokens(served, body, takes_ids), "input")
    done = await served.answered([_request(served, body, p, call.tenant) for p in prompts])
    data = [
        {"object": "embedding", "index": i, "embedding": _vector(each, body)}
        for i, each in enumerate(done)
    ]
    n = sum(map(len, prompts))
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


def _tokens(served: Served, body: EmbeddingBody, takes_ids: bool) -> list[list[int]]:
    """In the preparing thread. ApiError: ids that may be of another tokenizer."""
    found = []
    for text in several(body.input, "input", _MAX_INPUTS):
        if not isinstance(text, str) and not takes_ids:
            raise bad_request(
                "input: expected text, found token ids, perhaps of another tokenizer; LangChain "
                "sends text with check_embedding_ctx_length=False; --token-embeddings takes ids",
                "input",
            )
        if isinstance(text, str):
            served.check_size(text, param="input")
        ids = served.model.tokenizer.encode(text) if isinstance(text, str) else text
        served.check_tokens(ids, param="input", room=0)
        found.append(ids)
    return found


def _request(served: Served, body: EmbeddingBody, tokens: list[int], tenant: str) -> Request:
    return Request(
        view=View(tokens),
        sampling=served.model.defaults.sampling.seeded(),
        limit=served.n_ctx,
        n_predict=0,
        pooling=body.pooling,
        key=tenant,
        watched=False,
    )


def _vector(completion: Completion, body: EmbeddingBody) -> Sequence[float] | str:
    pooled = completion.pooled
    assert pooled is not None
    vector = normed(pooled[: body.dimensions])
    if body.encoding_format == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return [float(x) for x in vector]


def normed(vector: NDArray[np.float32]) -> NDArray[np.float32]:
    """Of length one, unless it is zero."""
    length = float(np.linalg.norm(vector.astype(np.float64)))
    return (vector / length).astype(np.float32) if length > 0 else vector
