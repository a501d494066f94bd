"""How GLM-5.3 writes chats, for checkpoints that come without their own template.

Turns follow one another without newlines. `reasoning_effort` is low, high or (anything else) max;
`enable_thinking` false closes the reasoning at once; `clear_thinking` leaves out the reasoning of
turns before the last user message.
"""

from __future__ import annotations

from tensorfold.core.family_api import ChatFormat
from tensorfold.families.common.chat import SORT_RESULTS, TEXT_OF

HEAD = r"""
{%- set efforts = {"low": "Low", "high": "High"} -%}
{{- "[gMASK]<sop><|system|>Reasoning Effort: " ~ efforts.get(reasoning_effort, "Max") -}}
"""

TOOLS = r"""
{%- if tools -%}
    {{- "<|system|>\n# Tools\n\nYou may call one or more functions to assist with the user "
        ~ "query.\n\nYou are provided with function signatures within <tools></tools> XML tags:\n"
        ~ "<tools>\n" -}}
    {%- for tool in tools -%}
        {%- set function = tool.function or tool -%}
        {%- if not function.defer_loading -%}
            {%- set shown = namespace(pairs=[]) -%}
            {%- for name, value in function.items() if name not in ["strict", "defer_loading"] -%}
                {%- set pair = [name | tojson ~ ": " ~ value | tojson] -%}
                {%- set shown.pairs = shown.pairs + pair -%}
            {%- endfor -%}
            {{- "{" ~ shown.pairs | join(", ") ~ "}\n" -}}
        {%- endif -%}
    {%- endfor -%}
    {{- "</tools>\n\nFor each function call, output the function name and arguments within the "
        ~ "following XML format:\n<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key>"
        ~ "<arg_value>{arg-value-1}</arg_value><arg_key>{arg-key-2}</arg_key>"
        ~ "<arg_value>{arg-value-2}</arg_value>...</tool_call>" -}}
{%- endif -%}
"""

ASSISTANT = r"""
{%- macro call_of(function) -%}
    {{- "<tool_call>" ~ function.name -}}
    {%- if function.arguments is mapping -%}
        {%- for name, value in function.arguments.items() -%}
            {{- "<arg_key>" ~ name ~ "</arg_key><arg_value>" -}}
            {{- value if value is string else value | tojson -}}
            {{- "</arg_value>" -}}
        {%- endfor -%}
    {%- elif function.arguments -%}
        {{- raise_exception("the arguments of a tool call must be an object") -}}
    {%- endif -%}
    {{- "</tool_call>" -}}
{%- endmacro -%}
{%- macro assistant_of(message, with_reasoning) -%}
    {%- set content = text_of(message.content) -%}
    {%- set reasoning = "" -%}
    {%- if message.reasoning_content is string -%}
        {%- set reasoning = message.reasoning_content -%}
    {%- elif message.reasoning is string -%}
        {%- set reasoning = message.reasoning -%}
    {%- elif "</think>" in content -%}
        {%- set before, _, after = content.partition("</think>") -%}
        {%- set reasoning = before.split("<think>")[-1] -%}
        {%- set content = after -%}
    {%- endif -%}
    {{- "<|assistant|><think>" ~ (reasoning.strip() if with_reasoning else "") ~ "</think>" -}}
    {{- content.strip() -}}
    {%- for call in message.tool_calls or [] -%}
        {{- call_of(call.function or call) -}}
    {%- endfor -%}
{%- endmacro -%}
"""

RESULTS = r"""
{%- macro results_of(results, calls) -%}
    {%- set sorted = namespace(results=[]) -%}
    {{- sort_results(sorted, results, calls) -}}
    {{- "<|observation|>" -}}
    {%- for result in sorted.results -%}
        {{- "<tool_response>" ~ text_of(result.content) ~ "</tool_response>" -}}
    {%- endfor -%}
{%- endmacro -%}
"""

TURNS = r"""
{%- set asked = namespace(last=-1) -%}
{%- for message in messages if message.role == "user" -%}
    {%- set asked.last = asked.last + 1 -%}
{%- endfor -%}
{%- set now = namespace(user=-1, calls=[], results=[]) -%}
{%- for message in messages -%}
    {%- if message.role in ["system", "developer"] -%}
        {{- "<|system|>" ~ text_of(message.content) -}}
    {%- elif message.role == "user" -%}
        {%- set now.user = now.user + 1 -%}
        {{- "<|user|>" ~ text_of(message.content) -}}
    {%- elif message.role == "assistant" -%}
        {{- assistant_of(message, not clear_thinking or now.user >= asked.last) -}}
        {%- set now.calls = message.tool_calls or [] -%}
    {%- elif message.role == "tool" -%}
        {%- set now.results = now.results + [message] -%}
        {%- if loop.last or loop.nextitem.role != "tool" -%}
            {{- results_of(now.results, now.calls) -}}
            {%- set now.results = [] -%}
        {%- endif -%}
    {%- else -%}
        {{- raise_exception("no such role: " ~ message.role) -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- "<|assistant|><think>" -}}
    {%- if enable_thinking is defined and not enable_thinking -%}
        {{- "</think>" -}}
    {%- endif -%}
{%- endif -%}
"""

CHAT = ChatFormat(
    template=TEXT_OF + SORT_RESULTS + HEAD + TOOLS + ASSISTANT + RESULTS + TURNS,
    think_open="<think>",
    think_close="</think>",
    end_tokens=("<|endoftext|>", "<|user|>", "<|observation|>"),
)
