"""What `/openapi.json` says: every endpoint with its form, its answer and its problems, made of the table of endpoints.

Says nothing of stores: neither names nor what they hold.
"""

import re
from collections.abc import Sequence
from typing import Any

from pydantic import TypeAdapter

from softkv.doors import wire
from softkv.doors.server import problems
from softkv.doors.server.documents import Problem
from softkv.doors.server.endpoints import JSON, LONGEST, Endpoint

_BYTES = {"schema": {"type": "string", "format": "binary"}}
_DEADLINE = {"type": "number", "exclusiveMinimum": 0, "maximum": LONGEST}
_PROBLEM = {
    "description": "A problem.",
    "content": {problems.MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
}


def described(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """The document of OpenAPI 3.1 about these endpoints."""
    kinds = {
        id(one): one for endpoint in endpoints for one in (endpoint.form, endpoint.reply, Problem) if one is not None
    }
    adapters: Any = [(key, "validation", TypeAdapter(kind)) for key, kind in kinds.items()]
    schemas, shared = TypeAdapter.json_schemas(adapters, ref_template="#/components/schemas/{model}")
    found = {key: schema for (key, _), schema in schemas.items()}
    paths: dict[str, dict[str, Any]] = {}
    for one in endpoints:
        operation: dict[str, Any] = {
            "parameters": _parameters(one),
            "responses": _responses(one, found.get(id(one.reply))),
        }
        if one.form is not None:
            content = {JSON: {"schema": found[id(one.form)]}, wire.MEDIA_TYPE: _BYTES}
            operation["requestBody"] = {"required": True, "content": content}
        paths.setdefault(one.path, {})[one.method.lower()] = operation
    token = {"token": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "softkv", "version": "1"},
        "paths": paths,
        "components": {"schemas": shared["$defs"], "securitySchemes": token},
        "security": [{"token": []}],
    }


def _parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    text: dict[str, Any] = {"type": "string"}
    found = [
        {"name": name, "in": "path", "required": True, "schema": text} for name in re.findall(r"{(\w+)}", endpoint.path)
    ]
    headers: dict[str, Any] = {"Softkv-Deadline": _DEADLINE}
    if "{store}" in endpoint.path and not endpoint.writes:
        headers |= {"Softkv-Snapshot": text}
    named = [("header", {**headers, **endpoint.headers}), ("query", endpoint.query)]
    return found + [{"name": name, "in": place, "schema": one} for place, some in named for name, one in some.items()]


def _responses(endpoint: Endpoint, schema: Any) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": "What was asked for."}
    if endpoint.status != 204:
        answer["content"] = {endpoint.media: {"schema": schema or {}}}
        if endpoint.media == JSON:
            answer["content"][wire.MEDIA_TYPE] = _BYTES
    return {str(endpoint.status): answer, "4XX": _PROBLEM, "5XX": _PROBLEM}
