"""Answering an order: streamed as it comes, or whole once it is there."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from aiohttp import web

from tensorfold.core.errors import RequestError
from tensorfold.core.server.mailroom import Inbox
from tensorfold.core.server.order import Order
from tensorfold.core.server.receipt import receipt, receipts, usage
from tensorfold.core.server.replies import Reply, failure, make_replies
from tensorfold.core.server.service import LOG, Service
from tensorfold.core.server.shapes import Shape
from tensorfold.core.server.sse import (
    EventStream,
    ReaderGone,
    Written,
    dumps_object,
    send_whole,
    written_list,
)

Object = dict[str, Any]


class Answer:
    """One request's answer: what all its chunks, or its body, have in common."""

    def __init__(self, service: Service, order: Order, shape: Shape, request_id: str) -> None:
        self.service = service
        self.order = order
        self.shape = shape
        self.id = shape.id_prefix + request_id
        self.created = int(time.time())
        self.replies = make_replies(order)

    def head(self, kind: str) -> Object:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.order.params.model,
            "system_fingerprint": self.service.info.identity,
        }

    def usage(self) -> Object:
        ended = [reply.end for reply in self.replies.values()]
        counts = [end.counts for end in ended if end is not None]
        reasoning = sum(reply.reader.reasoning_tokens for reply in self.replies.values())
        prompts = [len(prompt.ids) for prompt in self.order.prompts]
        return usage(prompts, counts, reasoning if self.order.sections else None)

    def receipts(self) -> Object:
        identity = self.service.info.identity
        return receipts(
            [
                receipt(reply.job, reply.end.counts, identity, self.order.text_of(reply.index))
                for reply in self.replies.values()
                if reply.end is not None
            ]
        )

    def prompt_ids(self) -> Object:
        """The prompts' ids where they are asked for: one list, or one a prompt."""
        if not self.order.params.return_token_ids:
            return {}
        ids = [f"[{text.decode()}]" for text in self.order.texts]
        return {"prompt_token_ids": Written(ids[0] if len(ids) == 1 else f"[{','.join(ids)}]")}

    # -- whole ---------------------------------------------------------------------------------

    async def whole(self, request: web.Request, inbox: Inbox) -> web.StreamResponse:
        """Raises `RequestError` if any of the replies fails."""
        while any(reply.end is None for reply in self.replies.values()):
            for delivery in await inbox.take():
                reply = self.replies[delivery.stream]
                reply.take(delivery)
                self.shape.write_logprobs(reply)
                if reply.end is not None and (error := failure(reply.end)):
                    raise error
        body = self.head(self.shape.whole_object) | {
            "choices": written_list(self.shape.whole(reply) for reply in self.replies.values()),
            "usage": self.usage(),
            **self.prompt_ids(),
            "tensorfold": self.receipts(),
        }
        return await send_whole(
            request, dumps_object(body), self.service.settings.reader_timeout, name=self.id
        )

    # -- streamed ------------------------------------------------------------------------------

    async def streamed(self, request: web.Request, inbox: Inbox) -> web.StreamResponse:
        """Stream the replies; leaving early, for whatever reason, cancels them."""
        events = EventStream(request, self.service.settings.reader_timeout)
        try:
            await events.open()
            await self.tell(events, inbox)
        except ReaderGone as gone:
            LOG.warning("%s: %s", self.id, gone)
        except RequestError as error:
            LOG.warning("%s: %s", self.id, error.message)
            await events.fail(error)
        except Exception:
            LOG.exception("%s: the answer failed", self.id)
            await events.fail(
                RequestError("internal error", status=500, kind="internal_error", code="internal")
            )
        return events.response

    async def tell(self, events: EventStream, inbox: Inbox) -> None:
        first = self.prompt_ids()
        for reply in self.replies.values():
            if opening := self.shape.opening(reply):
                await events.send(self.chunk([opening], first))
                first = {}
        live = len(self.replies)
        while live:
            deliveries = await inbox.take(self.service.settings.keepalive)
            if not deliveries:
                await events.comment()
            for delivery in deliveries:
                reply = self.replies[delivery.stream]
                for part in reply.take(delivery):
                    await events.send(self.chunk([self.shape.piece(reply, part)], first))
                    first = {}
                if reply.end is None:
                    continue
                if error := failure(reply.end):
                    raise error
                live -= 1
                await self.end(events, reply, last=live == 0, extras=first)
                first = {}
        await events.done()

    async def end(
        self, events: EventStream, reply: Reply, *, last: bool, extras: Mapping[str, Any]
    ) -> None:
        """A reply's last chunk. The request's last one carries the receipt."""
        include_usage = self.order.params.include_usage
        more = dict(extras)
        if last and not include_usage:
            more["tensorfold"] = self.receipts()
        await events.send(self.chunk([self.shape.ending(reply)], more))
        if last and include_usage:
            closing = {"usage": self.usage(), "tensorfold": self.receipts()}
            await events.send(self.chunk([], closing))

    def chunk(self, choices: Iterable[Object], more: Mapping[str, Any]) -> Object:
        return self.head(self.shape.chunk_object) | {"choices": list(choices), **more}
