"""Forms: what a page sends back, read once, never more than a bound."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated
from urllib.parse import parse_qs

from fastapi import Depends, Request

from edgemerge.core.errors import SettingError
from edgemerge.server.limits import Load

KIND = "application/x-www-form-urlencoded"
LONGEST = 2**18  # bytes: the names of two thousand devices
FIELDS = 5000


@dataclass(frozen=True)
class Form:
    """The fields of a form; a name may stand in it more than once."""

    fields: dict[str, list[str]] = field(default_factory=dict)

    def one(self, name: str) -> str:
        """Give the first value of a field, without the white space around it; "" if none."""
        return self.every(name)[0].strip() if self.every(name) else ""

    def every(self, name: str) -> list[str]:
        """Give all values of a field."""
        return self.fields.get(name, [])


def parsed(data: bytes) -> Form:
    """Read the fields; bytes that are no text become marks of it.

    >>> parsed(b"target=pump-1&target=pump+2").every("target")
    ['pump-1', 'pump 2']
    """
    try:
        text = data.decode("utf-8", "replace")
        return Form(parse_qs(text, keep_blank_values=True, max_num_fields=FIELDS))
    except ValueError as error:
        raise SettingError(f"found more than {FIELDS} fields, expected fewer") from error


async def form_of(request: Request, longest: int = LONGEST) -> Form:
    """Read the form that came with a request, once."""
    if not hasattr(request.state, "form"):
        request.state.form = await _read(request, longest)
    found: Form = request.state.form
    return found


async def _read(request: Request, longest: int) -> Form:
    kind = request.headers.get("content-type")
    if kind is None:
        return Form()
    if kind.partition(";")[0].strip().lower() != KIND:
        raise SettingError(f"found {kind[:100]!r}, expected a form: Content-Type: {KIND}")
    load: Load = request.app.state.load
    async with load.body(request, longest) as data:
        return parsed(data)


async def _form(request: Request) -> Form:
    return await form_of(request)


Filled = Annotated[Form, Depends(_form)]  # name it after Acting, which knows who sends it
