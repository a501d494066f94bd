"""`GET /health`: 200 while new work is taken, else 503 with the reason."""

from __future__ import annotations

from aiohttp import web

from tensorfold.core.server.service import SERVICE


async def show(request: web.Request) -> web.Response:
    request.app[SERVICE].refuse_if_closed()
    return web.json_response({"status": "ok"})
