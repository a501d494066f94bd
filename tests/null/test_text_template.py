"""Chat templates are programs of strangers: each ends in text or in one clear error."""

from __future__ import annotations

import time

import pytest

from tensorfold.core.text.template import ChatTemplate, TemplateFault

LOOP = "{% for i in range(99999) %}"
ESCAPES = [
    "{{ ''.__class__.__mro__ }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ self.__init__.__globals__ }}",
    "{{ messages.append(1) }}",
    "{{ messages.__class__.__base__.__subclasses__() }}",
    "{{ raise_exception.__globals__ }}",
    "{{ strftime_now.__globals__ }}",
    "{{ step__.__self__.steps }}",
    "{% include 'other' %}",
]
HUGE = [
    "{{ 'a' * 1000000000 }}",
    "{{ 1000000000 * 'a' }}",
    "{{ [1] * 1000000000 }}",
    "{{ 10 ** 10 ** 10 }}",
    "{{ 'a'.ljust(9999999999) }}",
    "{{ 'a' | center(9999999999) }}",
    "{{ 'a' | indent(9999999999) }}",
    "{{ '%9999999999d' % 4 }}",
    "{{ '%9999999999d' | format(4) }}",
    "{{ '{:9999999999d}'.format(4) }}",
    "{{ '{0:{1}d}'.format(1, 9999999999) }}",
    "{{ lipsum(n=1000000) }}",
    "{% set n = namespace(x='a') %}" + LOOP + "{% set n.x = n.x ~ n.x %}{% endfor %}",
    "{% set n = namespace(x='a') %}" + LOOP + "{% set n.x = n.x + n.x %}{% endfor %}",
    "{% set n = namespace(x=[1]) %}" + LOOP + "{% set n.x = n.x + n.x %}{% endfor %}",
    "{% set n = namespace(x='a') %}" + LOOP + "{% set n.x = n.x.replace('a','aa') %}{% endfor %}",
    "{% set n = namespace(x='a') %}" + LOOP + "{% set n.x = n.x|replace('a','aa') %}{% endfor %}",
    LOOP + "{{ 'a' * 100000 }}{% endfor %}",
]
LONG = [
    LOOP + LOOP + "{% endfor %}{% endfor %}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(90) }}",
    "{% for x in messages recursive %}{{ loop(messages) }}{% endfor %}",
]


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits are what is tested, not this machine's patience."""
    monkeypatch.setattr("tensorfold.core.text.template.MOST_SIZE", 1 << 20)
    monkeypatch.setattr("tensorfold.core.text.template.MOST_PRODUCT", 1 << 22)


def render(template: str, **values: object) -> str:
    return ChatTemplate(template, most_seconds=0.1).render({"messages": ["m"], **values})


@pytest.mark.parametrize("template", [*ESCAPES, *HUGE, *LONG])
def test_a_template_that_escapes_grows_or_loops_ends_in_an_error_soon(template: str) -> None:
    began = time.thread_time()
    with pytest.raises(TemplateFault):
        render(template)
    assert time.thread_time() - began < 2


@pytest.mark.parametrize("template", ["{% if %}", "{{ 'x' | nothing }}", "{% for %}", "{{ '"])
def test_a_template_that_does_not_compile_says_so(template: str) -> None:
    with pytest.raises(TemplateFault, match="does not compile"):
        ChatTemplate(template)


def test_a_template_has_a_largest_length() -> None:
    with pytest.raises(TemplateFault, match="longer than"):
        ChatTemplate("a" * (1 << 20) + "a")


def test_blocks_leave_no_lines_behind() -> None:
    assert render("{% if true %}\n  {% set a = 1 %}\nx{{ a }}\n{% endif %}\n") == "x1\n"


def test_json_is_written_as_it_is_and_takes_its_options() -> None:
    values = {"v": {"b": "é<&>'", "a": [1, 2]}}
    assert render("{{ v | tojson }}", **values) == '{"b": "é<&>\'", "a": [1, 2]}'
    assert render("{{ v.a | tojson(indent=1) }}", **values) == "[\n 1,\n 2\n]"
    assert render("{{ v.b | tojson(ensure_ascii=True) }}", **values) == '"\\u00e9<&>\'"'


def test_what_templates_in_use_rely_on_is_there() -> None:
    assert len(render("{{ strftime_now('%Y') }}")) == 4
    assert (
        render("{% for i in [1, 2, 3] %}{{ i }}{% if i == 2 %}{% break %}{% endif %}{% endfor %}")
        == "12"
    )
    assert render("{% generation %}x{% endgeneration %}") == "x"
    assert render("{{ 'a:12345678 '.strip() }}{{ 1795990959 | tojson }}") == "a:123456781795990959"
    with pytest.raises(TemplateFault, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")
