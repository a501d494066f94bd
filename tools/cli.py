"""The `tensorfold` command: finds the tool, runs it, and turns its end into an exit code.

0 is success, 1 a check that failed, 2 a start that cannot succeed (told in one sentence), 130 an
interrupt. A tool is a module with `main(arguments) -> int`, imported when it is asked for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple

from tensorfold.core.errors import StartError
from tensorfold.core.version import VERSION


class Tool(NamedTuple):
    """A tool's module in this folder, and what it does in a line."""

    module: str
    help: str


TOOLS = {
    "serve": Tool("serve", "serve a checkpoint's folder or a bundled model over HTTP"),
    "ask": Tool("ask", "send one prompt to a running server and print the reply as it comes"),
    "models": Tool("models", "list the bundled models"),
    "plugins": Tool("show_plugins", "list backends and families, and why some cannot run here"),
    "check": Tool("check", "run the op contract of the backends that can run here"),
    "selfcheck": Tool("selfcheck", "check a served model's promises from a client's side"),
    "parity": Tool("parity", "compare a checkpoint's forward with its golden results"),
    "eval": Tool("eval_tiny", "judge a bundled model's replies to its held-out prompts"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = run(given)
        sys.stdout.flush()
        return code
    except StartError as error:
        print(f"tensorfold: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("tensorfold: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader left; what is still buffered must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def run(given: Sequence[str]) -> int:
    name, rest = (given[0], given[1:]) if given else ("--help", [])
    if name in ("-h", "--help", "help"):
        print(usage())
        return 0
    if name in ("--version", "version"):
        print(f"tensorfold {VERSION}")
        return 0
    if name not in TOOLS:
        raise StartError(f"there is no command {name!r}; there are {', '.join(TOOLS)} and version")
    return int(import_module(module_of(name)).main(rest))


def module_of(name: str) -> str:
    """The tool's module. Raises `StartError` where this install lacks it."""
    from importlib.util import find_spec

    module = f"tensorfold.tools.{TOOLS[name].module}"
    if find_spec(module) is None:
        raise StartError(f"this install has no `tensorfold {name}`")
    return module


def usage() -> str:
    width = max(map(len, TOOLS))
    lines = [f"  {name:<{width}}  {tool.help}" for name, tool in TOOLS.items()]
    lines.append(f"  {'version':<{width}}  print the version")
    head = "usage: tensorfold COMMAND [ARGUMENTS]   (tensorfold COMMAND --help tells more)"
    return "\n".join([head, "", *lines])


if __name__ == "__main__":
    sys.exit(main())
