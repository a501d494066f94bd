"""`POST /v1/completions`: text, or token ids, continued."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from tensorfold.core.errors import RequestError
from tensorfold.core.server.answer import Answer
from tensorfold.core.server.gate import REQUEST_ID, parsed
from tensorfold.core.server.order import Order, counted, make_order
from tensorfold.core.server.params import read_params
from tensorfold.core.server.service import SERVICE, Service
from tensorfold.core.server.shapes import PlainShape
from tensorfold.core.server.wire import Fields, parse_object, token_ids
from tensorfold.core.text import Prompt

MOST_ALTERNATIVES = 5
MOST_PROMPTS = 256


async def answer(request: web.Request) -> web.StreamResponse:
    service = request.app[SERVICE]
    order = await parsed(request, read_order)
    service.log_unknown(set(order.unknown))
    reply = Answer(service, order, PlainShape(order, service.text.vocabulary), REQUEST_ID.get())
    with service.mailroom.submitted(service.host, order.jobs) as inbox:
        if order.params.stream:
            return await reply.streamed(request, inbox)
        return await reply.whole(request, inbox)


def read_order(service: Service, body: bytes) -> Order:
    """Parse, check and tokenize; runs off the event loop."""
    fields = Fields(parse_object(body))
    service.check_model(fields.text("model") or "")
    params = read_params(
        fields,
        fields.integer("logprobs", 0, MOST_ALTERNATIVES),
        info=service.info,
        text=service.text,
        settings=service.settings,
    )
    prompts = read_prompts(fields, service)
    return make_order(service, params, prompts, fields.unknown(), chat=False)


def read_prompts(fields: Fields, service: Service) -> list[Prompt]:
    """One text, one list of ids, or a list of either; every prompt is answered `n` times."""
    value = fields.get("prompt")
    if isinstance(value, str):
        return [read_prompt(value, "prompt", service)]
    if not isinstance(value, list) or not value:
        raise fields.wrong("prompt", "a string, an array of token ids, or an array of these")
    if {str, list}.isdisjoint(map(type, value)):
        return [read_prompt(value, "prompt", service)]
    if len(value) > MOST_PROMPTS:
        raise RequestError(
            f"prompt must be at most {MOST_PROMPTS} prompts, not {len(value)}", param="prompt"
        )
    return [read_prompt(item, f"prompt[{index}]", service) for index, item in enumerate(value)]


def read_prompt(value: Any, name: str, service: Service) -> Prompt:
    if isinstance(value, str):
        with counted(service, "prompt"):
            prompt = service.text.plain_prompt(value, most=service.info.context)
    elif isinstance(value, list):
        prompt = Prompt(ids=token_ids(name, value, service.info.vocab_size))
    else:
        raise RequestError(f"{name} must be a string or an array of token ids", param="prompt")
    if not prompt.ids:
        raise RequestError(f"{name} is empty: it holds no token", param="prompt")
    return prompt
