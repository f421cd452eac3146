"""The page /docs: the HTTP API, rendered from its OpenAPI description. It has no scripts and loads nothing from elsewhere."""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader, select_autoescape


def reference(schema: dict[str, Any]) -> str:
    """Return the description as an HTML page."""
    environment = Environment(loader=PackageLoader("amgc.serve"), autoescape=select_autoescape(default=True), trim_blocks=True)
    operations = [
        {"path": path, "method": method.upper(), "about": about, **_body(about)}
        for path, methods in schema["paths"].items()
        for method, about in methods.items()
    ]
    named = schema.get("components", {}).get("schemas", {})
    return environment.get_template("docs.html").render(info=schema["info"], operations=operations, schemas=named, kind=_kind)


def _body(about: dict[str, Any]) -> dict[str, Any]:
    """Return type and schema of the request's body and of the answer."""
    sent = about.get("requestBody", {}).get("content", {})
    answers = about["responses"].get("200", {}).get("content", {})
    return {"sent": list(sent.items()), "answers": [(name, one["schema"]) for name, one in answers.items()]}


def _kind(schema: dict[str, Any]) -> str:
    """Return the type of a value in words.

    >>> _kind({"anyOf": [{"$ref": "#/components/schemas/Quality"}, {"type": "null"}]})
    'Quality or null'
    >>> _kind({"type": "array", "items": {"type": "string"}})
    'list of string'
    """
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(_kind(one) for one in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(map(repr, schema["enum"]))
    if schema.get("type") == "array":
        return f"list of {_kind(schema['items'])}"
    if schema.get("format") == "binary":
        return "file"
    return str(schema.get("type", "any"))
