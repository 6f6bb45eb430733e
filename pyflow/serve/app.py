"""The routes, and what stands before them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from pyflow.serve import page
from pyflow.serve.api import (
    chat,
    completions,
    embeddings,
    messages,
    moderations,
    rerank,
    responses,
    tokens,
)
from pyflow.serve.api.models import Plain
from pyflow.serve.endpoint import Endpoint, Handler
from pyflow.serve.errors import ApiError, failed
from pyflow.serve.http.bodies import Body
from pyflow.serve.http.guard import Guard
from pyflow.serve.http.replies import Reply
from pyflow.serve.record.recorder import Recorder
from pyflow.serve.state import State

POSTED: dict[str, tuple[type[Body], Handler[Any]]] = {
    "/v1/chat/completions": (chat.ChatBody, chat.answer),
    "/v1/completions": (completions.CompletionBody, completions.answer),
    "/v1/responses": (responses.ResponseBody, responses.answer),
    "/v1/messages": (messages.MessagesBody, messages.answer),
    "/v1/messages/count_tokens": (messages.CountBody, messages.count_tokens),
    "/v1/embeddings": (embeddings.EmbeddingBody, embeddings.answer),
    "/v1/rerank": (rerank.RerankBody, rerank.answer),
    "/rerank": (rerank.RerankBody, rerank.answer),
    "/v1/moderations": (moderations.ModerationBody, moderations.answer),
    "/tokenize": (tokens.TokenizeBody, tokens.tokenize),
    "/detokenize": (tokens.DetokenizeBody, tokens.detokenize),
    "/apply-template": (tokens.TemplateBody, tokens.apply_template),
}
"""Routes that take a JSON body, and what answers it."""


def routes(state: State) -> list[Route]:
    plain = Plain(state)
    posted = (
        Route(path, Endpoint(state, kind, handle), methods=["POST"])
        for path, (kind, handle) in POSTED.items()
    )
    return [
        *page.routes(),
        Route("/health", plain.health),
        Route("/metrics", plain.metrics),
        Route("/v1/models", plain.models),
        Route("/v1/models/{name:path}", plain.model),
        Route("/tokenizer_info", plain.tokenizer_info),
        Route("/lora-adapters", plain.adapters),
        *posted,
    ]


def application(state: State) -> ASGIApp:
    """The whole server as an ASGI application."""
    metrics = state.metrics
    metrics.gauge("requests_queued", "Requests on their way.", lambda: state.n_jobs)
    metrics.gauge("requests_waiting", "Texts that wait for room.", lambda: state.n_waiting)
    metrics.gauge("requests_running", "Texts that are read or written.", lambda: state.n_running)
    metrics.usages(lambda: state.usages)
    app = Starlette(
        routes=routes(state),
        exception_handlers={HTTPException: _http, ApiError: _api, Exception: _bug},
    )
    app.router.redirect_slashes = False  # a redirect would be built from the Host header
    inner: ASGIApp = app
    if state.settings.record is not None:
        inner = Recorder(app, Path(state.settings.record), state.n_ctx_of)
    return Guard(inner, state.settings, lambda error: metrics.refused.labels(error.status).inc())


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.scope["path"]
    if error.status_code != 405:
        return _response(ApiError(error.status_code, f"{path:.80}: there is no such route"), path)
    allowed = (error.headers or {}).get("Allow", "")
    response = _response(
        ApiError(405, f"{path:.80}: expected {allowed}, found {request.method:.20}"), path
    )
    response.headers["allow"] = allowed
    return response


async def _api(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return _response(error, request.scope["path"])


async def _bug(request: Request, error: Exception) -> Response:
    return _response(failed(error), request.scope["path"])


def _response(error: ApiError, path: str) -> Response:
    reply = Reply.of_error(error, path)
    return Response(reply.body, reply.status, dict(reply.headers), reply.kind)
