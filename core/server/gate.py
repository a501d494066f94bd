"""What every request passes: its id, the error shape, CORS, one log line."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import TypeVar

from aiohttp import web
from aiohttp.web_protocol import RequestPayloadError

from tensorfold.core.errors import RequestError
from tensorfold.core.server.service import LOG, SERVICE, Service
from tensorfold.core.server.sse import dumps, error_object
from tensorfold.core.settings import Settings

Result = TypeVar("Result")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
# Of the request that this task answers.
REQUEST_ID: ContextVar[str] = ContextVar("request_id")
GIVEN_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
KINDS = {404: "not_found", 405: "method_not_allowed", 413: "body_too_large"}
ALLOWED_HEADERS = "authorization, content-type, x-api-key, x-request-id"


def request_id(request: web.Request) -> str:
    """The caller's id if it is a sane one, else a fresh one."""
    given = request.headers.get("x-request-id", "")
    return given if GIVEN_ID.fullmatch(given) else uuid.uuid4().hex


def error_response(error: RequestError) -> web.Response:
    headers = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
    return web.Response(
        status=error.status,
        text=dumps(error_object(error)),
        content_type="application/json",
        headers=headers,
    )


def http_error(request: web.Request, error: web.HTTPException) -> RequestError:
    """The library's own refusals in OpenAI's shape."""
    words = error.reason or "error"
    if error.status == 404:
        words = f"there is no route {request.path}"
    elif error.status == 405:
        words = f"{request.path} does not take {request.method}"
    return RequestError(words, status=error.status, code=KINDS.get(error.status))


async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
    """The handler's answer, or its error as an answer: no exception passes but a cancel."""
    try:
        return await handler(request)
    except RequestError as error:
        response = error_response(error)
        if request.content.exception() is not None:
            # A body that broke cannot be read past: the library closes after this answer.
            response.force_close()
        return response
    except web.HTTPException as error:
        response = error_response(http_error(request, error))
        if "Allow" in error.headers:
            response.headers["Allow"] = error.headers["Allow"]
        return response
    except Exception:
        LOG.exception("%s: %s %s failed", REQUEST_ID.get(), request.method, request.path)
        return error_response(
            RequestError("internal error", status=500, kind="internal_error", code="internal")
        )


@web.middleware
async def gate(request: web.Request, handler: Handler) -> web.StreamResponse:
    began = time.monotonic()
    REQUEST_ID.set(request_id(request))
    service = request.app[SERVICE]
    service.strangers.came(request.protocol)
    if request.method == "OPTIONS" and service.settings.cors:
        response: web.StreamResponse = web.Response(status=204)
    else:
        try:
            response = await guarded(request, handler)
        except asyncio.CancelledError:
            LOG.info("%s %s %s left", REQUEST_ID.get(), request.method, request.path)
            raise
    service.metrics.answers.labels(route=route_of(request), status=str(response.status)).inc()
    # Probes come all the time.
    quiet = request.method in ("GET", "HEAD") and response.status < 400
    LOG.log(
        logging.DEBUG if quiet else logging.INFO,
        "%s %s %s %d %.3f s",
        REQUEST_ID.get(),
        request.method,
        request.path,
        response.status,
        time.monotonic() - began,
    )
    return response


def route_of(request: web.Request) -> str:
    """The route's own path, so that strangers' paths are no metric labels."""
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else "none"


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """On every answer, streams included, before its headers leave."""
    # The library refuses some requests before they come to the gate.
    response.headers["x-request-id"] = REQUEST_ID.get("") or request_id(request)
    origin = request.app[SERVICE].settings.cors
    if origin:
        response.headers["Access-Control-Allow-Origin"] = origin
        response.headers["Access-Control-Expose-Headers"] = "x-request-id, retry-after"
        if request.method == "OPTIONS":
            response.headers["Access-Control-Allow-Methods"] = "GET, HEAD, POST, OPTIONS"
            response.headers["Access-Control-Allow-Headers"] = ALLOWED_HEADERS
        if origin != "*":
            response.headers["Vary"] = "Origin"


JSON_TYPES = ("application/json", "application/octet-stream")


async def parsed(request: web.Request, parse: Callable[[Service, bytes], Result]) -> Result:
    """What a body means. It is let go of before the reply is waited for: many replies may wait."""
    service = request.app[SERVICE]
    service.refuse_if_closed()
    with service.bodies.another() as grow:
        body = await read_body(request, service.settings, grow)
        return await service.off_loop(lambda: parse(service, body), len(body))


async def read_body(request: web.Request, settings: Settings, grow: Callable[[int], None]) -> bytes:
    """The whole body, within the limits of size and time; `grow` is told its bytes as they come."""
    limit, seconds = settings.body_limit, settings.read_timeout
    too_large = RequestError(
        f"the body is larger than {limit} bytes", status=413, code="body_too_large"
    )
    if request.content_type not in JSON_TYPES and not request.content_type.endswith("+json"):
        raise RequestError(
            f"the body must be application/json, not {request.content_type}",
            status=415,
            code="unsupported_media_type",
        )
    if (request.content_length or 0) > limit:
        raise too_large
    body = bytearray()
    try:
        # Bytes as they come out of their content encoding; the library would keep what it reads.
        async with asyncio.timeout(seconds):
            async for piece in request.content.iter_any():
                if len(body) + len(piece) > limit:
                    raise too_large
                grow(len(piece))
                body += piece
    except RequestPayloadError:
        raise RequestError(
            "the body cannot be read: it breaks off, or is not what its encoding header says"
        ) from None
    except TimeoutError:
        raise RequestError(
            f"the body did not arrive within {seconds:g} s", status=408, code="read_timeout"
        ) from None
    return bytes(body)
