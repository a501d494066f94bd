"""`POST /v1/chat/completions`."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from tensorfold.core.errors import RequestError
from tensorfold.core.server.answer import Answer
from tensorfold.core.server.gate import REQUEST_ID, parsed
from tensorfold.core.server.messages import read_messages
from tensorfold.core.server.order import Order, counted, make_order
from tensorfold.core.server.params import read_params
from tensorfold.core.server.service import SERVICE, Service
from tensorfold.core.server.shapes import ChatShape
from tensorfold.core.server.wire import Fields, parse_object, shown

MOST_ALTERNATIVES = 20
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
# What a template is given by the server alone.
RESERVED = ("messages", "tools", "add_generation_prompt", "continue_final_message")


async def answer(request: web.Request) -> web.StreamResponse:
    service = request.app[SERVICE]
    order = await parsed(request, read_order)
    service.log_unknown(set(order.unknown))
    shape = ChatShape(order, service.text.vocabulary, service.settings.reasoning_field)
    reply = Answer(service, order, shape, REQUEST_ID.get())
    with service.mailroom.submitted(service.host, order.jobs) as inbox:
        if order.params.stream:
            return await reply.streamed(request, inbox)
        return await reply.whole(request, inbox)


def read_order(service: Service, body: bytes) -> Order:
    """Parse, check, render and tokenize; runs off the event loop."""
    fields = Fields(parse_object(body))
    service.check_model(fields.text("model") or "")
    messages = read_messages(fields)
    params = read_params(
        fields,
        read_logprobs(fields),
        info=service.info,
        text=service.text,
        settings=service.settings,
    )
    options = template_options(fields)
    with counted(service, "messages"):
        prompt = service.text.chat_prompt(messages, most=service.info.context, **options)
    return make_order(service, params, [prompt], fields.unknown(), chat=True)


def read_logprobs(fields: Fields) -> int | None:
    asked = fields.boolean("logprobs")
    top = fields.integer("top_logprobs", 0, MOST_ALTERNATIVES)
    if top is not None and not asked:
        raise RequestError("top_logprobs needs logprobs to be true", param="top_logprobs")
    return (top or 0) if asked else None


def template_options(fields: Fields) -> dict[str, Any]:
    continue_final = fields.boolean("continue_final_message")
    generate = fields.boolean("add_generation_prompt", not continue_final)
    if continue_final and generate:
        raise RequestError(
            "continue_final_message and add_generation_prompt exclude each other",
            param="continue_final_message",
        )
    return {
        "add_generation_prompt": generate,
        "continue_final_message": continue_final,
        "values": template_values(fields),
    }


def template_values(fields: Fields) -> dict[str, Any]:
    """What the request gives its template: `chat_template_kwargs` win over `reasoning_effort`."""
    given = fields.object("chat_template_kwargs") or {}
    for name in given:
        if name in RESERVED or name.endswith("__"):
            raise RequestError(
                f"chat_template_kwargs may not set {shown(name)}", param="chat_template_kwargs"
            )
    effort = fields.choice("reasoning_effort", EFFORTS)
    if effort is None:
        return given
    if effort == "none":
        return {"enable_thinking": False, **given}
    return {"reasoning_effort": effort, **given}
