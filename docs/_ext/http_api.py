"""The directives `http-api` and `http-access`: every route of the server, and who may call it.

Routes are taken from the app's own description. Who may call one is read from what stands before
it in the code; a test asks the server itself.
"""

from collections.abc import Iterator
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from sphinx.application import Sphinx

from edgemerge.server import api, http
from edgemerge.server.dashboard import sign_in
from edgemerge.server.dashboard.routes import create_dashboard
from edgemerge.server.http import PROBLEM_DESCRIPTIONS
from edgemerge.server.main import create_app

GUARDS = (  # the strictest first
    (http.Admin, "an admin"),
    (http.Operator, "an operator"),
    (http.Viewer, "a viewer"),
    (http.Member, "an operator, or a device of the fleet"),
    (http.Reader, "a viewer, or a device of the fleet"),
    (http.CallerDep, "a viewer, or a device"),
    (http.Token, "whoever has an invitation, which is the token here"),
)
ITSELF = {  # these look at the address, too
    api.put_contribution: "the device itself",
    api.put_named_fault: "the device itself",
    api.drop: "an operator, or the device itself",
    api.drop_incarnation: "an operator, or the device itself",
    api.report: "the device itself",
    api.desired: "a viewer, or the device itself",
    **dict.fromkeys(
        (
            *(api.register_keys, api.masked_status, api.masked_cohort, api.put_upload),
            *(api.put_signature, api.get_keeper_request, api.put_answer),
            *(api.get_epoch, api.get_masked_total),
        ),
        "the device itself",
    ),
}
PAGE_GUARDS = (  # the strictest first
    (sign_in.AdminForm, "an admin"),
    (sign_in.AdminPage, "an admin"),
    (sign_in.OperatorForm, "an operator"),
    (sign_in.OperatorPage, "an operator"),
    (sign_in.WallLink, "whoever has a wall link, which is part of the address"),
    (sign_in.ViewerPage, "a viewer"),
    (sign_in.DataSession, "a viewer"),
)
Thing = dict[str, Any]


def routes() -> Iterator[tuple[str, APIRoute]]:
    """Method and route, in the order of the code."""
    for route in api.router.routes:
        if isinstance(route, APIRoute):
            yield from ((method, route) for method in sorted(route.methods))


def who(route: APIRoute) -> str:
    """Who is let through to a route."""
    calls = set(_calls(route.dependant))
    found = (words for guard, words in GUARDS if _call_of(guard) in calls)
    return ITSELF.get(route.endpoint) or next(found, "anybody, without a token")


def who_sees(route: APIRoute) -> str:
    """Who is let through to a page, or may send its form."""
    calls = set(_calls(route.dependant))
    found = (words for guard, words in PAGE_GUARDS if _call_of(guard) in calls)
    return next(found, "anybody, without a sign-in")


def pages() -> Iterator[tuple[str, APIRoute]]:
    """Method and route of every page and form, in the order of the code."""
    for route in create_dashboard(create_app(None)).routes:  # type: ignore[arg-type]  # nobody is served, only described
        if isinstance(route, APIRoute):
            yield from ((method, route) for method in sorted(route.methods))


def _call_of(guard: Any) -> Any:
    """The function that lets callers pass, of the type that routes give their parameter."""
    return guard.__metadata__[0].dependency


def _calls(dependant: Dependant) -> Iterator[Any]:
    yield dependant.call
    for inner in dependant.dependencies:
        yield from _calls(inner)


def taken(about: Thing) -> list[str]:
    """What a route takes, a line for each: the body, then what stands behind the ?."""
    body = about.get("requestBody", {})
    lines = [f"body: {body['description']}"] if "description" in body else []
    for content in body.get("content", {}).values():
        lines += [
            f"`{name}` in JSON: {_meaning(schema, schema)}"
            for form in content["schema"].get("oneOf", [content["schema"]])
            for name, schema in form.get("properties", {}).items()
        ]
    queries = (each for each in about.get("parameters", []) if each["in"] == "query")
    return lines + [f"`?{each['name']}=`: {_meaning(each, each['schema'])}" for each in queries]


def _meaning(about: Thing, schema: Thing) -> str:
    """A value in words, or that it is the former name of another one."""
    deprecated = about.get("deprecated", False)
    words = str(about["description"]).rstrip(".") if deprecated else ""
    return words[:1].lower() + words[1:] or _kind(schema)


