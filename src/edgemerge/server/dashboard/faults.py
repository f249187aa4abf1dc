"""The page of a fleet's known faults: names, where each was first seen, and who is told."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from edgemerge.server.dashboard.pages import render_page
from edgemerge.server.dashboard.sign_in import PageSession
from edgemerge.server.http import Name, ServiceDep

router = APIRouter(include_in_schema=False)


@router.get("/fleets/{fleet}/faults")
def show_faults(
    request: Request, fleet: Name, session: PageSession, service: ServiceDep
) -> Response:
    """Show the faults that people named in a fleet, the largest first."""
    agreed, found = service.faults.known(fleet)
    values: dict[str, Any] = {
        "fleet": fleet,
        "tab": "Faults",
        "faults": found,
        "least": agreed.min_devices,
    }
    return render_page(request, "faults.html", session, **values)
