"""DeepSeek-V4.1's rendering of chats: the public vectors, and what the format says beside them."""

from __future__ import annotations

from typing import Any

import pytest

from tensorfold.core.text.template import ChatTemplate, TemplateFault
from tensorfold.families.dsv41.chat import CHAT

TOKENS = {
    "B": "<｜begin▁of▁sentence｜>",
    "E": "<｜end▁of▁sentence｜>",
    "S": "<｜System｜>",
    "U": "<｜User｜>",
    "A": "<｜Assistant｜>",
}
EFFORT = (
    "Reasoning Effort: {} (range 1-100, the higher the value, the more thorough the reasoning)\n\n"
)
TEMPLATE = ChatTemplate(CHAT.template)
OFF = {"enable_thinking": False}


def shown(*parts: str) -> str:
    """One letter alone is a token, all else is text."""
    return "".join(TOKENS.get(part, part) for part in parts)


def render(*messages: dict[str, Any], generate: bool = True, **values: Any) -> str:
    given = {"messages": list(messages), "add_generation_prompt": generate}
    return TEMPLATE.render(given | values)


def says(role: str, content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **fields}


def call(name: str, id: str | None = None, **arguments: Any) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(content: str, id: str | None = None) -> dict[str, Any]:
    return {"role": "tool", "content": content, "tool_call_id": id}


HELLO = says("user", "hello")
THINK = EFFORT.format(75)


def test_chat_mode_without_and_with_a_system_message() -> None:
    assert render(HELLO, **OFF) == shown("B", "U", "hello", "A", "</think>")
    system = "You are a helpful assistant."
    wanted = shown("B", "S", system, "U", "hello", "A", "</think>")
    assert render(says("system", system), HELLO, **OFF) == wanted


def test_chat_mode_of_two_turns() -> None:
    turns = (says("user", "q1"), says("assistant", "a1"), says("user", "q2"))
    wanted = shown("B", "U", "q1", "A", "</think>", "a1", "E", "U", "q2", "A", "</think>")
    assert render(*turns, **OFF) == wanted


def test_thinking_is_on_unless_it_is_switched_off() -> None:
    wanted = shown("B", "S", THINK, "U", "hello", "A", "<think>")
    assert render(HELLO) == wanted
    assert render(HELLO, enable_thinking=True) == wanted
    for off in (OFF, {"thinking": False}, {"reasoning_effort": "none"}):
        assert render(HELLO, **off) == shown("B", "U", "hello", "A", "</think>")
    assert render(says("system", "S1"), says("user", "U1")) == shown(
        "B", "S", THINK, "S1", "U", "U1", "A", "<think>"
    )


def test_a_later_system_message_and_reasoning_before_the_last_question() -> None:
    turns = (
        says("user", "old"),
        says("assistant", "old answer", reasoning_content="why"),
        says("system", "new policy"),
        says("user", "now"),
    )
    wanted = ("B", "S", THINK, "U", "old", "A", "</think>", "old answer", "E")
    assert render(*turns) == shown(*wanted, "S", "new policy", "U", "now", "A", "<think>")
    # It is itself what was last asked, where nothing else is.
    assert render(*turns[:-1]) == shown(*wanted, "S", "new policy", "A", "<think>")


@pytest.mark.parametrize(
    ("effort", "number"),
    [("low", 50), ("high", 75), ("xhigh", 75), ("max", 100), ("medium", 75), (1, 1), (100, 100)],
)
def test_effort(effort: str | int, number: int) -> None:
    rendered = render(HELLO, reasoning_effort=effort)
    assert rendered == shown("B", "S", EFFORT.format(number), "U", "hello", "A", "<think>")


@pytest.mark.parametrize("effort", [0, 101, -1])
def test_an_effort_that_is_none_is_an_error(effort: int) -> None:
    with pytest.raises(TemplateFault, match="from 1 to 100"):
        render(HELLO, reasoning_effort=effort)


