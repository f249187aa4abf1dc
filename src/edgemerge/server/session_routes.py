"""The route by which an operator's program makes a link to sign in with."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel

from edgemerge.server.asking import Operator, Serving
from edgemerge.server.problems import problems

router = APIRouter()


class SignInLink(BaseModel):
    """Where the dashboard lets its operator in, once, and until when."""

    path: str
    expires: float


@router.post("/sign-in-links", status_code=201, responses=problems(401, 403, 503))
def make_sign_in_link(service: Serving, caller: Operator) -> SignInLink:
    """Make a link to the dashboard that signs the operator in, once, within ten minutes."""
    link = service.sessions.link(caller)
    return SignInLink(path=f"/ui/sign-in?link={link.token}", expires=link.expires)
