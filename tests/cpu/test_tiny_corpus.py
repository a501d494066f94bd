"""What the bundled model is trained on, and the prompts kept from it."""

import json
import random
import struct
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from tensorfold.core.text.template import ChatTemplate
from tensorfold.tools.tiny import chats, corpus, heldout, judge, rdata, works
from tensorfold.tools.tiny.corpus import Gathered, read_gathered
from tensorfold.tools.tiny.lines import Line, line_called
from tensorfold.tools.tiny.tokens import Renderer

ROOT = Path(__file__).parents[2]
HELD = ROOT / "tests" / "data" / "tiny_heldout"
SETS = heldout.read(HELD)
LINES = [line_called("glm53"), line_called("dsv41")]


def template(line: Line) -> str:
    return (ROOT / f"families/{line.name}/tiny/chat_template.jinja").read_text("utf-8")


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


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.name)
def test_a_call_must_parse_and_have_the_name_asked(line: Line) -> None:
    render = Renderer(template(line))
    for row in SETS["calls"]:
        made = [{"function": call} for call in row["calls"]]
        message = {"role": "assistant", "content": "", "tool_calls": made}
        reply = render({"messages": [message]}).split("<think>")[-1]
        reply = reply.removesuffix(line.words.end_of_text)
        assert judge.right_call(line, row, reply)
        assert judge.exact_calls(line, row, reply)
        assert not judge.right_call(line, row, reply[: -len("</tool_call>")])
        assert not judge.right_call(line, row, reply + " So it is.")
        assert not judge.right_call(line, row, reply.replace(row["calls"][0]["name"], "other"))
        assert not judge.right_call(line, row, "</think>I cannot.")


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


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.name)
def test_the_server_renders_chats_as_they_were_trained(line: Line) -> None:
    served, render = ChatTemplate(template(line)), Renderer(template(line))
    draw = random.Random(7)
    for _ in range(300):
        chat = line.dress(chats.chat(draw), draw)
        for open_reply in (False, True):
            values = {**chat, "add_generation_prompt": open_reply}
            assert served.render(values) == render(chat, open_reply=open_reply)


def test_dsv41_chats_are_trained_with_reasoning_on_and_switched_off() -> None:
    line, draw = line_called("dsv41"), random.Random(3)
    render, seen = Renderer(template(line)), set()
    for _ in range(300):
        chat = line.dress(chats.chat(draw), draw)
        thoughts = any(message.get("reasoning_content") for message in chat["messages"])
        off = chat.get("enable_thinking") is False
        assert not (thoughts and off)
        assert ("Reasoning Effort" in render(chat)) is not off
        seen.add((thoughts, off))
    assert seen == {(True, False), (False, True), (False, False)}


def test_what_is_gathered_is_read_back_as_it_was(tmp_path: Path) -> None:
    arrays = {"short": (np.arange(7, dtype=np.uint16), np.array([3, 4], np.uint32))}
    arrays["text.0"] = (np.arange(5, dtype=np.uint16) + 4000, np.array([5], np.uint32))
    made = Gathered(arrays=arrays, texts=[{"name": "novels", "share": 0.5}])
    made.save(tmp_path / "deep" / "corpus.npz")
    found = read_gathered(tmp_path / "deep" / "corpus.npz")
    assert found.texts == made.texts
    assert found.arrays.keys() == arrays.keys()
    for name, pair in arrays.items():
        assert all(np.array_equal(a, b) for a, b in zip(found.arrays[name], pair, strict=True))


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.name)
def test_what_an_assistant_says_counts_whole_up_to_its_end(line: Line) -> None:
    tokenizer = Tokenizer.from_file(str(ROOT / f"families/{line.name}/tiny/tokenizer.json"))
    chat = {"messages": [{"role": "system", "content": "S"}, *chats.pair("Hi", "Yes, I am here.")]}
    text = Renderer(template(line))(chat) + line.tail(chat)
    ids = np.array(tokenizer.encode(text, add_special_tokens=False).ids)
    whole = corpus.chat_weights(ids, tokenizer, line.words) == 1
    begin = ids.tolist().index(tokenizer.token_to_id(line.words.assistant))
    assert whole.tolist() == [at > begin for at in range(len(ids))]
    assert tokenizer.id_to_token(int(ids[-1])) in line.words.ends
