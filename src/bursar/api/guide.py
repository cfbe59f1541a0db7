"""The OpenAPI document as a page for people: one file, nothing from elsewhere, no script."""

from __future__ import annotations

import json
from html import escape
from typing import Any

from bursar.resource.checks import AMOUNT_MAX

Document = dict[str, Any]

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; --dim: light-dark(#555, #aaa); }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 62rem; padding: 1.5rem; }
h1 { margin: 0 0 .25rem; } h2 { margin: 2rem 0 .5rem; } p { margin: .4rem 0; }
code, pre { font: 13px/1.45 ui-monospace, monospace; }
pre { background: var(--soft); border-radius: 6px; overflow-x: auto; padding: .6rem .8rem; }
details { border: 1px solid var(--line); border-radius: 6px; margin: .4rem 0; }
summary { align-items: baseline; cursor: pointer; display: flex; flex-wrap: wrap;
  gap: .2rem .8rem; padding: .45rem .7rem; }
summary code { flex: 0 0 auto; font-weight: 600; } summary span { color: var(--dim); }
details > div { border-top: 1px solid var(--line); padding: .2rem .8rem .6rem; }
.method { min-width: 3.6rem; } h3 { font-size: 1rem; margin: .8rem 0 .2rem; }
table { border-collapse: collapse; table-layout: fixed; width: 100%; }
td, th { border-top: 1px solid var(--line);
  padding: .25rem .5rem; text-align: left; vertical-align: top; }
th { border-top: 0; font-weight: 600; width: 20%; }
th:nth-child(3) { width: 12%; } th:last-child { width: auto; } .dim { color: var(--dim); }
.GET { color: light-dark(#0a6, #4d9); } .POST { color: light-dark(#06c, #6bf); }
.PUT { color: light-dark(#a50, #fb6); } .DELETE { color: light-dark(#c02, #f77); }
"""


def render(document: Document) -> str:
    info = document["info"]
    parts = [f"<h1>{escape(info['title'])} <span class=dim>{escape(info['version'])}</span></h1>"]
    parts.append(
        f"<p>{escape(info['description'])} The same as a document: <a href=openapi.json>openapi.json</a>.</p>"
    )
    parts.append(f"<pre>{escape(EXAMPLE)}</pre>")
    for tag in document["tags"]:
        found = [_render(document, *each) for each in _list(document) if tag["name"] in each[2]["tags"]]
        parts.append(f"<h2 id={tag['name']}>{escape(tag['description'])}</h2>{''.join(found)}")
    return (
        "<!doctype html><html lang=en><head><meta charset=utf-8><title>bursar: HTTP</title>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head><body>{''.join(parts)}</body></html>"
    )


EXAMPLE = """curl -s localhost:9464/v1/resources/cache/grants \\
  -H 'Content-Type: application/json' -d '{"tenant": "acme", "wait": 0.2}'"""


def _list(document: Document) -> list[tuple[str, str, Document]]:
    return [
        (method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


def _render(document: Document, method: str, path: str, operation: Document) -> str:
    head = (
        f"<summary><code class='method {method}'>{method}</code><code>{escape(path)}</code>"
        f"<span>{escape(operation['summary'])}</span></summary>"
    )
    parts = []
    if operation.get("parameters"):
        rows = [
            (each["name"], each["in"], each["required"], each["schema"], each.get("description", ""))
            for each in operation["parameters"]
        ]
        parts.append(f"<h3>Parameters</h3>{_table(document, rows)}")
    if "requestBody" in operation:
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        parts.append(f"<h3>Body</h3>{_render_form(document, schema)}")
    parts.append(f"<h3>Answers</h3>{_render_answers(document, operation['responses'])}")
    return f"<details id={operation['operationId']}>{head}<div>{''.join(parts)}</div></details>"


def _render_answers(document: Document, responses: Document) -> str:
    good = {
        code: each
        for code, each in responses.items()
        if "application/problem+json" not in each.get("content", {})
    }
    parts = []
    for code, answer in good.items():
        parts.append(f"<p><code>{code}</code> {escape(answer['description'])}</p>")
        for content in answer.get("content", {}).values():
            parts.append(_render_form(document, content["schema"]))
    bad = [
        f"<code>{code}</code> {escape(each['description'])}"
        for code, each in responses.items()
        if code not in good
    ]
    parts.append(f"<p class=dim>Problems: {', '.join(bad)}</p>")
    return "".join(parts)


def _render_form(document: Document, schema: Document) -> str:
    found = _resolve(document, schema)
    if "properties" not in found:
        return (
            f"<p>{_name(document, found)} <span class=dim>{escape(found.get('description', ''))}</span></p>"
        )
    required = found.get("required", ())
    rows = [
        (name, "", name in required, form, _find_text(form)) for name, form in found["properties"].items()
    ]
    return _table(document, rows)


def _table(document: Document, rows: list[tuple[str, str, bool, Document, str]]) -> str:
    lines = ["<tr><th>name<th>form<th>default<th></tr>"]
    for name, where, required, schema, text in rows:
        default = "required" if required else json.dumps(schema["default"]) if "default" in schema else ""
        shown = f"{escape(name)}</code> <span class=dim>{where}</span>"
        lines.append(
            f"<tr><td><code>{shown}<td>{_name(document, schema)}<td class=dim>{escape(default)}"
            f"<td>{escape(text)}</tr>"
        )
    return f"<table>{''.join(lines)}</table>"


def _name(document: Document, schema: Document) -> str:
    """A form in a few words."""
    if "$ref" in schema:
        found = _resolve(document, schema)
        return escape(str(found.get("title", schema["$ref"].rpartition("/")[2])))
    if "anyOf" in schema:
        return " or ".join(_name(document, each) for each in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {_name(document, schema['items'])}" if "items" in schema else "list"
    if schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"table of {_name(document, schema['additionalProperties'])}"
    low, high = schema.get("minimum"), schema.get("maximum")
    bounds = f" {_count(low)} to {_count(high)}" if low is not None and high is not None else ""
    return escape(f"{schema.get('type', 'any')}{bounds}")


def _count(number: float) -> str:
    return "2^63 - 1" if number == AMOUNT_MAX else f"{number:,g}" if number < 1e6 else f"{number:,}"


def _find_text(form: Document) -> str:
    """What is said of a form, or of the one that it may be beside null."""
    texts = [form.get("description", ""), *(each.get("description", "") for each in form.get("anyOf", ()))]
    return next(filter(None, texts), "")


def _resolve(document: Document, schema: Document) -> Document:
    if "$ref" not in schema:
        return schema
    found: Document = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return found
