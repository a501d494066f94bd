"""Chat templates, which come with checkpoints and are not trusted.

A template runs in jinja2's immutable sandbox. On top of that its syntax tree is rewritten before
it is compiled: every loop and macro takes a counted step, and every operation that can make a
value larger is checked, so that a template ends in an error instead of taking the machine.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import wraps
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MOST_SOURCE = 1 << 20
MOST_STEPS = 5_000_000
MOST_SECONDS = 5.0
# Characters or items of one value: enough for a chat of the largest body, escaped.
MOST_SIZE = 1 << 27
# Two sizes multiplied bound what `replace` and `join` can make.
MOST_PRODUCT = 1 << 30
# Fill characters that one call may ask for, and a format string that asks for more.
MOST_PADDING = 1 << 20
WIDE = re.compile(r"[%{:.*]\D?\d{7}")
CLOCK_EVERY = 256


class TemplateFault(Exception):
    """A template that cannot be used, or cannot render this chat; the message says why."""


class Budget:
    """Steps and processor seconds of one rendering. Seconds of its own thread: waiting is free."""

    def __init__(self, most_seconds: float) -> None:
        self.steps = 0
        self.end = time.thread_time() + most_seconds

    def step(self) -> str:
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise TemplateFault("the chat template takes too many steps")
        if self.steps % CLOCK_EVERY == 0 and time.thread_time() > self.end:
            raise TemplateFault("the chat template takes too long")
        return ""


def size_of(value: object) -> int:
    return len(value) if isinstance(value, str | bytes | list | tuple | dict) else 0


def checked(value: Any) -> Any:
    if size_of(value) > MOST_SIZE:
        raise TemplateFault("the chat template makes a value that is too large")
    return value


def check_work(target: object, arguments: Sequence[object]) -> None:
    """Refuse what could make something huge in one call: wide padding, two large values."""
    numbers = (value for value in arguments if isinstance(value, int))
    if any(abs(number) > MOST_PADDING for number in numbers):
        raise TemplateFault("the chat template pads with a number that is too large")
    sizes = sorted((max(1, size_of(value)) for value in (target, *arguments)), reverse=True)
    if len(sizes) > 1 and sizes[0] * sizes[1] > MOST_PRODUCT:
        raise TemplateFault("the chat template makes a value that is too large")


def check_format(text: object) -> None:
    if isinstance(text, str) and WIDE.search(text):
        raise TemplateFault("the chat template formats with a number that is too large")


def bounded(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter whose arguments and result are checked; jinja2's marks on it are kept."""
    first = 1 if getattr(function, "jinja_pass_arg", None) is not None else 0

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        check_work(args[first], [*args[first + 1 :], *kwargs.values()])
        return checked(function(*args, **kwargs))

    return call


def joined(*parts: object) -> str:
    """What `~` does."""
    texts = [str(part) for part in parts]
    if sum(map(len, texts)) > MOST_SIZE:
        raise TemplateFault("the chat template makes a value that is too large")
    return "".join(texts)


def tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    """JSON as templates expect it: nothing is escaped for HTML."""
    known = {name: options[name] for name in ("indent", "separators", "sort_keys") & options.keys()}
    return json.dumps(value, ensure_ascii=ensure_ascii, **known)


def format_text(value: str, *args: Any, **kwargs: Any) -> str:
    """What jinja2's `format` filter does."""
    check_format(value)
    return value % (kwargs or args)


def raise_exception(message: object) -> None:
    raise TemplateFault(str(message))


def strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


class GenerationTag(Extension):
    """`{% generation %}` marks what a model wrote; for serving its body is all there is to it."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Counted(NodeTransformer):
    """Puts a step into the body of every loop and macro, and a checked call for every `~`."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.body.insert(0, step_node())
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Macro:
        self.generic_visit(node)
        node.body.insert(0, step_node())
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Call:
        self.generic_visit(node)
        return nodes.Call(nodes.Name("joined__", "load"), node.nodes, [], None, None)


def step_node() -> nodes.Output:
    return nodes.Output([nodes.Call(nodes.Name("step__", "load"), [], [], None, None)])


class Sandbox(ImmutableSandboxedEnvironment):
    """The sandbox, with sizes checked where values are made."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationTag]
        )
        self.filters = {name: bounded(filter) for name, filter in self.filters.items()}
        self.filters["tojson"] = bounded(tojson)
        self.filters["format"] = bounded(format_text)
        # It writes as much text as it is asked to, without a step.
        self.globals.pop("lipsum", None)
        self.globals.update(raise_exception=raise_exception, strftime_now=strftime_now)

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        """Stop a template where it reaches for what it may not have, not where it uses it."""
        raise TemplateFault(f"the chat template reaches for {attribute!r}, which is not allowed")

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            raise TemplateFault("the chat template uses **, which is not allowed")
        if operator == "*":
            repeated = max(size_of(left) * as_count(right), size_of(right) * as_count(left))
            if repeated > MOST_SIZE:
                raise TemplateFault("the chat template makes a value that is too large")
        if operator == "%":
            check_format(left)
        return checked(super().call_binop(context, operator, left, right))

    def call(*args: Any, **kwargs: Any) -> Any:
        """A call from a template: `self, context, object, *arguments`, as jinja2 has it."""
        # jinja2 wraps `format` of texts.
        method = getattr(args[2], "__wrapped__", args[2])
        target = getattr(method, "__self__", None)
        if isinstance(target, str):
            check_work(target, [*args[3:], *kwargs.values()])
            if method.__name__ in ("format", "format_map"):
                check_format(target)
        return checked(ImmutableSandboxedEnvironment.call(*args, **kwargs))


def as_count(value: object) -> int:
    return max(0, value) if isinstance(value, int) else 0


class ChatTemplate:
    """A compiled template. `source` names it in messages. Raises `TemplateFault`."""

    def __init__(self, text: str, most_seconds: float = MOST_SECONDS) -> None:
        if len(text) > MOST_SOURCE:
            raise TemplateFault(f"the chat template is longer than {MOST_SOURCE} characters")
        self.most_seconds = most_seconds
        environment = Sandbox()
        try:
            self.template = environment.from_string(Counted().visit(environment.parse(text)))
        except (TemplateError, RecursionError, SyntaxError) as error:
            raise TemplateFault(f"the chat template does not compile: {error}") from None

    def render(self, values: Mapping[str, Any]) -> str:
        """The chat as text. Whatever the template does wrong is a `TemplateFault`."""
        budget = Budget(self.most_seconds)
        size = 0
        pieces: list[str] = []
        try:
            for piece in self.template.generate(
                {**values, "step__": budget.step, "joined__": joined}
            ):
                size += len(piece)
                if size > MOST_SIZE:
                    raise TemplateFault("the chat template writes too much")
                pieces.append(piece)
        except TemplateFault:
            raise
        except RecursionError:
            raise TemplateFault("the chat template or the chat is nested too deeply") from None
        # A template is a program of strangers: any error of its own is told, none is ours.
        except Exception as error:
            raise TemplateFault(f"the chat template failed: {error}") from None
        return "".join(pieces)
