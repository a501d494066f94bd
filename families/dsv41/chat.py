"""How DeepSeek-V4.1 writes chats (spec dsv41, section 5): roles as tokens, calls in DSML.

Nothing stands between turns but what is shown here. `thinking` or `enable_thinking` false, or
`reasoning_effort` none, closes the reasoning at once. The words that explain tools are those of the
checkpoint's own encoder where it comes with one (`wording`), else our own.
"""

from __future__ import annotations

import json

from tensorfold.core.family_api import ChatFormat
from tensorfold.families.common.chat import SORT_RESULTS, TEXT_OF
from tensorfold.families.dsv41.wording import Wording

# What the messages say of the whole: whether to think, and how hard.
MODE = r"""
{%- set switched_off = (thinking is defined and thinking is false)
    or (enable_thinking is defined and enable_thinking is false)
    or reasoning_effort == "none" -%}
{%- set thinks = not switched_off -%}
{%- set efforts = {"low": 50, "high": 75, "xhigh": 75, "max": 100} -%}
{%- if reasoning_effort is integer and reasoning_effort is not boolean -%}
    {%- if not 1 <= reasoning_effort <= 100 -%}
        {{- raise_exception("reasoning_effort must be from 1 to 100") -}}
    {%- endif -%}
    {%- set effort = reasoning_effort -%}
{%- else -%}
    {%- set effort = efforts.get(reasoning_effort, 75) -%}
{%- endif -%}
"""

TOOLS = r"""
{%- macro tools_of(tools) -%}
    {{- "\n\n## Tools\n\nYou have tools to help with the user's question. To use them, write a "
        ~ "block like this one in your answer:\n\n"
        ~ "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"$TOOL_NAME\">\n"
        ~ "<｜DSML｜ parameter name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE"
        ~ "</｜DSML｜ parameter>\n...\n</｜DSML｜ invoke>\n"
        ~ "<｜DSML｜ invoke name=\"$TOOL_NAME2\">\n...\n</｜DSML｜ invoke>\n</｜DSML｜ calls>\n\n"
        ~ "Write a text as it is, with string=\"true\"; write any other value as JSON, with "
        ~ "string=\"false\".\n\nWhen you think, do so inside <think>...</think> before any calls."
        ~ "\n\n### Available Tool Schemas\n\n" -}}
    {%- for tool in tools -%}
        {{- (tool.function or tool) | tojson ~ "\n" -}}
    {%- endfor -%}
    {{- "\nKeep to these schemas in your calls." -}}
{%- endmacro -%}
"""

CALLS = r"""
{%- macro calls_of(calls) -%}
    {{- "\n\n<｜DSML｜ calls>\n" -}}
    {%- for call in calls -%}
        {%- set function = call.function or call -%}
        {{- "<｜DSML｜ invoke name=\"" ~ function.name ~ "\">\n" -}}
        {%- if function.arguments is mapping -%}
            {%- for name, value in function.arguments.items() -%}
                {{- "<｜DSML｜ parameter name=\"" ~ name ~ "\" string=\""
                    ~ ("true" if value is string else "false") ~ "\">"
                    ~ (value if value is string else value | tojson)
                    ~ "</｜DSML｜ parameter>\n" -}}
            {%- endfor -%}
        {%- elif function.arguments -%}
            {{- raise_exception("the arguments of a tool call must be an object") -}}
        {%- endif -%}
        {{- "</｜DSML｜ invoke>\n" -}}
    {%- endfor -%}
    {{- "</｜DSML｜ calls>" -}}
{%- endmacro -%}
"""

