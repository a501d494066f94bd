"""Requests that are no HTTP: one line in the log, where the library would write a traceback each.

Anyone who can connect can send such a request, so it must not bury what an operator looks for.
"""

from __future__ import annotations

import logging

from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestPayloadError

from tensorfold.core.server.service import LOG

SHOWN = 200


class OneLine(logging.Filter):
    """Takes the peer's own faults out of the library's log, and tells them in ours."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, HttpProcessingError | RequestPayloadError):
            return True
        LOG.info("an unreadable request: %s", " ".join(str(error).split())[:SHOWN])
        return False


HTTP_LOG = logging.getLogger("tensorfold.http")
HTTP_LOG.addFilter(OneLine())
