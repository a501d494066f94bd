"""What request bodies may take of the host's memory together, until they are parsed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tensorfold.core.errors import RequestError

# Bodies above this are bulk: they take turns, and find room together or come again.
BULK_BYTES = 1 << 20
# The largest bodies that may be read, or wait to be parsed, at once.
LARGEST_AT_ONCE = 16
RETRY_SECONDS = 1


class Bodies:
    """The bytes of all bodies that are not parsed yet, `most` at a time. Event-loop thread only."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0

    @contextmanager
    def another(self) -> Iterator[Callable[[int], None]]:
        """Counts a body by its bytes as they come, and forgets it when it is left.

        Counting raises `RequestError` where a bulky one has no room beside others; one alone always
        has it.
        """
        own = 0

        def grow(size: int) -> None:
            nonlocal own
            bulky, alone = own + size > BULK_BYTES, own == self.held
            if bulky and not alone and self.held + size > self.most:
                raise RequestError(
                    f"bodies of {self.held} bytes are being read, and {self.most} is the most",
                    status=429,
                    kind="rate_limit_error",
                    code="queue_full",
                    retry_after=RETRY_SECONDS,
                )
            own += size
            self.held += size

        try:
            yield grow
        finally:
            self.held -= own
