"""The OpenAPI document, made from the routes.

Source: OpenAPI 3.1; docs/reference/http.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from luxrelay.node.gateway.calls import Param, Route, Scope
from luxrelay.node.gateway.schemas import SCHEMAS

_DESCRIPTION: Final = (
    "Publish signed LP-6411 messages to a relay, read what it holds, and follow it live. Integers "
    "may be as large as 2^64-1; bytes are 0x and hex digits, blobs base64."
)


def document(routes: Sequence[Route], title: str, version: str) -> dict[str, Any]:
    """Return the document of a listener."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": title,
            "version": version,
            "description": _DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": dict(SCHEMAS),
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "Made with `luxrelay node token new`.",
                }
            },
        },
    }


def _operation(route: Route) -> dict[str, Any]:
    words = [w.strip("{}") for w in route.path.split("/") if w and w != "v1"]
    operation: dict[str, Any] = {
        "operationId": "_".join([route.method.lower(), *words]).replace(".", "_"),
        "summary": route.summary,
        "responses": {
            str(status): {
                "description": answer.sentence,
                **(
                    {"content": {kind: {"schema": s} for kind, s in answer.content.items()}}
                    if answer.content
                    else {}
                ),
            }
            for status, answer in sorted(route.answers.items())
        },
    }
    if route.sentence:
        operation["description"] = route.sentence
    if route.params:
        operation["parameters"] = [_parameter(param) for param in route.params]
    if route.bodies:
        operation["requestBody"] = {
            "required": True,
            "content": {kind: {"schema": schema} for kind, schema in route.bodies.items()},
        }
    if route.scope is not Scope.NOTHING:
        operation["security"] = [{"token": []}]
        operation["x-luxrelay-scope"] = route.scope.value
        if route.scope is Scope.READ:
            operation["security"].append({})
    return operation


def _parameter(param: Param) -> dict[str, Any]:
    schema = dict(param.kind.schema)
    if isinstance(param.default, bool | int | str) and param.default != "":
        schema["default"] = param.default
    return {
        "name": param.name,
        "in": param.place,
        "required": param.required or param.place == "path",
        "description": param.sentence,
        "schema": schema,
    }
