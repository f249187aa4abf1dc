"""Headers of everything under /ui: nothing from elsewhere, nothing to elsewhere, nothing kept."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
NOTHING = ", ".join(
    f"{feature}=()"
    for feature in (
        *("accelerometer", "camera", "display-capture", "geolocation", "gyroscope", "hid"),
        *("magnetometer", "microphone", "midi", "payment", "serial", "usb"),
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    # not no-referrer: with it browsers send "Origin: null" with our own forms
    "Referrer-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": NOTHING,
    "Cache-Control": "no-store",
}


OPENER = "Cross-Origin-Opener-Policy"


def headers_for(scope: Scope) -> dict[str, str]:
    """Give the headers of an answer; one of them browsers complain of where they trust nothing."""
    trusts = any(name == b"sec-fetch-site" for name, _ in scope["headers"])
    if trusts or scope["scheme"] == "https":
        return {**HEADERS, OPENER: "same-origin"}
    return HEADERS


def is_ours(path: str) -> bool:
    """Say whether an address belongs to the dashboard."""
    return path == "/ui" or path.startswith("/ui/")


class Guarded:
    """Adds the headers to every answer of the dashboard, also to redirects and refusals."""

    def __init__(self, app: ASGIApp) -> None:
        """Stand in front of an app."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and its answer back."""
        if scope["type"] != "http" or not is_ours(scope["path"]):
            await self._app(scope, receive, send)
            return

        async def guarding(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in headers_for(scope).items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, guarding)
