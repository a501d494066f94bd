"""`GET /` and `HEAD /`: a page for a person, and an answer for clients that probe."""

from __future__ import annotations

from aiohttp import web

from tensorfold.core.server.service import SERVICE
from tensorfold.core.version import VERSION


async def show(request: web.Request) -> web.Response:
    service = request.app[SERVICE]
    info, stats = service.info, service.host.stats()
    state = stats.lost or ("shutting down" if stats.closing else "serving")
    lines = (
        f"TensorFold {VERSION}: {state}",
        f"model    {', '.join(service.names)} ({info.family} on {info.backend}, {info.device})",
        f"context  {info.context} tokens, {info.lanes} lanes",
        f"replies  {stats.live} live, {stats.filling} filling, {stats.waiting} waiting, "
        f"{stats.finished} finished, {stats.failed} failed, {stats.aborted} aborted",
        f"tokens   {stats.tokens} in {stats.rounds} rounds of {stats.round_rows} rows",
        *(
            f"drafts   {name}: {stats.accepted[name]} accepted of {drafted}"
            for name, drafted in stats.drafted.items()
            if drafted
        ),
    )
    return web.Response(text="\n".join(lines) + "\n")
