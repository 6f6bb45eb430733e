"""/v1/rerank: documents by how well they answer a query, as Jina and Cohere spell it."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from pyflow.serve.api.sampling import HARMLESS
from pyflow.serve.endpoint import Call
from pyflow.serve.errors import bad_request
from pyflow.serve.http.bodies import Body
from pyflow.serve.http.replies import Reply

_MAX_DOCUMENTS = 2048


class DocumentText(msgspec.Struct):
    """A document as an object."""

    text: str


class RerankBody(Body, kw_only=True):
    """The request of /v1/rerank."""

    query: str
    documents: list[str | DocumentText]
    top_n: Annotated[int, msgspec.Meta(ge=1)] | None = None
    return_documents: bool = False
    truncate: bool = True

    harmless: ClassVar[frozenset[str]] = HARMLESS


async def answer(call: Call[RerankBody]) -> Reply:
    body, served = call.body, call.served
    if served.encoding is None:
        raise bad_request(
            f"model: expected an encoder, found {served.name}, which writes text", "model"
        )
    if not 1 <= len(body.documents) <= _MAX_DOCUMENTS:
        raise bad_request(
            f"documents: expected 1 to {_MAX_DOCUMENTS}, found {len(body.documents)}", "documents"
        )
    texts = [one if isinstance(one, str) else one.text for one in body.documents]
    if not body.query.strip():
        raise bad_request("query: expected some text, found nothing but blanks", "query")
    if not body.truncate:
        served.check_size(body.query, param="query")
    model = served.encoder_model
    ranked, n_cut = await served.encoding.run(
        lambda: model.ranking(body.query, texts, top_n=body.top_n, truncate=body.truncate),
        "documents",
    )
    results = [
        {
            "index": one.index,
            "relevance_score": one.score,
            **({"document": {"text": texts[one.index]}} if body.return_documents else {}),
        }
        for one in ranked
    ]
    return Reply.of_json(
        {
            "object": "list",
            "model": served.name,
            "system_fingerprint": served.fingerprint,
            "results": results,
            "n_cut": n_cut,
        }
    )
