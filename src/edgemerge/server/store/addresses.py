"""Addresses of databases, shown without their secrets."""

from __future__ import annotations

import re
from urllib.parse import unquote


def hidden(url: str) -> str:
    """Show an address without user, password and options.

    >>> hidden("postgresql://fleet:pa@ss@db.local:5432/fleets?sslpassword=x")
    'postgresql://…@db.local:5432/fleets'
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        return "…" if "=" in url else url
    place = rest.rpartition("@")[2].partition("?")[0]
    return f"{scheme}://{'…@' if '@' in rest else ''}{place}"


def without_secrets(words: str, url: str) -> str:
    """Give the words of a driver, unless they repeat a part of what the address keeps secret.

    >>> without_secrets('invalid port "pa"', "postgresql://fleet:pa/ss@db.local/fleets")
    'the reason names the password, so it is not shown'
    """
    if any(secret in words for secret in _secrets(url)):
        return "the reason names the password, so it is not shown"
    return " ".join(words.split())


def _secrets(url: str) -> set[str]:
    """Give every part that might be, or be part of, a password, also of a misspelt address."""
    rest = url.partition("://")[2]
    user, _, password = rest.rpartition("@")[0].partition(":")
    options = re.findall(r"(?:ssl)?password=([^&]*)", rest)
    whole = [password, *options]
    parts = [part for text in whole for part in re.split(r"[:/@?#]", text)]
    found = {form for text in (*whole, *parts) for form in (text, unquote(text))}
    return found - {"", user}