# A turn of the user's counts as the last one unless it is made of tool results alone; reasoning
# before it is left out, unless there are tools.
ASKED = r"""
{%- set asked = namespace(last=-1) -%}
{%- for message in messages -%}
    {%- if message.role in ["user", "developer"] or (message.role == "system" and loop.index0) -%}
        {%- set asked.last = loop.index0 -%}
    {%- endif -%}
{%- endfor -%}
{%- macro header_of(index) -%}
    {%- set opens = thinks and (tools or index > asked.last) -%}
    {{- "<｜Assistant｜>" ~ ("<think>" if opens else "</think>") -}}
{%- endmacro -%}
{%- macro assistant_of(message, index) -%}
    {%- if thinks and (tools or index > asked.last) -%}
        {%- if message.reasoning_content is string -%}
            {{- message.reasoning_content -}}
        {%- elif message.reasoning is string -%}
            {{- message.reasoning -}}
        {%- endif -%}
        {{- "</think>" -}}
    {%- endif -%}
    {{- text_of(message.content) -}}
    {%- if message.tool_calls -%}
        {{- calls_of(message.tool_calls) -}}
    {%- endif -%}
    {{- "<｜end▁of▁sentence｜>" -}}
{%- endmacro -%}
"""

HEAD = r"""
{{- "<｜begin▁of▁sentence｜>" -}}
{%- set first_system = messages and messages[0].role == "system" -%}
{%- if thinks or first_system or tools -%}
    {{- "<｜System｜>" -}}
    {%- if thinks -%}
        {{- "Reasoning Effort: " ~ effort ~ " (range 1-100, the higher the value, the more "
            ~ "thorough the reasoning)\n\n" -}}
    {%- endif -%}
    {%- if first_system -%}
        {{- text_of(messages[0].content) -}}
    {%- endif -%}
    {%- if tools -%}
        {{- tools_of(tools) -}}
    {%- endif -%}
{%- endif -%}
"""

TURNS = r"""
{%- set now = namespace(inside=false, calls=[], results=[]) -%}
{%- set sorted = namespace(results=[]) -%}
{%- for message in messages -%}
    {%- if message.role == "system" -%}
        {%- if loop.index0 -%}
            {{- "<｜System｜>" ~ text_of(message.content) -}}
        {%- endif -%}
        {%- set now.inside = false -%}
    {%- elif message.role in ["user", "developer"] -%}
        {{- ("\n\n" if now.inside else "<｜User｜>") ~ text_of(message.content) -}}
        {%- set now.inside = true -%}
    {%- elif message.role == "tool" -%}
        {%- set now.results = now.results + [message] -%}
        {%- if loop.last or loop.nextitem.role != "tool" -%}
            {{- sort_results(sorted, now.results, now.calls) -}}
            {%- for result in sorted.results -%}
                {{- ("\n\n" if now.inside else "<｜User｜>") ~ "<tool_result>"
                    ~ text_of(result.content) ~ "</tool_result>" -}}
                {%- set now.inside = true -%}
            {%- endfor -%}
            {%- set now.results = [] -%}
        {%- endif -%}
    {%- elif message.role == "assistant" -%}
        {{- header_of(loop.index0) ~ assistant_of(message, loop.index0) -}}
        {%- set now.calls = message.tool_calls or [] -%}
        {%- set now.inside = false -%}
    {%- else -%}
        {{- raise_exception("no such role: " ~ message.role) -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- header_of(messages | length) -}}
{%- endif -%}
"""


def format_with(tools: str) -> ChatFormat:
    """`tools` is the macro that explains them."""
    return ChatFormat(
        template=TEXT_OF + SORT_RESULTS + MODE + tools + CALLS + ASKED + HEAD + TURNS,
        think_open="<think>",
        think_close="</think>",
        end_tokens=("<｜end▁of▁sentence｜>",),
    )


def worded(wording: Wording) -> ChatFormat:
    """The format with a checkpoint's own words around the schemas, one a line."""
    before, after = (json.dumps(text, ensure_ascii=False) for text in wording)
    return format_with(
        '{%- macro tools_of(tools) -%}{{- "\\n\\n" ~ '
        + before
        + " -}}{%- for tool in tools -%}{{- (tool.function or tool) | tojson -}}"
        + '{{- "" if loop.last else "\\n" -}}{%- endfor -%}{{- '
        + after
        + " -}}{%- endmacro -%}"
    )


CHAT = format_with(TOOLS)
