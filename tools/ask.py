"""`tensorfold ask`: one prompt against a running server, the reply printed as it comes."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, TextIO
from urllib.parse import urlsplit

from tensorfold.core.errors import StartError
from tensorfold.tools.arguments import Parser, seconds

BASE = "http://127.0.0.1:8000"
# Characters of an answer that cannot be read.
SHOWN = 200


class AskError(Exception):
    """A reply that did not come or did not end, told in one sentence."""


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments)
    prompt = sys.stdin.read() if options.prompt == "-" else options.prompt
    try:
        ask(options, prompt, sys.stdout)
    except AskError as error:
        sys.stdout.flush()
        print(f"tensorfold: {error}", file=sys.stderr)
        return 1
    return 0


def parser() -> Parser:
    flags = Parser(prog="tensorfold ask", description=__doc__)
    flags.add_argument("prompt", help="the prompt's text; - reads it from standard input")
    flags.add_argument("--base", default=BASE, metavar="URL", help=f"the server [{BASE}]")
    flags.add_argument("--model", default="", metavar="NAME", help="the model [the served one]")
    flags.add_argument("--system", default="", metavar="TEXT", help="a system message before it")
    flags.add_argument("--raw", action="store_true", help="complete the text as it is, no chat")
    flags.add_argument("--max-tokens", type=int, metavar="N", help="most tokens of the reply")
    flags.add_argument("--temperature", type=float, metavar="X", help="0 takes the likeliest")
    flags.add_argument("--seed", type=int, metavar="N", help="repeats a sampled reply")
    flags.add_argument(
        "--timeout",
        type=seconds,
        default=600.0,
        metavar="SECONDS",
        help="most between parts of the reply [600]",
    )
    flags.add_argument("--receipt", action="store_true", help="print the reply's receipt after it")
    return flags


def ask(options: argparse.Namespace, prompt: str, out: TextIO) -> None:
    """Print the reply to `prompt` as it comes. Raises `AskError`, `StartError` for a bad base."""
    receipt: Any = None
    with closing(Server(options.base, options.timeout)) as server:
        path, body = request(options, prompt, options.model or server.only_model())
        for event in server.stream(path, body):
            receipt = event.get("tensorfold", receipt)
            try:
                texts = [text_of(choice) for choice in event.get("choices") or ()]
            except (AttributeError, TypeError):
                raise AskError(f"the reply broke off: {event!r:.{SHOWN}} is no chunk") from None
            out.writelines(texts)
            out.flush()
    out.write("\n")
    if options.receipt:
        out.write(json.dumps(receipt, indent=2, ensure_ascii=False) + "\n")


def request(options: argparse.Namespace, prompt: str, model: str) -> tuple[str, dict[str, Any]]:
    """The route and the body that ask for a streamed reply."""
    body: dict[str, Any] = {"model": model, "stream": True}
    for name in ("max_tokens", "temperature", "seed"):
        if getattr(options, name) is not None:
            body[name] = getattr(options, name)
    if options.raw:
        return "/v1/completions", {**body, "prompt": prompt}
    system = [{"role": "system", "content": options.system}] if options.system else []
    messages = [*system, {"role": "user", "content": prompt}]
    return "/v1/chat/completions", {**body, "messages": messages}


def text_of(choice: dict[str, Any]) -> str:
    delta = choice.get("delta") or {}
    reasoning = delta.get("reasoning") or delta.get("reasoning_content") or ""
    return reasoning + (delta.get("content") or choice.get("text") or "")


class Server:
    """One connection to an OpenAI-compatible server."""

    def __init__(self, base: str, timeout: float) -> None:
        address = urlsplit(base if "//" in base else f"http://{base}")
        try:
            port = address.port
        except ValueError:
            raise StartError(f"--base {base} has no usable port") from None
        if address.scheme not in ("http", "https") or not address.hostname:
            raise StartError(f"--base must be an address such as {BASE}, not {base!r}")
        kind = HTTPSConnection if address.scheme == "https" else HTTPConnection
        self.base = base
        self.root = address.path.rstrip("/").removesuffix("/v1")
        self.connection = kind(address.hostname, port, timeout=timeout)
        # A response keeps its socket until it is read to its end or closed.
        self.responses: list[HTTPResponse] = []

    def close(self) -> None:
        for response in self.responses:
            response.close()
        self.connection.close()

    def only_model(self) -> str:
        """The first model that the server lists."""
        body = self.send("GET", "/v1/models").read()
        try:
            listed = [str(card["id"]) for card in json.loads(body)["data"]]
        except (ValueError, KeyError, TypeError):
            raise AskError(f"no OpenAI-compatible server answers at {self.base}") from None
        if not listed:
            raise AskError(f"the server at {self.base} serves no model")
        return listed[0]

    def stream(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The events of a streamed reply, to its `[DONE]`."""
        response = self.send("POST", path, json.dumps(body).encode())
        for data in self.events(response):
            if data == "[DONE]":
                return
            try:
                event = json.loads(data)
            except ValueError:
                raise AskError(f"the reply broke off: {data[:SHOWN]!r} is no JSON") from None
            if not isinstance(event, dict):
                raise AskError(f"the reply broke off: {data[:SHOWN]!r} is no event")
            if event.get("error"):
                raise AskError(f"the reply broke off: {message_of(data.encode())}")
            yield event
        raise AskError("the reply broke off: the server closed the stream")

    def events(self, response: HTTPResponse) -> Iterator[str]:
        try:
            for line in response:
                if line.startswith(b"data:"):
                    yield line[5:].strip().decode()
        except (OSError, HTTPException) as error:
            raise AskError(f"the reply broke off: {error}") from None

    def send(self, method: str, path: str, body: bytes | None = None) -> HTTPResponse:
        try:
            headers = {"Content-Type": "application/json"}
            self.connection.request(method, self.root + path, body, headers)
            response = self.connection.getresponse()
            self.responses.append(response)
        except (OSError, HTTPException) as error:
            raise AskError(f"no server answers at {self.base}: {error}") from None
        if response.status != 200:
            raise AskError(f"the server answered {response.status}: {message_of(response.read())}")
        return response


def message_of(body: bytes) -> str:
    """An error's message, out of the answer's body as far as it has one."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body[:SHOWN].decode(errors="replace")
