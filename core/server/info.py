"""`GET /info`: what is being served, by what, and how."""

from __future__ import annotations

from aiohttp import web

from tensorfold.core.server.service import SERVICE
from tensorfold.core.server.sse import dumps
from tensorfold.core.version import VERSION


async def show(request: web.Request) -> web.Response:
    service = request.app[SERVICE]
    about = {"version": VERSION, "model": service.model, "names": list(service.names)}
    drafting = {"drafters": service.host.drafters}
    return web.json_response(about | service.info.to_json() | drafting, dumps=dumps)
