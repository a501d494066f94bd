"""`GET /version`."""

from __future__ import annotations

from aiohttp import web

from tensorfold.core.version import VERSION


async def show(request: web.Request) -> web.Response:
    return web.json_response({"version": VERSION})
