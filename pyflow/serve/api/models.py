"""/v1/models, /health and /metrics: they never wait for an engine."""

from __future__ import annotations

from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from pyflow.serve.http.replies import Reply
from pyflow.serve.metrics import KIND
from pyflow.serve.models import Served
from pyflow.serve.settings import RETRY_S
from pyflow.serve.state import State


def _response(reply: Reply) -> Response:
    return Response(reply.body, reply.status, dict(reply.headers), reply.kind)


class Plain:
    """The handlers without a body."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def models(self, _: Request) -> Response:
        entries = self._state.shelf.entries()
        return _response(Reply.of_json({"object": "list", "data": entries}))

    async def model(self, request: Request) -> Response:
        entry = self._state.shelf.entry(request.path_params["name"])
        return _response(Reply.of_json(entry))

    async def health(self, _: Request) -> Response:
        """503 once the server cannot answer any more, or is about to end."""
        state = self._state
        word = "dead" if state.is_dead else "draining" if state.is_draining else "ok"
        if word == "ok":
            return _response(Reply.of_json({"status": word}))
        reply = Reply.of_json({"status": word}, 503)
        return _response(replace(reply, headers={"retry-after": str(RETRY_S)}))

    async def metrics(self, _: Request) -> Response:
        return _response(Reply(self._state.metrics.text(), kind=KIND))

    async def adapters(self, request: Request) -> Response:
        """As llama.cpp's server lists them, with names for paths."""
        async with self._state.shelf.use(request.query_params.get("model")) as served:
            loaded = served.model.adapters
            default = {} if loaded is None else dict(loaded.default)
            names = [] if loaded is None else loaded.names
            return _response(
                Reply.of_json(
                    [
                        {"id": i, "name": name, "scale": default.get(name, 0.0)}
                        for i, name in enumerate(names)
                    ]
                )
            )

    async def tokenizer_info(self, request: Request) -> Response:
        """As lm-eval looks for it."""
        async with self._state.shelf.use(request.query_params.get("model")) as served:
            return _response(Reply.of_json(_info(served)))


def _info(served: Served) -> dict[str, object]:
    tokenizer = served.model.tokenizer
    eos, bos = (
        None if token is None else tokenizer.token_text(token)
        for token in (tokenizer.eos_id, tokenizer.bos_id)
    )
    template = served.model.metadata.get("tokenizer.chat_template")
    return {
        "eos_token": eos,
        "bos_token": bos,
        "pad_token": eos,
        "chat_template": template if isinstance(template, str) else None,
        "add_bos_token": tokenizer.add_bos,
        "n_vocab": served.model.spec.n_vocab,
    }
