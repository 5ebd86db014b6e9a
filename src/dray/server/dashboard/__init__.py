"""The dashboard: static pages that use the public API with the user's own token.

There is no back door: the files below are all that this module serves, to anybody,
because they hold no data. What a page shows it fetches from the API with the token
that the user gave it. The content security policy forbids scripts, styles and
connections from anywhere but this server; names from the cluster are only ever set
as text, never as markup.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from importlib import resources

from dray.server.requests import Response, text_response

PREFIX = "/dashboard"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}


@lru_cache(maxsize=32)
def _file(name: str) -> tuple[bytes, str, str] | None:
    """Return content, type and entity tag of a page's file; None when there is no such file."""
    ending = "." + name.rpartition(".")[2]
    if "/" in name or ending not in _TYPES:
        return None
    found = resources.files(__name__) / name
    if not found.is_file():
        return None
    content = found.read_bytes()
    return content, _TYPES[ending], f'"{hashlib.sha256(content).hexdigest()[:16]}"'


def respond(method: str, path: str, if_none_match: str = "") -> Response | None:
    """Answer a request for the dashboard; None when the path is not the dashboard's."""
    if path != PREFIX and not path.startswith(f"{PREFIX}/"):
        return None
    if method not in ("GET", "HEAD"):
        return text_response(405, "only GET is served here\n")
    if path == PREFIX:
        return Response(308, b"", [("location", f"{PREFIX}/")], "text/plain")
    found = _file(path.removeprefix(f"{PREFIX}/") or "index.html")
    if found is None:
        return text_response(404, "404 page not found\n")
    content, kind, tag = found
    headers = [
        ("content-security-policy", POLICY),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cache-control", "no-cache"),
        ("etag", tag),
    ]
    if if_none_match == tag:
        return Response(304, b"", headers, kind)
    return Response(200, content, headers, kind)
