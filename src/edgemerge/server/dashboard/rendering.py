"""Pages: templates filled in, every value escaped, a missing one an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from edgemerge import __version__
from edgemerge.server.dashboard.files import static
from edgemerge.server.dashboard.headers import headers_for
from edgemerge.server.sessions import Session

TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    auto_reload=False,
)
TEMPLATES.globals.update(static=static, version=__version__)


def page(
    request: Request, template: str, session: Session | None, *, status: int = 200, **values: Any
) -> HTMLResponse:
    """Fill in a template; it also sees `static(name)`, `session`, `version` and `now`."""
    now = request.app.state.service.clock()
    text = TEMPLATES.get_template(template).render(session=session, now=now, **values)
    return HTMLResponse(text, status, headers_for(request.scope))
