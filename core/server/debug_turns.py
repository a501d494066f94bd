"""`GET /debug/turns?last=N`: the last turns of the host, as the trace file has them."""

from __future__ import annotations

from aiohttp import web

from tensorfold.core.errors import RequestError
from tensorfold.core.server.service import SERVICE
from tensorfold.core.server.trace_file import MOST_TURNS, json_of

DEFAULT_TURNS = 64


async def show(request: web.Request) -> web.Response:
    turns = request.app[SERVICE].turns
    assert turns is not None, "the route is there only with a place for the turns"
    found = ",".join(map(json_of, turns.last(asked(request))))
    return web.Response(text=f'{{"turns":[{found}]}}', content_type="application/json")


def asked(request: web.Request) -> int:
    text = request.query.get("last", str(DEFAULT_TURNS))
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= MOST_TURNS:
        raise RequestError(f"last must be a whole number from 1 to {MOST_TURNS}", param="last")
    return int(text)
