"""A server over a fake engine in this process, and a client that reads it closely."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from aiohttp import ClientSession

import tensorfold.backends.fake
from tensorfold.backends.fake.engine import FakeEngine
from tensorfold.backends.fake.options import Call, FakeOptions
from tensorfold.core.family_api import ChatFormat
from tensorfold.core.server.app import Serving, serving
from tensorfold.core.settings import Settings
from tensorfold.core.text import Text, load_text

FOLDER = Path(tensorfold.backends.fake.__file__).parent / "tiny"
CHAT, PLAIN = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]
DEFAULTS = FakeOptions()


def fake_text(think: str = "") -> Text:
    """The fake's own text; `think` is the two characters that open and close reasoning."""
    return loaded_text(think)


@cache
def loaded_text(think: str) -> Text:
    chat = ChatFormat(template="", think_open=think[:1], think_close=think[1:])
    return load_text(FOLDER, chat, 97, ())


@dataclass(frozen=True, kw_only=True, slots=True)
class Client:
    """`engine` and `here` are the served side, for tests that look behind the door."""

    session: ClientSession
    engine: FakeEngine
    here: Serving

    async def post(self, path: str, body: Any, **options: Any) -> tuple[int, Any]:
        # A file, because the library warns of large bodies that are bytes.
        data = io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
        headers = {"Content-Type": "application/json", **options.pop("headers", {})}
        async with self.session.post(path, data=data, headers=headers, **options) as response:
            return response.status, await response.json()

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.session.get(path) as response:
            is_json = response.content_type == "application/json"
            return response.status, await (response.json() if is_json else response.text())

    async def chat(self, **fields: Any) -> Any:
        """The body of a chat that must succeed."""
        status, body = await self.post(CHAT, chat(**fields))
        assert status == 200, body
        return body

    async def plain(self, **fields: Any) -> Any:
        status, body = await self.post(PLAIN, {"model": "fake", **fields})
        assert status == 200, body
        return body

    async def stream(self, path: str, body: Any) -> list[Any]:
        """The events of a stream, in order: objects, "[DONE]", and "ping" for a comment."""
        async with self.session.post(path, json=body) as response:
            assert response.status == 200, await response.text()
            return read_events(await response.text())

    async def metrics(self) -> dict[str, float]:
        """Every sample by its name and labels, without the prefix."""
        _, text = await self.get("/metrics")
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        pairs = (line.rsplit(" ", 1) for line in lines)
        return {name.removeprefix("tensorfold:"): float(value) for name, value in pairs}

    async def until(self, figure: str, value: int) -> None:
        """Wait for one of the host's figures."""
        async with asyncio.timeout(5):
            while getattr(self.here.service.host.stats(), figure) != value:
                await asyncio.sleep(0.002)


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "fake", "messages": HELLO, "max_tokens": 8, **fields}


def read_events(text: str) -> list[Any]:
    """Server-sent events as a strict reader takes them."""
    assert text.endswith("\n\n"), text[-40:]
    return [read_event(event) for event in text.split("\n\n")[:-1]]


def read_event(event: str) -> Any:
    if event == ": ping":
        return "ping"
    assert event.startswith("data: "), event
    assert len(event.splitlines()) == 1, event
    data = event.removeprefix("data: ")
    return data if data == "[DONE]" else json.loads(data)


def text_of(events: list[Any], index: int = 0, field: str = "content") -> str:
    """A streamed reply's text, of chats and of completions."""
    found = ""
    for event in events:
        for choice in event["choices"] if isinstance(event, dict) else ():
            if choice["index"] == index:
                delta = choice.get("delta", {"content": choice.get("text", "")})
                found += delta.get(field) or ""
    return found


def slow(seconds: float) -> FakeOptions:
    """An engine whose every round takes this long."""
    import time

    def cost(call: Call) -> float:
        return seconds if call.kind == "round.land" else 0.0

    return FakeOptions(cost=cost, wait=time.sleep)


@asynccontextmanager
async def server(
    options: FakeOptions = DEFAULTS, *, think: str = "", port: int = 0, **changed: Any
) -> AsyncIterator[Client]:
    """A server and its client; afterwards nothing is left open in the engine."""
    engine = FakeEngine(options)
    settings = Settings(port=port, **changed)
    async with (
        serving(
            engine=engine,
            text=fake_text(think),
            settings=settings,
            model="fake",
            aliases=("other",),
        ) as here,
        ClientSession(here.address, read_bufsize=1 << 20) as session,
    ):
        yield Client(session=session, engine=engine, here=here)
    assert engine.slips == []
    assert engine.streams == {}
