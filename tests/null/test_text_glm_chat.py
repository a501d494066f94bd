"""GLM's rendering of chats, by the family's own template and by the bundled model's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tensorfold.families.glm53.chat
from tensorfold.core.text.template import ChatTemplate, TemplateFault
from tensorfold.families.glm53.chat import CHAT

HEAD = "[gMASK]<sop><|system|>Reasoning Effort: Max"
TOOLS = (
    "<|system|>\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n{}\n"
    "</tools>\n\nFor each function call, output the function name and arguments within the "
    "following XML format:\n<tool_call>{{function-name}}<arg_key>{{arg-key-1}}</arg_key>"
    "<arg_value>{{arg-value-1}}</arg_value><arg_key>{{arg-key-2}}</arg_key>"
    "<arg_value>{{arg-value-2}}</arg_value>...</tool_call>"
)
USER = {"role": "user", "content": "U"}
BUNDLED = Path(tensorfold.families.glm53.chat.__file__).parent / "tiny" / "chat_template.jinja"
Render = Callable[..., str]


@pytest.fixture(params=["the family's", "the bundled model's"])
def render(request: pytest.FixtureRequest) -> Render:
    """Both templates that write GLM's chats here."""
    ours = request.param == "the family's"
    template = ChatTemplate(CHAT.template if ours else BUNDLED.read_text(encoding="utf-8"))

    def rendered(*messages: dict[str, Any], generate: bool = False, **values: Any) -> str:
        given = {"messages": list(messages), "add_generation_prompt": generate}
        return template.render(given | values)

    return rendered


def call(name: str, id: str | None = None, **arguments: Any) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def assistant(content: str | None, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **fields}


def result(content: Any, id: str | None = None) -> dict[str, Any]:
    return {"role": "tool", "content": content, "tool_call_id": id}


def test_one_tool_and_one_finished_call(render: Render) -> None:
    tool = {"type": "function", "function": {"name": "a", "description": "d"}}
    rendered = render(
        {"role": "system", "content": "S"},
        USER,
        assistant("hi", reasoning_content="r", tool_calls=[call("a", x=1), call("b")]),
        result("R"),
        tools=[tool],
        generate=True,
    )
    assert rendered == (
        HEAD + TOOLS.format('{"name": "a", "description": "d"}') + "<|system|>S<|user|>U"
        "<|assistant|><think>r</think>hi<tool_call>a<arg_key>x</arg_key><arg_value>1</arg_value>"
        "</tool_call><tool_call>b</tool_call><|observation|><tool_response>R</tool_response>"
        "<|assistant|><think>"
    )


@pytest.mark.parametrize(
    ("effort", "word"), [("low", "Low"), ("high", "High"), ("max", "Max"), ("medium", "Max")]
)
def test_effort(effort: str, word: str, render: Render) -> None:
    rendered = render(USER, reasoning_effort=effort)
    assert rendered == f"[gMASK]<sop><|system|>Reasoning Effort: {word}<|user|>U"


def test_thinking_is_closed_at_once_only_where_it_is_switched_off(render: Render) -> None:
    assert render(USER, generate=True).endswith("<|user|>U<|assistant|><think>")
    assert render(USER, generate=True, enable_thinking=True).endswith("<|assistant|><think>")
    closed = render(USER, generate=True, enable_thinking=False)
    assert closed.endswith("<|assistant|><think></think>")


def test_reasoning_is_kept_or_left_out_before_the_last_user_message(render: Render) -> None:
    turns = (USER, assistant("A", reasoning_content="r"), USER, assistant("B", reasoning="s"))
    kept = HEAD + "<|user|>U<|assistant|><think>r</think>A<|user|>U<|assistant|><think>s</think>B"
    assert render(*turns) == kept
    assert render(*turns, clear_thinking=True) == kept.replace("<think>r<", "<think><")


def test_reasoning_inside_the_content_is_found_and_content_is_stripped(render: Render) -> None:
    rendered = render(USER, assistant("<think>why</think>\n\n so </think> it is \n"))
    assert rendered == HEAD + "<|user|>U<|assistant|><think>why</think>so </think> it is"


def test_no_content_and_parts_of_content(render: Render) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image_url"}, {"type": "text", "text": "b"}]
    assert render({"role": "user", "content": parts}) == HEAD + "<|user|>ab"
    rendered = render(USER, assistant(None, tool_calls=[call("f")]))
    assert rendered.endswith("<think></think><tool_call>f</tool_call>")


def test_arguments_are_raw_texts_and_json_values(render: Render) -> None:
    rendered = render(USER, assistant("", tool_calls=[call("f", s='é"', n=1.5, o={"k": [None]})]))
    assert rendered.endswith(
        '<tool_call>f<arg_key>s</arg_key><arg_value>é"</arg_value><arg_key>n</arg_key>'
        '<arg_value>1.5</arg_value><arg_key>o</arg_key><arg_value>{"k": [null]}</arg_value>'
        "</tool_call>"
    )
    broken = {"function": {"name": "f", "arguments": "{}"}}
    with pytest.raises(TemplateFault, match="must be an object"):
        render(USER, assistant("", tool_calls=[broken]))


def test_tools_lose_the_keys_that_are_not_theirs_and_deferred_ones_are_not_shown(
    render: Render,
) -> None:
    tools = [
        {"type": "function", "function": {"name": "a", "strict": True, "defer_loading": False}},
        {"type": "function", "function": {"name": "b", "defer_loading": True}},
        {"name": "c", "description": "ü"},
    ]
    assert TOOLS.format('{"name": "a"}\n{"name": "c", "description": "ü"}') in render(
        USER, tools=tools
    )


@pytest.mark.parametrize(
    ("ids", "order"),
    [
        (("2", "1"), "21"),
        (("1", "2"), "12"),
        (("1", "1"), "12"),
        (("1", "3"), "12"),
        ((None, None), "12"),
    ],
)
def test_results_go_in_the_order_of_the_calls_where_their_ids_match(
    ids: tuple[str | None, str | None], order: str, render: Render
) -> None:
    calls = assistant("", tool_calls=[call("f", "1"), call("g", "2")])
    rendered = render(USER, calls, result("R1", ids[0]), result("R2", ids[1]), USER, result("X"))
    first, second = (f"<tool_response>R{one}</tool_response>" for one in order)
    run = f"<|observation|>{first}{second}<|user|>U<|observation|>"
    assert rendered.endswith(run + "<tool_response>X</tool_response>")


def test_an_unknown_role_is_an_error(render: Render) -> None:
    with pytest.raises(TemplateFault, match="no such role: chef"):
        render({"role": "chef", "content": "x"})
