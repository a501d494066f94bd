"""What is typed at a tool: a value that makes no sense is refused by flag and value."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest

from tensorfold.core.errors import StartError
from tensorfold.tools import cli
from tensorfold.tools.arguments import Parser, at_least, exit_code, numbers, seconds


def read(kind: Callable[[str], Any], text: str) -> Any:
    parser = Parser(prog="tool")
    parser.add_argument("--flag", type=kind)
    return parser.parse_args([f"--flag={text}"]).flag


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (at_least(2), "2", 2),
        (numbers, "1,8,32", [1, 8, 32]),
        (numbers, "7", [7]),
        (seconds, "0.5", 0.5),
    ],
)
def test_a_value_that_makes_sense_is_read(
    kind: Callable[[str], Any], text: str, value: Any
) -> None:
    assert read(kind, text) == value


@pytest.mark.parametrize(
    ("kind", "text", "told"),
    [
        (at_least(2), "1", "argument --flag: must be at least 2, not 1"),
        (at_least(2), "two", "argument --flag: must be a whole number, not 'two'"),
        *(
            (numbers, text, f"argument --flag: must be positive numbers with commas, not {text!r}")
            for text in ("", "0", "1,-8", "1,,8", "1,two", "1;8")
        ),
        *(
            (seconds, text, f"seconds, not {text!r}")
            for text in ("0", "-1", "nan", "inf", "1e30", "soon")
        ),
    ],
)
def test_a_value_that_makes_none_is_refused_by_flag_and_value(
    kind: Callable[[str], Any], text: str, told: str
) -> None:
    with pytest.raises(StartError) as caught:
        read(kind, text)
    assert told in str(caught.value)


def test_a_tool_that_is_refused_ends_with_2_and_one_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refused() -> int:
        raise StartError("there is no GPU")

    assert exit_code("bench", lambda: 1) == 1
    assert exit_code("bench", refused) == 2
    assert capsys.readouterr().err == "bench: there is no GPU\n"


@pytest.fixture
def stranger() -> Iterator[Callable[[bytes], str]]:
    """The address of a server that answers everything with these bytes."""
    servers = []

    def begin(body: bytes) -> str:
        class Stranger(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self) -> None:
                self.do_GET()

            def log_message(self, format: str, *arguments: Any) -> None:
                return None

        servers.append(HTTPServer(("127.0.0.1", 0), Stranger))
        Thread(target=servers[-1].serve_forever, args=(0.01,), daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    yield begin
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"data":[{}]}', b"null"])
def test_a_server_that_is_no_openai_server_is_told_so(
    body: bytes, stranger: Callable[[bytes], str], capsys: pytest.CaptureFixture[str]
) -> None:
    base = stranger(body)
    assert cli.main(["ask", "Hello", "--base", base]) == 1
    words = f"tensorfold: no OpenAI-compatible server answers at {base}\n"
    assert capsys.readouterr().err == words


def test_a_stream_of_no_json_breaks_off_in_words(
    stranger: Callable[[bytes], str], capsys: pytest.CaptureFixture[str]
) -> None:
    base = stranger(b"data: <html>\n\n")
    assert cli.main(["ask", "Hello", "--base", base, "--model", "m"]) == 1
    assert "the reply broke off: '<html>' is no JSON" in capsys.readouterr().err


CHUNK = b'data: {"choices":[{"index":0,"delta":{"content":"so far"}}]}\n\n'


@pytest.mark.parametrize(
    ("rest", "words"),
    [
        (b"", "the server closed the stream"),
        (b"data: {", "'{' is no JSON"),
        (b'data: {"error":{"message":"no room is left"}}\n\n', "no room is left"),
        (b'data: {"choices":[],"error":{"message":"no room is left"}}\n\n', "no room is left"),
        (b'data: {"error":"no room"}\n\n', '{"error":"no room"}'),
        (b"data: [1]\n\n", "'[1]' is no event"),
        (b'data: {"choices":[null]}\n\n', "{'choices': [None]} is no chunk"),
        (b'data: {"choices":[{"delta":5}]}\n\n', "is no chunk"),
        (b'data: {"choices":[{"delta":{"content":5}}]}\n\n', "is no chunk"),
    ],
)
def test_a_reply_that_breaks_off_is_not_taken_for_a_whole_one(
    rest: bytes,
    words: str,
    stranger: Callable[[bytes], str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    base = stranger(CHUNK + rest + (b"data: [DONE]\n\n" if words == "is no chunk" else b""))
    assert cli.main(["ask", "Hello", "--base", base, "--model", "m"]) == 1
    printed, told = capsys.readouterr()
    assert printed == "so far"
    assert told.startswith("tensorfold: the reply broke off: ")
    assert words in told
    assert told.count("\n") == 1


def test_a_null_error_of_another_server_is_none(
    stranger: Callable[[bytes], str], capsys: pytest.CaptureFixture[str]
) -> None:
    base = stranger(CHUNK.replace(b'{"choices', b'{"error":null,"choices') + b"data: [DONE]\n\n")
    assert cli.main(["ask", "Hello", "--base", base, "--model", "m"]) == 0
    assert capsys.readouterr() == ("so far\n", "")
