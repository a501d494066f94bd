"""Requests that end early, readers that are slow, and servers that end."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from typing import Any

import pytest

from tensorfold.backends.fake.options import Call, FakeOptions, Trouble
from tensorfold.core.errors import EngineFault, EngineLost, StartError
from tensorfold.core.lane_host.stream import HostStats
from tensorfold.core.server.app import Serving, until_over
from tensorfold.core.server.sse import EventStream
from tests.null.calling import CHAT, PLAIN, Client, chat, read_events, server, slow, text_of

pytestmark = pytest.mark.asyncio
LONG = {"model": "fake", "prompt": "abc", "max_tokens": 4000, "ignore_eos": True}


class Gate:
    """Holds an engine at its next call of a kind until it is opened."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.reached = threading.Event()
        self.opened = threading.Event()

    def __call__(self, call: Call) -> None:
        if call.kind == self.kind:
            self.reached.set()
            assert self.opened.wait(10)

    async def wait_reached(self) -> None:
        assert await asyncio.to_thread(self.reached.wait, 10)


async def first_bytes(client: Client, body: Any, path: str = PLAIN) -> Any:
    """A stream whose reader has seen its beginning and reads no more by itself."""
    response = await client.session.post(path, json={**body, "stream": True})
    assert response.status == 200
    await response.content.readany()
    return response


# -- leaving -----------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_while_its_reply_is_made_frees_its_lane(stream: bool) -> None:
    async with server(slow(0.002)) as client:
        if stream:
            (await first_bytes(client, LONG)).close()
        else:
            asked = asyncio.create_task(client.post(PLAIN, LONG))
            await client.until("live", 1)
            asked.cancel()
        await client.until("aborted", 1)
        await asyncio.sleep(0.02)
        assert client.engine.streams == {}
        assert client.engine.counts["round"] < 200
        assert client.here.service.mailroom.inboxes == {}
        await client.chat()


async def test_a_client_that_leaves_while_its_prompt_runs_frees_its_lane() -> None:
    gate = Gate("fill.land")
    async with server(FakeOptions(hook=gate, chunk_rows=16)) as client:
        asked = asyncio.create_task(
            client.post(PLAIN, LONG | {"prompt": [1] * 64, "max_tokens": 9})
        )
        await gate.wait_reached()
        asked.cancel()
        await asyncio.sleep(0.02)
        gate.opened.set()
        await client.until("aborted", 1)
        # The rest of the prompt was not run, and no round was.
        assert client.engine.counts["fill"] == 1
        assert "round" not in client.engine.counts
        await client.chat()


async def test_a_client_that_leaves_while_it_waits_is_never_seated() -> None:
    gate = Gate("round.land")
    async with server(FakeOptions(hook=gate, lanes=1)) as client:
        first = asyncio.create_task(client.plain(prompt="abc", max_tokens=5))
        await gate.wait_reached()
        second = asyncio.create_task(client.post(PLAIN, LONG))
        await client.until("waiting", 1)
        second.cancel()
        await asyncio.sleep(0.02)
        gate.opened.set()
        await first
        await client.until("aborted", 1)
        assert client.engine.counts["open"] == 1
        figures = await client.metrics()
    # It had no first token, and counts as none.
    assert figures["requests_started_total"] == 2
    assert figures["time_to_first_token_seconds_count"] == 1


async def test_leaving_one_of_many_changes_nothing_for_the_others() -> None:
    body = {"prompt": "abc", "max_tokens": 60, "seed": 4, "ignore_eos": True}
    async with server(slow(0.001)) as client:
        alone = await client.plain(**body)
        leaving = [await first_bytes(client, LONG) for _ in range(3)]
        staying = asyncio.create_task(client.plain(**body))
        await client.until("live", 4)
        for response in leaving:
            response.close()
        beside = await staying
        await client.until("aborted", 3)
    hashes = [one["tensorfold"]["token_sha256"] for one in (alone, beside)]
    assert hashes[0] == hashes[1]


# -- silence and slowness ----------------------------------------------------------------------


async def test_a_silent_stream_is_kept_alive_by_comments_and_begins_before_its_prompt_ran() -> None:
    gate = Gate("fill")
    async with (
        server(FakeOptions(hook=gate), keepalive=0.01) as client,
        client.session.post(CHAT, json=chat(stream=True)) as response,
    ):
        seen = await response.content.readuntil(b": ping\n\n")
        gate.opened.set()
        events = read_events((seen + await response.read()).decode())
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert events[1] == "ping"
    assert events[-1] == "[DONE]"


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_a_reader_that_takes_nothing_is_dropped_alone(
    stream: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = EventStream.open

    async def open_narrow(events: EventStream) -> None:
        await opened(events)
        inner = events.transport.get_extra_info("socket")
        inner.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)

    # The system's own buffers would hold megabytes.
    monkeypatch.setattr(EventStream, "open", open_narrow)
    chatty = LONG | {"max_tokens": 800, "logprobs": 5, "stream": stream}
    async with server(reader_timeout=0.1) as client:
        address, port = client.here.address.removeprefix("http://").split(":")
        narrow = socket.socket()
        narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        narrow.connect((address, int(port)))
        reader, writer = await asyncio.open_connection(sock=narrow, limit=1024)
        body = json.dumps(chatty).encode()
        head = f"POST {PLAIN} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        await reader.readexactly(10)
        await client.plain(prompt="abc", max_tokens=400)
        async with asyncio.timeout(5):
            while client.here.service.mailroom.inboxes:
                await asyncio.sleep(0.01)
        writer.transport.abort()
        await client.chat()
    assert "the reader took nothing for 0.1 s" in caplog.text


