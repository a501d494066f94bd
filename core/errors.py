"""The errors that cross a room's door.

A caller's mistake carries its HTTP status and code as data, so that no layer above has to guess
them. A start that cannot succeed is a `StartError`: one sentence and exit code 2. What an engine
raises is described in `engine_api`.
"""

from __future__ import annotations


class RequestError(Exception):
    """A request that is refused; answered in OpenAI's error shape.

    `message` names the field and the value. `param` is the request's field, if one is to blame.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.kind = kind
        self.code = code
        self.param = param
        self.retry_after = retry_after


# What a client is told to wait for a server that goes away.
RESTART_SECONDS = 10
CLOSED_WORDS = "the server is shutting down"


def unavailable(words: str) -> RequestError:
    """A request to a server that takes no work any more: 503, and when to try another time."""
    return RequestError(
        words, status=503, kind="server_error", code="unavailable", retry_after=RESTART_SECONDS
    )


class StartError(Exception):
    """A start that cannot succeed, told in one sentence; the process exits with code 2."""


class NotAllReady(StartError):
    """A rank ended before all of them were ready."""


class RankGone(RuntimeError):
    """Another rank ended, or waited for this one for too long."""


class NoRoom(Exception):
    """`Engine.open`: the stream fits, once others have ended or kept states are dropped."""


class Refused(Exception):
    """`Engine.open`: the stream never fits; the message is for the user."""


class EngineFault(Exception):
    """A call of the engine did nothing: the streams it named end, and the host goes on."""


class EngineLost(Exception):
    """No later call of the engine can work: every stream ends, and the process exits non-zero."""


def in_words(error: BaseException) -> str:
    """What is none of these in a line, for whoever is not shown where it was raised."""
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no words'}"
