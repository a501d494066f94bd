"""The bundled models' files: small enough, official names, their own tokens and templates."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from tokenizers import Tokenizer

from tensorfold.families.dsv41 import config as dsv41_config
from tensorfold.tools.tiny.lines import Line, line_in
from tensorfold.tools.tiny.shape import read_shape
from tensorfold.tools.tiny.tokens import Renderer

FAMILIES = Path(__file__).parents[2] / "families"
RENDER = Renderer((FAMILIES / "glm53/tiny/chat_template.jinja").read_text("utf-8"))
TOOL = {"type": "function", "function": {"name": "a", "description": "d", "strict": True}}
CALLS = [
    {"id": "1", "function": {"name": "a", "arguments": {"x": 1, "y": "é"}}},
    {"id": "2", "function": {"name": "b", "arguments": {}}},
]


@dataclass(frozen=True, kw_only=True)
class Bundle:
    folder: Path
    line: Line
    config: dict[str, Any]
    tokenizer: Tokenizer


def bundle(name: str) -> Bundle:
    folder = FAMILIES / name / "tiny"
    return Bundle(
        folder=folder,
        line=line_in(folder),
        config=json.loads((folder / "config.json").read_text("utf-8")),
        tokenizer=Tokenizer.from_file(str(folder / "tokenizer.json")),
    )


@pytest.fixture(scope="module", params=["glm53", "dsv41"])
def tiny(request: pytest.FixtureRequest) -> Bundle:
    return bundle(request.param)


HEAD = "[gMASK]<sop><|system|>Reasoning Effort: Max"


def test_the_folder_is_small(tiny: Bundle) -> None:
    assert sum(file.stat().st_size for file in tiny.folder.rglob("*")) <= 14_000_000


def test_tensors_have_official_names_shapes_and_types(tiny: Bundle) -> None:
    want = tiny.line.trainee(tiny.config, tiny.folder).official()
    with safe_open(tiny.folder / "model.safetensors", "pt") as file:
        assert set(file.keys()) == set(want)
        for name, value in want.items():
            found = file.get_slice(name)
            assert found.get_shape() == list(value.shape), name
            dtype = "F32" if name.endswith(tiny.line.fp32) else "BF16"
            assert found.get_dtype() == dtype, name
            assert file.get_tensor(name).isfinite().all(), name


def test_what_ranks_cut_divides_by_eight_in_glm53() -> None:
    config = bundle("glm53").config
    shape = read_shape(config)
    cut = (shape.experts, shape.vocab, shape.inner, shape.expert_inner * shape.shared,
           shape.kda_heads * shape.kda_dim, shape.heads * shape.nope, shape.heads * shape.value,
           shape.index_heads * shape.index_dim)  # fmt: skip
    assert [width % 8 for width in cut] == [0] * len(cut)
    assert min(shape.heads, shape.kda_heads, shape.index_heads) >= 4
    assert config["text_config"]["max_position_embeddings"] >= 4096
    assert shape.index_topk <= 2000


def test_what_ranks_cut_divides_by_eight_in_dsv41() -> None:
    # Faithful numerics round blocks of 32, so that they can be asked for.
    config = dsv41_config.read(bundle("dsv41").config, "faithful")
    assert config.drafting is not None
    assert config.engram is not None
    cut = (config.experts, config.drafting.experts, config.vocab_size, config.expert_size,
           config.heads, config.index_heads, config.groups * config.o_rank)  # fmt: skip
    assert [width % 8 for width in cut] == [0] * len(cut)
    assert min(config.heads, config.groups) >= 4
    assert config.heads > config.groups
    assert (config.window, set(config.ratios)) == (128, {0, 1, 2})
    assert config.index_top < config.candidate_blocks * config.candidate_size < config.context / 8
    assert set(config.index_sources) - set(config.kv_sources)
    assert all(1000 < rows < 10_000 for rows in config.engram.rows)
    assert (config.drafting.stages, config.drafting.block) == (3, 5)


def test_the_vocabulary_is_the_configs_and_ends_are_its_ids(tiny: Bundle) -> None:
    words, tokenizer = tiny.line.words, tiny.tokenizer
    assert tokenizer.get_vocab_size() == tiny.config["text_config"]["vocab_size"]
    ends = [tokenizer.token_to_id(token) for token in words.ends]
    generation = json.loads((tiny.folder / "generation_config.json").read_text("utf-8"))
    assert generation["eos_token_id"] == ends
    assert tiny.config["eos_token_id"] in (ends, *ends)
    for token in (*words.control, *words.markup):
        assert tokenizer.encode(token).ids == [tokenizer.token_to_id(token)]


@pytest.mark.parametrize(
    "text", ["Hello, wörld!\n\n  1234 x", "日本語 \U0001f600\t\r\n", " ", "a" * 99]
)
def test_text_survives_the_tokenizer(tiny: Bundle, text: str) -> None:
    ids = tiny.tokenizer.encode(text).ids
    assert tiny.tokenizer.decode(ids, skip_special_tokens=False) == text


def test_a_decoder_that_skips_control_tokens_keeps_markup(tiny: Bundle) -> None:
    words = tiny.line.words
    text = f"{words.assistant}x" + "a".join(words.markup)
    ids = tiny.tokenizer.encode(text).ids
    found = tiny.tokenizer.decode(ids, skip_special_tokens=True)
    assert found == text.removeprefix(words.assistant)


def test_a_chat_with_tools_renders_as_the_family_does() -> None:
    messages = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": [{"type": "text", "text": "U"}]},
        {"role": "assistant", "content": " hi ", "reasoning_content": "r", "tool_calls": CALLS},
        {"role": "tool", "tool_call_id": "2", "content": "R2"},
        {"role": "tool", "tool_call_id": "1", "content": "R1"},
    ]
    hidden = {"type": "function", "function": {"name": "h", "defer_loading": True}}
    text = RENDER({"messages": messages, "tools": [TOOL, hidden]}, open_reply=True)
    tools = (
        "<|system|>\n# Tools\n\nYou may call one or more functions to assist with the user query."
    )
    assert text.startswith(HEAD + tools)
    assert '<tools>\n{"name": "a", "description": "d"}\n</tools>\n\nFor each' in text
    assert text.endswith(
        "...</tool_call><|system|>S<|user|>U<|assistant|><think>r</think>hi"
        "<tool_call>a<arg_key>x</arg_key><arg_value>1</arg_value>"
        "<arg_key>y</arg_key><arg_value>é</arg_value></tool_call><tool_call>b</tool_call>"
        "<|observation|><tool_response>R1</tool_response><tool_response>R2</tool_response>"
        "<|assistant|><think>"
    )


def test_results_whose_ids_do_not_match_stay_in_their_order() -> None:
    results = [
        {"role": "tool", "tool_call_id": i, "content": c} for i, c in (("9", "A"), ("1", "B"))
    ]
    turn = {"role": "assistant", "content": None, "tool_calls": CALLS}
    text = RENDER({"messages": [turn, *results]})
    assert text.endswith("<tool_response>A</tool_response><tool_response>B</tool_response>")


@pytest.mark.parametrize(
    ("switches", "begin", "end"),
    [
        ({}, "Max", "<think>"),
        ({"reasoning_effort": "low"}, "Low", "<think>"),
        ({"reasoning_effort": "high"}, "High", "<think>"),
        ({"reasoning_effort": "medium"}, "Max", "<think>"),
        ({"enable_thinking": True}, "Max", "<think>"),
        ({"enable_thinking": False}, "Max", "<think></think>"),
    ],
)
def test_switches_of_thinking(switches: dict, begin: str, end: str) -> None:
    chat = {"messages": [{"role": "user", "content": "U"}], **switches}
    effort = HEAD.replace("Max", begin)
    assert RENDER(chat, open_reply=True) == f"{effort}<|user|>U<|assistant|>{end}"


def test_reasoning_of_earlier_turns_goes_when_asked() -> None:
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "<think>old</think>b"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": None, "reasoning": "new"},
    ]
    begin, middle = f"{HEAD}<|user|>a<|assistant|><think>", "</think>b<|user|>c<|assistant|><think>"
    kept = RENDER({"messages": messages})
    assert kept == f"{begin}old{middle}new</think>"
    assert RENDER({"messages": messages, "clear_thinking": True}) == f"{begin}{middle}new</think>"


def test_arguments_that_are_no_object_are_refused() -> None:
    call = {"function": {"name": "a", "arguments": '{"x": 1}'}}
    with pytest.raises(ValueError, match="must be an object"):
        RENDER({"messages": [{"role": "assistant", "content": "", "tool_calls": [call]}]})