def _kind(schema: Thing) -> str:
    """A value in words: what it is, and what it is if not given."""
    kinds = [each for each in schema.get("anyOf", [schema]) if each.get("type") != "null"]
    words = ", or ".join(map(_plain_kind, kinds))
    default = schema.get("default")
    return words if default is None else f"{words}; {str(default).lower()} if not given"


def _plain_kind(schema: Thing) -> str:
    if "enum" in schema:
        return " or ".join(f"`{word}`" for word in schema["enum"])
    if schema.get("type") == "array":
        return f"{_plain_kind(schema['items'])}, may be repeated"
    names = {"integer": "a whole number", "number": "a number", "boolean": "`true` or `false`"}
    return names.get(schema.get("type", ""), "text")


def answered(about: Thing, schemas: Thing) -> Iterator[str]:
    """What a route answers, a line for each status; problems that all routes share come last."""
    shared = []
    for status, answer in sorted(about["responses"].items()):
        if answer["description"] == PROBLEM_DESCRIPTIONS.get(int(status)):
            shared.append(f"`{status}`")
        else:
            yield f"`{status}`: {_answer(answer, schemas)}"
    if shared:
        yield f"Problems: {', '.join(shared)}."


def _answer(answer: Thing, schemas: Thing) -> str:
    """What comes with a status, in the words of its form, and the fields of its JSON."""
    schema = next((each.get("schema", {}) for each in answer.get("content", {}).values()), {})
    form = schemas.get(schema.get("items", schema).get("$ref", "").rpartition("/")[2], {})
    words = answer["description"]
    if words == "Successful Response":
        words = ("A list. " if "items" in schema else "") + form.get("description", "Done.")
    fields = ", ".join(f"`{field}`" for field in form.get("properties", {}))
    return f"{words} JSON: {fields}." if fields else words


class HttpApi(Directive):
    """One section for each route, and one for the problems that they share."""

    def run(self) -> list[nodes.Node]:
        """Make the sections."""
        told = create_app(None).openapi()  # type: ignore[arg-type]  # nobody is served, only described
        schemas = told["components"]["schemas"]
        problems = [f"`{status}`: {words}" for status, words in PROBLEM_DESCRIPTIONS.items()]
        made = [_section("Problems", 'The body is `{"error": "<words>"}`.', problems)]
        for method, route in routes():
            about = told["paths"][route.path][method.lower()]
            lines = [f"Who: {who(route)}."]
            lines += [f"Takes {line}." for line in taken(about)]
            lines += answered(about, schemas)
            made.append(_section(f"{method} {route.path}", about["description"], lines))
        return made


class HttpAccess(Directive):
    """A table of all routes and pages by who may call them."""

    def run(self) -> list[nodes.Node]:
        """Make the list: a definition for each kind of caller."""
        found: dict[str, list[str]] = {}
        for method, route in routes():
            found.setdefault(who(route), []).append(f"`{method} {route.path}`")
        for method, route in pages():
            found.setdefault(who_sees(route), []).append(f"`{method} /ui{route.path}`")
        items = []
        for words in sorted(found, key=lambda each: (-len(found[each]), each)):
            term = nodes.term("", f"{words[:1].upper()}{words[1:]}")
            text = _paragraph(", ".join(found[words]))
            items.append(nodes.definition_list_item("", term, nodes.definition("", text)))
        return [nodes.definition_list("", *items)]


def _section(title: str, words: str, lines: list[str]) -> nodes.Node:
    section = nodes.section(ids=[nodes.make_id(title)], names=[title.lower()])
    section += nodes.title(title, title)
    section += _paragraph(words)
    section += nodes.bullet_list("", *(nodes.list_item("", _paragraph(line)) for line in lines))
    return section


def _paragraph(text: str) -> nodes.Node:
    """Text whose words between ` are code."""
    pieces = enumerate(text.replace("..", ".").split("`"))
    made = (nodes.literal(each, each) if i % 2 else nodes.Text(each) for i, each in pieces)
    return nodes.paragraph("", "", *made)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive; the page is read anew in every build."""
    app.add_directive("http-api", HttpApi)
    app.add_directive("http-access", HttpAccess)
    return {"parallel_read_safe": True}
