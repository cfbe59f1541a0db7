"""The OpenAPI 3.1 document, made from the table that the routes are made from."""

from __future__ import annotations

import re
from collections.abc import Iterable
from http import HTTPStatus
from importlib.metadata import version
from typing import Any

import msgspec

from bursar.api import bodies
from bursar.api.operations import Operation
from bursar.policy.names import PLAIN_PATTERN

Document = dict[str, Any]

REF = "#/components/schemas/{name}"
PROBLEM = {"$ref": REF.format(name="ProblemDocument")}
ALWAYS = (400, 401, 403, 413, 415, 421, 422, 503)
"""What any operation may answer: whoever asks may be nobody, or ask wrongly, or the node may be away."""

TAGS = {
    "acquiring": "Acquire, claim, settle, release",
    "tasks": "Work that begins when its names are free",
    "reading": "Explanations, statistics, resources, nodes",
    "billing": "Bills of a quota: usage, balances, corrections",
    "tenants": "Tenants that are set by themselves, beside the policy",
    "policy": "The policy of the fleet, and its versions",
    "health": "For Kubernetes and Prometheus",
}

PATH_PARAMETERS: dict[str, Document] = {
    "resource": {"type": "string", "maxLength": 255, "pattern": PLAIN_PATTERN},
    "id": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": r"^[A-Za-z0-9_.~-]+$"},
    "tenant": {
        "type": "string",
        "minLength": 1,
        "maxLength": 255,
        "pattern": r"^[^\x00-\x1f\x7f/]+(/[^\x00-\x1f\x7f/]+)*$",
    },
    "number": {"type": "integer", "minimum": 1, "maximum": 2**31 - 1},
}

HEADERS: dict[str, Document] = {
    "RateLimit": {"description": "what is left, and when it begins anew", "schema": {"type": "string"}},
    "RateLimit-Policy": {"description": "what may be used in a window", "schema": {"type": "string"}},
    "Retry-After": {"description": "seconds", "schema": {"type": "integer"}},
    "Location": {"description": "where it is", "schema": {"type": "string"}},
    "ETag": {"description": "the version", "schema": {"type": "string"}},
}


def describe(operations: Iterable[Operation]) -> Document:
    listed = tuple(operations)
    forms = [form for each in listed for form in (each.body, each.reply, each.query) if form is not None]
    forms += [bodies.ProblemDocument, bodies.Live, bodies.Ready]
    schemas, components = msgspec.json.schema_components(forms, ref_template=REF)
    written = dict(zip(map(id, forms), schemas, strict=True))
    paths: Document = {}
    by_name = {operation.name: operation for operation in listed}
    for operation in listed:
        path = re.sub(r":[a-z]+}", "}", operation.path)
        found = _describe(operation, written, components)
        links = {name: _link(operation, by_name[name]) for name in operation.links}
        if links:
            found["responses"][str(operation.status)]["links"] = links
        paths.setdefault(path, {})[operation.method.lower()] = found
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "bursar",
            "version": version("bursar"),
            "description": "Acquire shares of whatever is contended. Errors are problems (RFC 9457).",
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [{"url": "/", "description": "the daemon that serves this document"}],
        "tags": [{"name": name, "description": text} for name, text in TAGS.items()],
        "security": [{}, {"token": []}],
        "paths": {**paths, **_describe_health()},
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _describe(operation: Operation, written: dict[int, Any], components: Document) -> Document:
    found: Document = {
        "operationId": operation.name,
        "tags": [operation.tag],
        "summary": operation.summary,
        "parameters": [*_path_parameters(operation), *_query_parameters(operation, components)],
        "responses": _responses(operation, written),
    }
    if operation.if_match:
        schema = {"type": "string", "pattern": r'^("[0-9]{1,9}"|\*)$'}
        found["parameters"].append({"name": "If-Match", "in": "header", "required": False, "schema": schema})
    if operation.body is not None:
        content = {"application/json": {"schema": written[id(operation.body)]}}
        found["requestBody"] = {"required": True, "content": content}
    return found


def _link(operation: Operation, target: Operation) -> Document:
    """What is answered names what can be done with it."""
    own = re.findall(r"{(\w+)", operation.path)
    names = re.findall(r"{(\w+)", target.path)
    found = {name: f"$request.path.{name}" if name in own else f"$response.body#/{name}" for name in names}
    return {"operationId": target.name, "parameters": found}


def _path_parameters(operation: Operation) -> list[Document]:
    names = re.findall(r"{(\w+)", operation.path)
    return [{"name": name, "in": "path", "required": True, "schema": PATH_PARAMETERS[name]} for name in names]


def _query_parameters(operation: Operation, components: Document) -> list[Document]:
    if operation.query is None:
        return []
    schema = components[operation.query.__name__]
    required = schema.get("required", ())
    found = []
    for name, form in schema["properties"].items():
        plain = {key: value for key, value in form.items() if key != "description"}
        if "anyOf" in plain:  # a parameter is left out, never null
            plain = next(each for each in plain["anyOf"] if each.get("type") != "null")
        found.append(
            {
                "name": name,
                "in": "query",
                "required": name in required,
                "description": form.get("description", ""),
                "schema": plain,
            }
        )
    return found


def _responses(operation: Operation, written: dict[int, Any]) -> Document:
    done: Document = {"description": HTTPStatus(operation.status).phrase}
    if operation.reply is not None:
        done["content"] = {"application/json": {"schema": written[id(operation.reply)]}}
    headers = _headers(operation.status, operation)
    if headers:
        done["headers"] = headers
    found = {str(operation.status): done}
    for status in sorted({*ALWAYS, *operation.problems}):
        found[str(status)] = _problem(status)
    return found


def _headers(status: int, operation: Operation) -> Document:
    names: list[str] = []
    if operation.reply is bodies.Granted:
        names += ["RateLimit", "RateLimit-Policy"]
    if status == 201:
        names.append("Location")
    if operation.reply is bodies.PolicyVersion:
        names.append("ETag")
    return {name: HEADERS[name] for name in names}


def _problem(status: int) -> Document:
    found: Document = {
        "description": HTTPStatus(status).phrase,
        "content": {"application/problem+json": {"schema": PROBLEM}},
    }
    if status in (429, 503):
        found["headers"] = {"Retry-After": HEADERS["Retry-After"]}
    return found


def _describe_health() -> Document:
    def page(name: str, summary: str, form: str, statuses: Iterable[int], schema: Document) -> Document:
        return {
            "get": {
                "operationId": name,
                "tags": ["health"],
                "summary": summary,
                "responses": {
                    **{
                        str(s): {"description": HTTPStatus(s).phrase, "content": {form: {"schema": schema}}}
                        for s in statuses
                    },
                    **{str(s): _problem(s) for s in (401, 403, 421)},
                },
            }
        }

    json, text = "application/json", "text/plain; version=0.0.4; charset=utf-8"
    return {
        "/live": page("live", "The process answers", json, (200,), {"$ref": REF.format(name="Live")}),
        "/ready": page(
            "ready",
            "Whether an acquire would be decided",
            json,
            (200, 503),
            {"$ref": REF.format(name="Ready")},
        ),
        "/metrics": page("metrics", "Prometheus text", text, (200,), {"type": "string"}),
    }
