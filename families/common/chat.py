"""Pieces of chat templates that families share."""

from __future__ import annotations

# A message's text, be it one text or parts of which only texts are shown.
TEXT_OF = r"""
{%- macro text_of(content) -%}
    {%- if content is string -%}
        {{- content -}}
    {%- elif content is sequence and content is not mapping -%}
        {%- for part in content -%}
            {{- part if part is string else part.text if part.type == "text" -}}
        {%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
"""

# Tool results in the order of the calls when their ids match one to one, else as they came;
# left in `sorted.results`, a namespace of the caller's.
SORT_RESULTS = r"""
{%- macro sort_results(sorted, results, calls) -%}
    {%- set sorted.results = [] -%}
    {%- for call in calls if call.id -%}
        {%- set same = results | selectattr("tool_call_id", "equalto", call.id) | list -%}
        {%- if same | length == 1 and same[0] not in sorted.results -%}
            {%- set sorted.results = sorted.results + same -%}
        {%- endif -%}
    {%- endfor -%}
    {%- if sorted.results | length != results | length -%}
        {%- set sorted.results = results -%}
    {%- endif -%}
{%- endmacro -%}
"""
