"""The JSON of chat and of text completions: one class a shape, both with the same methods."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from tensorfold.core.server.order import Order
from tensorfold.core.server.params import Params
from tensorfold.core.server.replies import PlainLogprobs, Reply, chat_logprobs
from tensorfold.core.text import Part, Vocabulary

Object = dict[str, Any]


class Shape(Protocol):
    """How a route writes its choices."""

    id_prefix: ClassVar[str]
    whole_object: ClassVar[str]
    chunk_object: ClassVar[str]

    def opening(self, reply: Reply) -> Object | None:
        """The choice of a reply's first chunk, sent before anything is known of it."""
        ...

    def piece(self, reply: Reply, part: Part) -> Object:
        """The choice of a chunk with text."""
        ...

    def ending(self, reply: Reply) -> Object:
        """The choice of a reply's last chunk: a reason, no text."""
        ...

    def write_logprobs(self, reply: Reply) -> None:
        """Write the log-probabilities that have come, for `whole`."""
        ...

    def whole(self, reply: Reply) -> Object:
        """The choice of a body that was not streamed; values may be `Written`."""
        ...


def token_ids(params: Params, tokens: list[int]) -> Object:
    """Tokens of a choice or of a chunk, where they were asked for."""
    return {"token_ids": tokens} if params.return_token_ids else {}


class ChatShape:
    id_prefix: ClassVar[str] = "chatcmpl-"
    whole_object: ClassVar[str] = "chat.completion"
    chunk_object: ClassVar[str] = "chat.completion.chunk"

    def __init__(self, order: Order, vocabulary: Vocabulary, reasoning_field: str) -> None:
        self.params = order.params
        self.vocabulary = vocabulary
        both = ("reasoning", "reasoning_content")
        self.reasoning_fields = both if reasoning_field == "both" else (reasoning_field,)

    def opening(self, reply: Reply) -> Object:
        return self.chunk(reply, {"role": "assistant", "content": ""}, None)

    def piece(self, reply: Reply, part: Part) -> Object:
        if part.section == "content":
            delta = {"content": part.text}
        else:
            delta = dict.fromkeys(self.reasoning_fields, part.text)
        return self.chunk(reply, delta, None) | self.extras(reply)

    def ending(self, reply: Reply) -> Object:
        choice = self.chunk(reply, {}, reply.finish_reason) | self.extras(reply)
        return choice | {"stop_reason": reply.stop_reason}

    def chunk(self, reply: Reply, delta: Object, finish_reason: str | None) -> Object:
        return {
            "index": reply.index,
            "delta": delta,
            "logprobs": None,
            "finish_reason": finish_reason,
        }

    def whole(self, reply: Reply) -> Object:
        message: Object = {"role": "assistant", "content": reply.text("content")}
        reasoning = reply.text("reasoning")
        if reasoning:
            message |= dict.fromkeys(self.reasoning_fields, reasoning)
        return {
            "index": reply.index,
            "message": message,
            "logprobs": reply.written.whole(),
            "finish_reason": reply.finish_reason,
            "stop_reason": reply.stop_reason,
        } | token_ids(self.params, reply.tokens)

    def write_logprobs(self, reply: Reply) -> None:
        _, logprobs = reply.take_fresh()
        if self.params.logprobs is not None:
            reply.written.add(chat_logprobs(logprobs, self.vocabulary))

    def extras(self, reply: Reply) -> Object:
        """Token ids and log-probabilities that no chunk has carried yet."""
        tokens, logprobs = reply.take_fresh()
        found = token_ids(self.params, tokens)
        if self.params.logprobs is not None and logprobs:
            found["logprobs"] = chat_logprobs(logprobs, self.vocabulary)
        return found


class PlainShape:
    id_prefix: ClassVar[str] = "cmpl-"
    whole_object: ClassVar[str] = "text_completion"
    chunk_object: ClassVar[str] = "text_completion"

    def __init__(self, order: Order, vocabulary: Vocabulary) -> None:
        self.params = order.params
        self.logprobs = [PlainLogprobs(vocabulary) for _ in order.jobs]

    def opening(self, reply: Reply) -> None:
        return None

    def piece(self, reply: Reply, part: Part) -> Object:
        return self.choice(reply, part.text, None) | self.extras(reply)

    def ending(self, reply: Reply) -> Object:
        choice = self.choice(reply, "", reply.finish_reason) | self.extras(reply)
        return choice | {"stop_reason": reply.stop_reason}

    def whole(self, reply: Reply) -> Object:
        choice = self.choice(reply, reply.text("content"), reply.finish_reason)
        choice |= {"stop_reason": reply.stop_reason, "logprobs": reply.written.whole()}
        return choice | token_ids(self.params, reply.tokens)

    def write_logprobs(self, reply: Reply) -> None:
        _, logprobs = reply.take_fresh()
        if self.params.logprobs is not None:
            reply.written.add(self.logprobs[reply.index].shape(logprobs))

    def choice(self, reply: Reply, text: str, finish_reason: str | None) -> Object:
        return {
            "index": reply.index,
            "text": text,
            "logprobs": None,
            "finish_reason": finish_reason,
        }

    def extras(self, reply: Reply) -> Object:
        tokens, logprobs = reply.take_fresh()
        found = token_ids(self.params, tokens)
        if self.params.logprobs is not None and logprobs:
            found["logprobs"] = self.logprobs[reply.index].shape(logprobs)
        return found
