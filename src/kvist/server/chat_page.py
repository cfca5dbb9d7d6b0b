"""GET /: a chat in the browser, one file without outside resources."""

from __future__ import annotations

from importlib import resources

from starlette.requests import Request
from starlette.responses import Response

_PAGE = resources.files("kvist.server").joinpath("chat_page.html").read_bytes()
_HEADERS = {
    # Nothing but this file runs, and it talks to nobody but this server.
    "content-security-policy": (
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


async def chat_page(request: Request) -> Response:
    return Response(_PAGE, 200, _HEADERS, media_type="text/html; charset=utf-8")
