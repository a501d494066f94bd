"""Long prompts at the door and between ranks: equal to what is made id by id, and no step an id."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorfold.backends.fake.options import FakeOptions
from tensorfold.core.engine.records import Unreadable, decode, encode
from tensorfold.core.engine_api import Opening
from tensorfold.core.keyed import text_sha256, token_sha256
from tensorfold.core.lane_host.stream import Job
from tensorfold.core.server import completions
from tensorfold.core.token_ids import BLOCK, MANY, all_below, decimals
from tests.null.calling import PLAIN, Client, server

CONTEXT = 1 << 17
LONG = FakeOptions(context=CONTEXT)
EDGES = (0, 1, 9, 10, 99, 100, 99_999, 100_000, (1 << 32) - 1)
NUMBERS = st.sampled_from(EDGES) | st.integers(0, (1 << 32) - 1) | st.integers(0, 200)


def joined(ids: Sequence[int]) -> bytes:
    """As the receipt's words say it: in decimal, joined by commas."""
    return ",".join(map(str, ids)).encode()


def prompt_of(count: int) -> list[int]:
    """Ids of the fake's vocabulary of 97, of one digit and of two."""
    return [(7 * row + row // 97) % 97 for row in range(count)]


# -- equal ---------------------------------------------------------------------------------------


@given(st.lists(NUMBERS, max_size=3 * MANY))
def test_a_prompts_text_is_its_ids_in_decimal_joined_by_commas(ids: list[int]) -> None:
    assert decimals(ids) == decimals(tuple(ids)) == joined(ids)


@pytest.mark.parametrize("count", [0, 1, MANY - 1, MANY, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK])
@pytest.mark.parametrize("top", [1, 10, 97, 129_280, 1 << 32])
def test_a_prompts_text_is_whole_at_every_length(count: int, top: int) -> None:
    ids = [(row * 2_654_435_761 + 12_345) % top for row in range(count)]
    assert decimals(ids) == joined(ids)
    assert text_sha256(decimals(ids)) == token_sha256(ids)


@pytest.mark.parametrize("odd", [-1, 1 << 32, 1 << 70])
def test_numbers_that_are_no_ids_have_their_text_too(odd: int) -> None:
    ids = [*range(2 * MANY), odd]
    assert decimals(ids) == joined(ids)


@given(st.lists(st.integers(-2, 100) | st.integers(), max_size=2 * MANY), st.integers(1, 100))
def test_ids_are_in_a_vocabulary_or_one_of_them_is_not(ids: list[int], size: int) -> None:
    assert all_below(ids, size) == all(0 <= id < size for id in ids)


@pytest.mark.parametrize("odd", [(), (True,), (None,), (-1,), (1 << 32,), (1.0,), ("x",)])
@given(ids=st.lists(NUMBERS, min_size=MANY, max_size=2 * MANY))
def test_many_numbers_come_to_other_ranks_as_they_were(ids: list[int], odd: Any) -> None:
    record = Opening(stream=1, prompt=(*ids, *odd), most=2)
    assert repr(decode(encode(record))) == repr(record)


@pytest.mark.parametrize("text", ['"AAAA"', '"AAAAA"', '"AAAA AA=="', '"\\u00e9AAA"', "5", "null"])
def test_numbers_that_are_broken_off_are_refused(text: str) -> None:
    with pytest.raises(Unreadable):
        decode(b'{"kind":"ids","of":' + text.encode() + b"}")


# -- at the door ---------------------------------------------------------------------------------

BAD = [97, -1, True, 1.5, 7.0, None, 1 << 32, 1 << 70, {}]


@pytest.mark.asyncio
async def test_a_bad_id_deep_in_a_long_prompt_is_named_with_its_place() -> None:
    prompt = prompt_of(70_000)
    async with server(LONG) as client:
        for bad in BAD:
            for name, given_prompt in (("prompt", prompt), ("prompt[1]", [[1], prompt])):
                # A later one is not told in place of the first.
                prompt[65_001], prompt[69_000] = bad, 1000
                status, answer = await client.post(PLAIN, {"model": "fake", "prompt": given_prompt})
                error = answer["error"]
                assert (status, error["param"]) == (400, name)
                assert error["message"] == (
                    f"{name}[65001] must be a token id from 0 to 96, not {json.dumps(bad)}"
                )
        assert client.here.service.host.stats().started == 0


@pytest.mark.asyncio
async def test_a_number_that_is_none_deep_in_a_long_prompt_is_named_with_its_place() -> None:
    prompt: list[Any] = prompt_of(70_000)
    prompt[65_001] = float("nan")
    async with server(LONG) as client:
        body = json.dumps({"model": "fake", "prompt": prompt}).encode()
        status, answer = await client.post(PLAIN, body)
    assert status == 400
    assert answer["error"]["message"] == "prompt[65001] must be a finite number, not nan"


@pytest.mark.asyncio
async def test_a_long_prompts_receipt_and_echo_are_those_of_its_ids() -> None:
    prompts = [prompt_of(70_000), prompt_of(MANY), prompt_of(3)]
    body = {"model": "fake", "max_tokens": 2, "n": 2, "return_token_ids": True}
    async with server(LONG) as client:
        for asked in (prompts, prompts[0]):
            many = asked is prompts
            whole = await client.plain(**body, prompt=asked)
            *events, _ = await client.stream(PLAIN, {**body, "prompt": asked, "stream": True})
            told = [event["prompt_token_ids"] for event in events if "prompt_token_ids" in event]
            assert told == [asked]
            assert whole["prompt_token_ids"] == asked
            for receipt in (whole["tensorfold"], events[-1]["tensorfold"]):
                hashes = [one["prompt_sha256"] for one in receipt["replies"]]
                own = prompts if many else prompts[:1]
                assert hashes == [
                    hashlib.sha256(joined(prompt)).hexdigest() for prompt in own for _ in range(2)
                ]
                derived = hashlib.sha256(b"seed:" + joined(prompts[0])).digest()[:8]
                assert receipt["seed"] == int.from_bytes(derived, "little", signed=True)


@pytest.mark.asyncio
@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_tells_a_prompt_is_written_as_any_other(stream: bool) -> None:
    body = {"model": "fake", "prompt": [prompt_of(200), [5]], "max_tokens": 3, "stream": stream}
    body |= {"return_token_ids": True}
    async with server() as client, client.session.post(PLAIN, json=body) as response:
        text = await response.text()
    lines = text.split("\n\n")[:-2] if stream else [text]
    told = [line.removeprefix("data: ") for line in lines]
    assert '"prompt_token_ids":[[0,7,14,' in told[0]
    for line in told:
        # No spaces, and the members where they were.
        assert line == json.dumps(json.loads(line), ensure_ascii=False, separators=(",", ":"))
        names = list(json.loads(line))
        assert names[:5] == ["id", "object", "created", "model", "system_fingerprint"]
        if "prompt_token_ids" in names:
            before = names[names.index("prompt_token_ids") - 1]
            assert before == ("choices" if stream else "usage")


@pytest.mark.asyncio
async def test_a_stream_of_replies_without_text_tells_its_prompt_once() -> None:
    body = {"model": "fake", "prompt": [5, 6], "n": 3, "stream": True, "return_token_ids": True}
    async with server() as client:
        *events, _ = await client.stream(PLAIN, body | {"stop_token_ids": list(range(97))})
    assert [event["choices"][0]["text"] for event in events] == [""] * 3
    assert ["prompt_token_ids" in event for event in events] == [True, False, False]


# -- no step an id -------------------------------------------------------------------------------


def steps(work: Callable[[], object]) -> int:
    """Lines of Python that a call runs: a count, the same on every machine."""
    count = 0

    def watch(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return watch

    before = sys.gettrace()
    sys.settrace(watch)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def works(client: Client, count: int) -> dict[str, Callable[[], object]]:
    """What a prompt of so many ids goes through before its first row, by name."""
    service, prompt = client.here.service, prompt_of(count)
    body = json.dumps({"model": "fake", "prompt": prompt, "stream": True}).encode()
    raw = encode(Opening(stream=1, prompt=tuple(prompt), most=1))
    job = Job(stream=1, prompt=tuple(prompt), most=1)
    return {
        "reading and checking": lambda: completions.read_order(service, body),
        "the host's door": lambda: service.host._check(job),
        "telling other ranks": lambda: encode(Opening(stream=1, prompt=job.prompt, most=1)),
        "being told": lambda: decode(raw),
    }


@pytest.mark.asyncio
async def test_a_long_prompt_takes_no_step_an_id_before_its_first_row() -> None:
    few, many = 1000, 100_000
    async with server(LONG) as client:
        short, long = works(client, few), works(client, many)
        for name, work in long.items():
            more = steps(work) - steps(short[name])
            assert more < (many - few) / 500, (name, more)
