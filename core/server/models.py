"""`GET /v1/models` and `/v1/models/{id}`."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from tensorfold.core.server.service import SERVICE, Service, unknown_model
from tensorfold.core.server.sse import dumps


async def show_all(request: web.Request) -> web.Response:
    service = request.app[SERVICE]
    cards = [card(service, name) for name in service.names]
    return web.json_response({"object": "list", "data": cards}, dumps=dumps)


async def show_one(request: web.Request) -> web.Response:
    service, name = request.app[SERVICE], request.match_info["id"]
    if name not in service.names:
        raise unknown_model(name, service.names)
    return web.json_response(card(service, name), dumps=dumps)


def card(service: Service, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "tensorfold",
        "root": service.model,
        "max_model_len": service.info.context,
    }