# -- faults ------------------------------------------------------------------------------------


async def test_a_fault_of_one_reply_is_told_to_its_reader_and_to_no_other() -> None:
    troubles = (Trouble(kind="round.land", stream=2, fault="logits are not finite"),)
    gate = Gate("round.land")
    body = {"prompt": "abc", "max_tokens": 20, "ignore_eos": True}
    async with server(FakeOptions(hook=gate, troubles=troubles)) as client:
        first = asyncio.create_task(client.plain(**body))
        await gate.wait_reached()
        hurt = asyncio.create_task(client.post(PLAIN, {"model": "fake", **body}))
        await client.until("started", 2)
        gate.opened.set()
        status, answer = await hurt
        assert (status, answer["error"]["type"]) == (500, "internal_error")
        assert "not finite" in answer["error"]["message"]
        alone = await client.plain(**body)
        assert (await first)["choices"] == alone["choices"]


async def test_an_error_inside_a_stream_makes_up_no_reason_and_no_done() -> None:
    troubles = (Trouble(kind="round", call=4, error=EngineFault("the call failed")),)
    async with server(FakeOptions(troubles=troubles)) as client:
        async with client.session.post(PLAIN, json={**LONG, "stream": True}) as response:
            events = read_events(await response.text())
        *told, error = events
        assert set(error["error"]) == {"message", "type", "param", "code"}
        assert "the call failed" in error["error"]["message"]
        assert all(event["choices"][0]["finish_reason"] is None for event in told)
        await client.chat()
        assert client.here.service.host.stats().failed == 1


async def test_when_the_engine_is_lost_every_reader_has_its_end_and_health_says_why() -> None:
    gate = Gate("round.land")
    troubles = (Trouble(kind="round", call=1, error=EngineLost("the device fell off")),)
    async with server(FakeOptions(hook=gate, lanes=1, troubles=troubles)) as client:
        streamed = await first_bytes(client, LONG)
        await gate.wait_reached()
        waiting = asyncio.create_task(client.post(PLAIN, LONG))
        await client.until("waiting", 1)
        gate.opened.set()
        status, answer = await waiting
        assert (status, "the device fell off" in answer["error"]["message"]) == (503, True)
        events = (await streamed.read()).decode()
        assert "the device fell off" in events
        assert "[DONE]" not in events
        for path in ("/health", "/v1/health"):
            status, answer = await client.get(path)
            assert (status, "the device fell off" in answer["error"]["message"]) == (503, True)
        async with client.session.post(CHAT, json=chat()) as response:
            assert response.status == 503
            assert int(response.headers["Retry-After"]) > 0
        assert "the device fell off" in (await client.get("/"))[1]
        client.engine.streams.clear()


async def test_a_full_queue_answers_429_with_the_time_to_come_back() -> None:
    gate = Gate("round.land")
    async with server(FakeOptions(hook=gate, lanes=1), queue_requests=1) as client:
        asked = [asyncio.create_task(client.plain(prompt="abc", max_tokens=3))]
        await gate.wait_reached()
        asked.append(asyncio.create_task(client.plain(prompt="abc", max_tokens=3)))
        await client.until("waiting", 1)
        for body in (chat(), chat(stream=True)):
            async with client.session.post(CHAT, json=body) as response:
                assert response.status == 429
                assert int(response.headers["Retry-After"]) >= 1
                assert (await response.json())["error"]["code"] == "queue_full"
        gate.opened.set()
        await asyncio.gather(*asked)


# -- the end -----------------------------------------------------------------------------------


async def test_shutting_down_lets_replies_end_and_refuses_new_work() -> None:
    async with server(slow(0.002)) as client:
        asked = asyncio.create_task(client.plain(prompt="abc", max_tokens=60, ignore_eos=True))
        await client.until("live", 1)
        client.here.closing.begin(10)
        await client.until("closing", True)
        for status, answer in (await client.get("/health"), await client.post(CHAT, chat())):
            assert status == 503
            assert answer["error"]["message"] == "the server is shutting down"
        assert (await asked)["usage"]["completion_tokens"] == 60
        assert await client.here.closing.wait(5)


async def test_what_is_not_done_in_time_ends_with_the_reason() -> None:
    async with server(slow(0.002)) as client:
        streamed = await first_bytes(client, LONG)
        whole = asyncio.create_task(client.post(PLAIN, LONG))
        await client.until("live", 2)
        client.here.closing.begin(0.02)
        status, answer = await whole
        assert (status, answer["error"]["message"]) == (503, "the server is shutting down")
        *_, error = read_events("data: {}\n\n" + (await streamed.read()).decode())
        assert error["error"]["message"] == "the server is shutting down"