def test_users_and_tool_results_in_a_row_are_one_turn() -> None:
    calls = says("assistant", None, tool_calls=[call("f", "1"), call("g", "2")])
    turns = (HELLO, says("developer", "more"), calls, result("R2", "2"), result("R1", "1"), HELLO)
    rendered = render(*turns, **OFF)
    assert rendered.startswith(shown("B", "U", "hello\n\nmore", "A", "</think>"))
    assert rendered.endswith(
        shown(
            "E",
            "U",
            "<tool_result>R1</tool_result>\n\n<tool_result>R2</tool_result>\n\nhello",
            "A",
            "</think>",
        )
    )


def test_results_whose_ids_do_not_match_stay_as_they_came() -> None:
    calls = says("assistant", "", tool_calls=[call("f", "1"), call("g", "2")])
    rendered = render(HELLO, calls, result("Rx", "x"), result("R1", "1"), **OFF)
    assert "<tool_result>Rx</tool_result>\n\n<tool_result>R1</tool_result>" in rendered


def test_calls_are_texts_as_they_are_and_other_values_as_json() -> None:
    calls = [call("f", s='a "b"\n<c>', n=1.5, o={"é": [None, True]}), call("g")]
    rendered = render(HELLO, says("assistant", "so", tool_calls=calls), generate=False, **OFF)
    assert rendered == shown(
        "B",
        "U",
        "hello",
        "A",
        "</think>",
        'so\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name="f">\n'
        '<｜DSML｜ parameter name="s" string="true">a "b"\n<c></｜DSML｜ parameter>\n'
        '<｜DSML｜ parameter name="n" string="false">1.5</｜DSML｜ parameter>\n'
        '<｜DSML｜ parameter name="o" string="false">{"é": [null, true]}</｜DSML｜ parameter>\n'
        '</｜DSML｜ invoke>\n<｜DSML｜ invoke name="g">\n</｜DSML｜ invoke>\n</｜DSML｜ calls>',
        "E",
    )
    with pytest.raises(TemplateFault, match="must be an object"):
        render(
            HELLO, says("assistant", "", tool_calls=[{"function": {"name": "f", "arguments": "1"}}])
        )


def test_with_tools_all_reasoning_is_kept_and_every_header_opens_it() -> None:
    turns = (
        HELLO,
        says("assistant", "a", reasoning_content="r", tool_calls=[call("f", "1")]),
        result("R", "1"),
        says("assistant", "b", reasoning="s"),
        says("user", "q"),
    )
    tool = {"type": "function", "function": {"name": "f", "description": "é"}}
    rendered = render(*turns, tools=[tool])
    head, _, rest = rendered.partition(TOKENS["U"])
    assert head.startswith(shown("B", "S", THINK, "\n\n## Tools\n\n"))
    assert '### Available Tool Schemas\n\n{"name": "f", "description": "é"}\n' in head
    assert rest.startswith(shown("hello", "A", "<think>r</think>a\n\n<｜DSML｜ calls>\n"))
    assert rest.endswith(shown("A", "<think>s</think>b", "E", "U", "q", "A", "<think>"))


def test_reasoning_since_the_last_question_is_kept_over_tool_results() -> None:
    turns = (
        says("user", "q"),
        says("assistant", "a", reasoning_content="r", tool_calls=[call("f", "1")]),
        result("R", "1"),
    )
    rendered = render(*turns)
    assert shown("U", "q", "A", "<think>r</think>a") in rendered
    assert rendered.endswith(shown("<tool_result>R</tool_result>", "A", "<think>"))


def test_parts_of_content_and_an_unknown_role() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image_url"}, {"type": "text", "text": "b"}]
    assert render(says("user", parts), **OFF) == shown("B", "U", "ab", "A", "</think>")
    with pytest.raises(TemplateFault, match="no such role: chef"):
        render(says("chef", "x"))
