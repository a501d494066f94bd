"""`GET /metrics`."""

from __future__ import annotations

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from tensorfold.core.server.service import SERVICE


async def show(request: web.Request) -> web.Response:
    body = request.app[SERVICE].metrics.text()
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})
