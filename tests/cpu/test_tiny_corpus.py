"""What the bundled model is trained on, and the prompts kept from it."""

import json
import random
import struct
from pathlib import Path

import pytest

from tensorfold.core.text.template import ChatTemplate
from tensorfold.tools.tiny import chats, heldout, judge, rdata, works
from tensorfold.tools.tiny.tokens import Renderer

ROOT = Path(__file__).parents[2]
HELD = ROOT / "tests" / "data" / "tiny_heldout"
SETS = heldout.read(HELD)
RENDER = Renderer((ROOT / "families/glm53/tiny/chat_template.jinja").read_text("utf-8"))


def test_the_held_out_prompts_are_those_of_their_seed() -> None:
    assert {name: SETS[name] for name in judge.RULES} == heldout.all_sets()
    assert [len(SETS[name]) for name in judge.RULES] == [50, 50, 50]


def test_no_held_out_prompt_is_trained_on() -> None:
    draw = random.Random(12345)
    prompts = heldout.banned(SETS)
    threads = {json.dumps(row["messages"]) for row in SETS["questions"]}
    made = [chats.chat(draw) for _ in range(4000)]
    kept = [chat for chat in made if chats.allowed(chat, prompts)]
    # Combinations kept back leave little to be taken out by their words.
    assert len(kept) > 0.99 * len(made)
    for chat in kept:
        messages = [m for m in chat["messages"] if m["role"] != "system"]
        texts = [m["content"] for m in messages if m["role"] == "user"]
        assert not prompts & set(texts)
        assert json.dumps(messages[:-1]) not in threads


def test_chats_are_the_same_for_the_same_seed() -> None:
    first, second = ([chats.chat(random.Random(seed)) for seed in range(50)] for _ in range(2))
    assert first == second


@pytest.mark.parametrize("row", SETS["questions"])
def test_a_listed_answer_is_right_with_reasoning_before_it(row: dict) -> None:
    for answer in row["answers"]:
        assert judge.right_answer(row, f"so it is</think>{answer}")
    assert not judge.right_answer(row, "</think>I do not know.")


def test_an_object_must_parse_and_have_the_keys() -> None:
    row = {"object": {"a": 1, "b": "x"}}
    assert judge.right_object(row, '</think>{"b": "y", "a": 2}')
    for wrong in ('{"a": 1}', '{"a": 1, "b": 2, "c": 3}', '{"a": 1, "b": ', "[1]", "a"):
        assert not judge.right_object(row, "</think>" + wrong)


def test_a_call_must_parse_and_have_the_name_asked() -> None:
    for row in SETS["calls"]:
        made = [{"function": call} for call in row["calls"]]
        message = {"role": "assistant", "content": "", "tool_calls": made}
        reply = RENDER({"messages": [message]}).split("<think>")[-1]
        assert judge.right_call(row, reply)
        assert judge.exact_calls(row, reply)
        assert not judge.right_call(row, reply[: -len("</tool_call>")])
        assert not judge.right_call(row, reply.replace(row["calls"][0]["name"], "other"))
        assert not judge.right_call(row, "</think>I cannot.")


def test_strings_are_read_from_an_r_chunk() -> None:
    def string(text: bytes) -> bytes:
        return struct.pack(">ii", rdata.STRING, len(text)) + text

    body = struct.pack(">ii", rdata.STRINGS, 2) + string(b"CHAPTER 1") + string(b"")
    encoding = struct.pack(">i", 5) + b"UTF-8"
    chunk = rdata.HEADER.pack(b"X\n", 3, 0, 0) + encoding + body
    assert rdata.character_vector(chunk) == ["CHAPTER 1", ""]
    assert rdata.unwrap(["a", "b", "", "c"]) == "a b\n\nc\n"
    with pytest.raises(ValueError, match="not a character vector"):
        rdata.character_vector(chunk.replace(struct.pack(">i", rdata.STRINGS), b"\0\0\0\r", 1))


def test_held_out_prose_is_not_among_the_parts_trained_on() -> None:
    text = "\n\n".join(f"Paragraph {i} of a long work." for i in range(20_000))
    parts, held = works.split_held_out(text)
    assert "".join([parts[0], held, parts[1]]) == text
    assert len(held) >= works.STRETCH
    assert works.split_held_out("short") == (["short"], "")


def test_the_server_renders_chats_as_they_were_trained() -> None:
    served = ChatTemplate((ROOT / "families/glm53/tiny/chat_template.jinja").read_text("utf-8"))
    draw = random.Random(7)
    for _ in range(300):
        chat = chats.chat(draw)
        for open_reply in (False, True):
            values = {**chat, "add_generation_prompt": open_reply}
            assert served.render(values) == RENDER(chat, open_reply=open_reply)
