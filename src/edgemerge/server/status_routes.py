"""Routes that tell how the server is doing."""

from __future__ import annotations

import logging
from typing import Annotated

from fastapi import APIRouter, Query, Response
from fastapi.responses import JSONResponse

from edgemerge import __version__
from edgemerge.core.errors import EdgemergeError
from edgemerge.server.answers import AuditTold, Health, Status
from edgemerge.server.asking import Operator, Serving
from edgemerge.server.audit import START
from edgemerge.server.fleet_routes import told
from edgemerge.server.metrics import TYPE
from edgemerge.server.names import NAME
from edgemerge.server.problems import problems
from edgemerge.server.store.database import FullError

router = APIRouter()
log = logging.getLogger(__name__)


@router.get("/healthz")
async def healthz() -> Health:
    """Say that the server is alive."""
    return Health(status="ok")


@router.get("/readyz", responses={503: {"model": Health, "description": "Not ready."}})
def readyz(service: Serving) -> Response:
    """Say whether the database can be read and written."""
    try:
        service.check()
    except (EdgemergeError, TimeoutError) as error:
        log.warning("not ready", extra={"values": {"problem": str(error)}})
        words = "the disk is full" if isinstance(error, FullError) else "see the log of the server"
        body = Health(status="not ready", detail=words).model_dump()
        return JSONResponse(body, 503, {"Retry-After": "5"})
    return JSONResponse(Health(status="ready").model_dump())


@router.get("/metrics", responses={200: {"content": {"text/plain": {}}}})
def metrics(service: Serving) -> Response:
    """Give counts and durations in the text form of Prometheus."""
    with service.database.reading() as tx:
        text = service.metrics.text(tx, service.history, service.clock())
    return Response(text, media_type=TYPE)


@router.get("/status", responses=problems(401, 403))
def status(service: Serving, caller: Operator) -> Status:
    """Give an overview of all fleets."""
    fleets = [told(fleet, counts) for fleet, counts in service.fleets(caller)]
    waiting = service.writer.waiting
    return Status(version=__version__, ready=True, waiting=waiting, fleets=fleets)


@router.get("/audit", responses=problems(401, 403, 422))
def audit(
    service: Serving,
    _caller: Operator,
    fleet: Annotated[str | None, Query(pattern=NAME)] = None,
    after: Annotated[int, Query(ge=0, lt=2**63)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> AuditTold:
    """Give a stretch of the audit log, in order; `head` is the hash of the last entry given."""
    found = service.audit(fleet, after, limit)
    return AuditTold(entries=found, head=found[-1].hash if found else START)
