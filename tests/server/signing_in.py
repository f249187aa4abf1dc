"""An operator at a running server: signs in, reads pages, sends their forms."""

import re
from html.parser import HTMLParser

import httpx

VOID = {"input", "link", "meta", "img", "br", "hr", "col", "rect", "path"}


class Operator:
    """Keeps the cookie and the CSRF token; follows no redirect."""

    def __init__(self, here, *, signed_in=True):
        self.url = here.url
        self.http = httpx.Client(base_url=here.url, headers={"Origin": here.url})
        self.csrf = ""
        if signed_in:
            assert self.http.post("/ui/sign-in", data={"token": here.token}).status_code == 303
            page = self.http.get("/ui/nowhere").text
            self.csrf = re.findall(r'name="csrf" value="(\w+)"', page)[0]

    def get(self, path, **query):
        return self.http.get(path, params=query or None)

    def post(self, path, **form):
        return self.http.post(path, data={"csrf": self.csrf, **form})

    def close(self):
        self.http.close()


class Page(HTMLParser):
    """The elements of a page: name, attributes and text, in their order."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.found, self._open = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append([tag, dict(attrs), ""])
        if tag not in VOID:
            self._open.append(self.found[-1])

    def handle_endtag(self, tag):
        while self._open and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data):
        for each in self._open:
            each[2] += data

    def all(self, tag, **wanted):
        """Give attributes and text of the elements that have these attributes."""
        wanted = {name.strip("_").replace("_", "-"): value for name, value in wanted.items()}
        return [
            (attrs, " ".join(text.split()))
            for name, attrs, text in self.found
            if name == tag and all(attrs.get(key) == value for key, value in wanted.items())
        ]

    def text(self, tag, **wanted):
        """Give the text of the only such element."""
        (found,) = self.all(tag, **wanted)
        return found[1]

    def scripts(self):
        """Give what could act: scripts without a source, and handlers in attributes."""
        acts = [e for e in self.found if e[0] == "script" and "src" not in e[1]]
        return acts + [e for e in self.found if any(key.startswith("on") for key in e[1])]
