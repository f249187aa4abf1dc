"""Somebody at a browser: keeps cookies, says where a form was sent from, follows no redirect."""

import asyncio
import re
from typing import Any

import httpx


class Visitor:
    """Asks an app without a network in between; `scheme` is what the server believes to speak."""

    def __init__(self, app: Any, scheme: str = "http", host: str = "hub:8470") -> None:
        self.origin, self.cookies = f"{scheme}://{host}", {}
        self._app = app

    def ask(self, method: str, path: str, *, headers: Any = None, **sent: Any) -> httpx.Response:
        """Send one request; faults of the server are answered, not raised here."""
        return asyncio.run(self._ask(method, path, headers or {}, sent))

    def get(self, path: str, **headers: str) -> httpx.Response:
        return self.ask("GET", path, headers=named(headers))

    def post(self, path: str, form: dict[str, Any], **headers: str) -> httpx.Response:
        """Send a form as a page of the server would; headers say otherwise."""
        return self.ask("POST", path, data=form, headers={"Origin": self.origin, **named(headers)})

    def sign_in(self, token: str) -> httpx.Response:
        return self.post("/ui/sign-in", {"token": token})

    def csrf(self) -> str:
        """What the pages put in their forms."""
        return str(re.findall(r'name="csrf" value="(\w+)"', self.get("/ui/nowhere").text)[0])

    async def _ask(self, method: str, path: str, headers: Any, sent: Any) -> httpx.Response:
        way = httpx.ASGITransport(app=self._app, raise_app_exceptions=False)
        kept = {"Cookie": "; ".join(f"{k}={v}" for k, v in self.cookies.items())}
        async with httpx.AsyncClient(transport=way, base_url=self.origin) as asking:
            found = await asking.request(
                method, path, headers={**(kept if self.cookies else {}), **headers}, **sent
            )
        for line in found.headers.get_list("set-cookie"):
            name, _, value = line.partition(";")[0].partition("=")
            self.cookies[name] = value
            if "Max-Age=0" in line:
                del self.cookies[name]
        return found


def named(headers: dict[str, str]) -> dict[str, str]:
    """Write Python's names as those of headers, without the ones that are empty."""
    return {name.replace("_", "-"): value for name, value in headers.items() if value}
