"""Somebody at a browser: what was asked of which host and what the console said is written down."""

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

DESKTOP = {"width": 1280, "height": 860}
PHONE = {"width": 390, "height": 844}


# Chromium says so where a test was faster than the field that a page wants to have the focus.
AUTOFOCUS = "info: Autofocus processing was blocked"


@dataclass
class Visitor:
    """A browser with a profile of its own, at one server."""

    context: Any
    page: Any
    url: str
    said: list[str] = field(default_factory=list)  # by the console, and errors of scripts
    asked: list[str] = field(default_factory=list)  # every address

    @classmethod
    def at(cls, browser: Any, url: str, **settings: Any) -> "Visitor":
        """Open an empty page; settings are those of a context of Playwright."""
        given = {"viewport": DESKTOP, "timezone_id": "Asia/Tokyo", "locale": "en-GB", **settings}
        context = browser.new_context(**given)
        context.set_default_timeout(30_000)
        made = cls(context, context.new_page(), url)
        made.page.on("console", lambda told: made.said.append(f"{told.type}: {told.text}"))
        made.page.on("pageerror", lambda error: made.said.append(f"error: {error}"))
        context.on("request", lambda request: made.asked.append(request.url))
        return made

    def go(self, path: str) -> Any:
        """Go to an address of the server."""
        return self.page.goto(self.url + path)

    def sign_in(self, token: str, path: str = "/ui/") -> None:
        """Sign in with a token, as an operator would, and go on to a page."""
        self.go("/ui/sign-in")
        self.page.get_by_label("token").fill(token)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.wait_for_url(lambda url: "sign-in" not in url)
        self.go(path)

    @property
    def elsewhere(self) -> list[str]:
        """The addresses of other hosts that were asked for something."""
        here = urlsplit(self.url).netloc
        told = [url for url in self.asked if not url.startswith(("data:", "blob:"))]
        return [url for url in told if urlsplit(url).netloc != here]

    def must_be_quiet(self, *expected: str) -> None:
        """See that no other host was asked and the console said nothing but this."""
        assert self.elsewhere == []
        usual = (*expected, AUTOFOCUS)
        loud = [line for line in self.said if not any(each in line for each in usual)]
        assert not loud, loud
