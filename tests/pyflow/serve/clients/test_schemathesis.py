"""No request that the structs of the server allow, or nearly allow, makes it fail."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings

from pyflow.model import Model
from pyflow.serve.app import POSTED
from pyflow.serve.settings import Settings
from tests.conftest import Import
from tests.pyflow.serve.conftest import Server


def document() -> dict[str, Any]:
    """The routes with a body as an OpenAPI document."""
    kinds = [kind for kind, _ in POSTED.values()]
    bodies, found = msgspec.json.schema_components(
        kinds, ref_template="#/components/schemas/{name}"
    )
    for kind in found.values():
        if "model" in kind.get("properties", {}):
            kind["properties"]["model"] = {"enum": [None, "smollm2"]}
    answers = {"default": {"description": "an answer or an error"}}
    paths = {
        path: {
            "post": {
                "requestBody": {"content": {"application/json": {"schema": body}}},
                "responses": answers,
            }
        }
        for path, body in zip(POSTED, bodies, strict=True)
    }
    head = {"openapi": "3.1.0", "info": {"title": "pyflow", "version": "1"}}
    return {**head, "paths": paths, "components": {"schemas": found}}


@pytest.mark.slow
@pytest.mark.parametrize("generation", ["positive", "negative"])
def test_no_request_fails(client: Import, smollm2: Model, generation: str) -> None:
    schemathesis = client("schemathesis")
    mode = schemathesis.GenerationMode(generation)
    server = Server({"smollm2": smollm2}, Settings(port=0, n_parallel=4, n_ctx=64))
    try:
        for result in schemathesis.openapi.from_dict(document()).get_all_operations():
            operation = result.ok()

            @settings(
                max_examples=15,
                deadline=None,
                derandomize=True,
                database=None,
                suppress_health_check=[*HealthCheck],
            )
            @given(case=operation.as_strategy(generation_mode=mode))
            def ask(case: Any) -> None:
                answer = case.call(base_url=server.serving.url, timeout=60)
                assert answer.status_code < 500, answer.text

            ask()
    finally:
        server.stop()
    assert server.failed is None