async def watch(here: Serving, numbers: list[int], seen: list[HostStats]) -> tuple[int, float]:
    """The exit code after these signals, and the seconds it took."""
    signals = asyncio.Queue[int]()
    clock = asyncio.get_running_loop().time
    began = clock()
    for number in numbers:
        signals.put_nowait(number)
    return await until_over(here, signals, seen.append), clock() - began


async def test_exit_codes_and_second_signals() -> None:
    seen: list[HostStats] = []
    async with server(slow(0.002)) as client:
        assert (await watch(client.here, [15], seen))[0] == 0
        assert seen
    async with server(slow(0.002), shutdown_timeout=60) as client:
        asked = asyncio.create_task(client.post(PLAIN, LONG))
        await client.until("live", 1)
        code, seconds = await watch(client.here, [15, 15], seen)
        assert (code, seconds < 5, (await asked)[0]) == (0, True, 503)


async def test_a_lost_engine_is_an_exit_code_after_the_drain_time() -> None:
    troubles = (Trouble(kind="round", call=0, error=EngineLost("gone")),)
    async with server(FakeOptions(troubles=troubles), shutdown_timeout=0.05) as client:
        assert (await client.post(CHAT, chat()))[0] == 503
        code, seconds = await watch(client.here, [], [])
        assert (code, seconds >= 0.05) == (1, True)
        client.engine.streams.clear()


async def test_an_engine_that_hangs_does_not_keep_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tensorfold.core.server.app.LAST_SECONDS", 0.05)
    monkeypatch.setattr("tensorfold.core.server.app.LOOK_SECONDS", 0.01)
    gate = Gate("round.land")
    async with server(FakeOptions(hook=gate), shutdown_timeout=0.0) as client:
        asked = asyncio.create_task(client.post(PLAIN, LONG))
        await gate.wait_reached()
        assert (await watch(client.here, [15], []))[0] == 1
        gate.opened.set()
        assert (await asked)[0] == 503


async def test_a_port_that_is_taken_is_one_sentence() -> None:
    async with server() as client:
        port = int(client.here.address.rsplit(":", 1)[1])
        with pytest.raises(StartError, match=f"cannot listen on 127.0.0.1 port {port}: "):
            async with server(port=port):
                pass


# -- figures -----------------------------------------------------------------------------------


async def test_the_figures_add_up() -> None:
    troubles = (Trouble(kind="round.land", stream=3, fault="hurt"),)
    cost = slow(0.001)
    options = FakeOptions(troubles=troubles, cost=cost.cost, wait=cost.wait)
    async with server(options) as client:
        await client.chat(max_tokens=1)
        await client.plain(prompt="abc", max_tokens=30, ignore_eos=True)
        assert (await client.post(CHAT, chat()))[0] == 500
        (await first_bytes(client, LONG)).close()
        await client.until("aborted", 1)
        live = await first_bytes(client, LONG)
        figures = await client.metrics()
        live.close()
        await client.until("aborted", 2)
        later = await client.metrics()
    assert figures["requests_started_total"] == 5
    assert figures["num_requests_running"] == 1
    ended = ("finished", "failed", "aborted")
    for one in (figures, later):
        counts = [one[f"requests_{name}_total"] for name in ended]
        running = one["num_requests_running"] + one["num_requests_waiting"]
        assert one["requests_started_total"] == sum(counts) + running
        reasons = [value for name, value in one.items() if name.startswith("request_success")]
        assert sum(reasons) == sum(counts)
    assert figures["requests_finished_total"] == 2
    assert later["time_to_first_token_seconds_count"] == later["requests_started_total"] == 5
    assert later['request_success_total{finished_reason="abort"}'] == 2
    assert later['http_responses_total{route="/v1/chat/completions",status="500"}'] == 1
    assert later["generation_tokens_total"] >= 31 + 2
    assert later["num_requests_running"] == 0
    for name, value in figures.items():
        if name.split("{")[0].endswith(("_total", "_count", "_sum", "_bucket")):
            assert later[name] >= value, name


async def test_the_trace_has_a_line_for_every_turn(tmp_path: Any) -> None:
    path = tmp_path / "trace.jsonl"
    async with server(trace=str(path)) as client:
        await client.chat()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["turn"] for line in lines] == list(range(1, 8))
    assert lines[0]["forwards"][0]["pieces"][0]["start"] == 0


async def test_a_stream_that_is_read_slowly_but_steadily_is_whole() -> None:
    async with server(reader_timeout=0.2) as client:
        body = {**LONG, "stream": True, "max_tokens": 300, "seed": 3}
        async with client.session.post(PLAIN, json=body) as response:
            text = b""
            async for piece in response.content.iter_chunked(20_000):
                text += piece
                await asyncio.sleep(0.01)
        _, whole = await client.post(PLAIN, body | {"stream": False})
    *events, done = read_events(text.decode())
    assert (text_of(events), done) == (whole["choices"][0]["text"], "[DONE]")
