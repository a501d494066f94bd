"""A chat's messages, checked and brought into the one form that templates are given."""

from __future__ import annotations

from typing import Any

from tensorfold.core.errors import RequestError
from tensorfold.core.server.wire import Fields, parse_object, shown

# `developer` is what newer clients call the system.
ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


def read_messages(fields: Fields) -> tuple[dict[str, Any], ...]:
    """The messages: content always a string, tool arguments always objects.

    Reasoning of earlier turns is read from either field and given to templates in both.
    """
    given = fields.array("messages")
    if not given:
        raise RequestError("messages must be an array with at least one message", param="messages")
    return tuple(read_message(item, f"messages[{index}]") for index, item in enumerate(given))


def read_message(item: Any, path: str) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise RequestError(f"{path} must be an object, not {shown(item)}", param=path)
    fields = Fields(item, path)
    role = fields.text("role")
    if role not in ROLES:
        raise fields.wrong("role", "one of " + ", ".join(ROLES))
    message: dict[str, Any] = {"role": ROLES[role], "content": read_content(fields, role)}
    if name := fields.text("name"):
        message["name"] = name
    if role == "tool" and (call_id := fields.text("tool_call_id")):
        message["tool_call_id"] = call_id
    if role == "assistant":
        add_assistant_fields(fields, message)
    return message


def add_assistant_fields(fields: Fields, message: dict[str, Any]) -> None:
    reasoning = fields.text("reasoning_content")
    if reasoning is None:
        reasoning = fields.text("reasoning")
    if reasoning is not None:
        message["reasoning_content"] = message["reasoning"] = reasoning
    calls = fields.array("tool_calls")
    if calls:
        path = fields.name("tool_calls")
        message["tool_calls"] = [
            read_call(call, f"{path}[{index}]") for index, call in enumerate(calls)
        ]


def read_content(fields: Fields, role: str) -> str:
    """A string, or text parts joined as they are; null is empty."""
    value = fields.get("content")
    if value is None:
        if role == "user":
            raise fields.wrong("content", "a string or an array of text parts")
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise fields.wrong("content", "a string or an array of text parts")
    path = fields.name("content")
    return "".join(read_part(part, f"{path}[{index}]") for index, part in enumerate(value))


def read_part(part: Any, path: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise RequestError(f"{path} must be an object, not {shown(part)}", param=path)
    fields = Fields(part, path)
    kind = fields.get("type")
    if kind not in ("text", "input_text", "output_text", "refusal"):
        raise fields.wrong("type", "text: this model reads nothing else")
    text = fields.text("refusal" if kind == "refusal" else "text")
    if text is None:
        raise fields.wrong("text", "a string")
    return text


def read_call(call: Any, path: str) -> dict[str, Any]:
    if not isinstance(call, dict):
        raise RequestError(f"{path} must be an object, not {shown(call)}", param=path)
    fields = Fields(call, path)
    kind = fields.text("type")
    if kind not in (None, "function"):
        raise fields.wrong("type", "function")
    function = fields.object("function")
    if function is None:
        raise fields.wrong("function", "an object")
    inner = Fields(function, fields.name("function"))
    name = inner.text("name")
    if not name:
        raise inner.wrong("name", "a string that is not empty")
    arguments = {"name": name, "arguments": read_arguments(inner)}
    return {"id": fields.text("id"), "type": "function", "function": arguments}


def read_arguments(fields: Fields) -> dict[str, Any]:
    """A call's arguments: an object, or the JSON text of one; nothing is no arguments."""
    value = fields.get("arguments")
    if value is None or value == "":
        return {}
    if isinstance(value, str):
        try:
            return parse_object(value.encode())
        except RequestError:
            value = None
    if not isinstance(value, dict):
        raise fields.wrong("arguments", "the JSON text of an object")
    return value
