"""A model's text side out of its folder: what is read, and how a broken one is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tensorfold.core.errors import RequestError, StartError
from tensorfold.core.family_api import ChatFormat
from tests.null.wordy import byte_level_tokenizer, id_of, load, write_folder

NO_BYTES = json.dumps({**json.loads(byte_level_tokenizer().to_str()), "decoder": None})


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"tokenizer\.json is missing"):
        load(tmp_path, end_ids=())


@pytest.mark.parametrize(
    ("tokenizer", "words"),
    [
        ("{", "cannot be read as a tokenizer"),
        ("[]", "cannot be read as a tokenizer"),
        (
            "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
            "is a Git LFS pointer",
        ),
        ('{"version": "1.0"}', "cannot be read as a tokenizer"),
        (NO_BYTES, "its decoder is none"),
    ],
)
def test_a_broken_tokenizer_is_named(tmp_path: Path, tokenizer: str, words: str) -> None:
    with pytest.raises(StartError, match=words) as raised:
        load(write_folder(tmp_path, tokenizer=tokenizer), end_ids=())
    assert "tokenizer.json" in str(raised.value)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_decoder_that_is_a_sequence_of_one_is_what_it_holds(tmp_path: Path, depth: int) -> None:
    tokenizer = json.loads(byte_level_tokenizer().to_str())
    for _ in range(depth):
        tokenizer["decoder"] = {"type": "Sequence", "decoders": [tokenizer["decoder"]]}
    text = load(write_folder(tmp_path, tokenizer=json.dumps(tokenizer)), end_ids=())
    assert text.vocabulary.decode(text.encode("a b \u00e9", 0)) == "a b \u00e9"
    tokenizer["decoder"] = {"type": "Sequence", "decoders": [tokenizer["decoder"]] * 2}
    with pytest.raises(StartError, match="its decoder is Sequence"):
        load(write_folder(tmp_path, tokenizer=json.dumps(tokenizer)), end_ids=())


def test_a_tokenizer_that_lacks_a_byte_is_refused(tmp_path: Path) -> None:
    lacking = json.loads(byte_level_tokenizer().to_str())
    vocab = lacking["model"]["vocab"]
    vocab["other"] = vocab.pop("A")
    with pytest.raises(StartError, match="no token for the byte 0x41"):
        load(write_folder(tmp_path, tokenizer=json.dumps(lacking)), end_ids=())


def test_a_tokenizer_larger_than_the_models_vocabulary_is_refused(tmp_path: Path) -> None:
    size = byte_level_tokenizer().get_vocab_size()
    folder = write_folder(tmp_path)
    load(folder, vocab_size=size, end_ids=())
    with pytest.raises(
        StartError, match=f"up to token id {size - 1}, but the model has {size - 1}"
    ):
        load(folder, vocab_size=size - 1, end_ids=())


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{% if %}", "does not compile"),
        ("{{ ''.__class__ }}", "not allowed"),
        ("{{ raise_exception('never') }}", "never"),
        ("a" * (1 << 20) + "b", "larger than"),
    ],
)
def test_a_bad_template_is_a_start_that_names_its_file(
    tmp_path: Path, template: str, words: str
) -> None:
    with pytest.raises(StartError, match=words) as raised:
        load(write_folder(tmp_path, template=template), end_ids=())
    assert "chat_template.jinja" in str(raised.value)


def test_the_checkpoints_template_comes_before_the_familys(tmp_path: Path) -> None:
    chat = ChatFormat(template="family")
    messages = [{"role": "user", "content": "x"}]
    config = {"chat_template": "config"}
    listed = {"chat_template": [{"name": "default", "template": "listed"}]}
    both = write_folder(tmp_path, template="file", tokenizer_config=config)
    assert load(both, chat, end_ids=()).render(messages) == "file"
    (tmp_path / "chat_template.jinja").unlink()
    assert load(tmp_path, chat, end_ids=()).render(messages) == "config"
    write_folder(tmp_path, template=None, tokenizer_config=listed)
    assert load(tmp_path, chat, end_ids=()).render(messages) == "listed"
    (tmp_path / "tokenizer_config.json").unlink()
    assert load(tmp_path, chat, end_ids=()).render(messages) == "family"


def test_end_ids_come_from_every_place_that_names_them(tmp_path: Path) -> None:
    folder = write_folder(
        tmp_path,
        tokenizer_config={"eos_token": {"content": "<|user|>"}},
        generation_config={"eos_token_id": [7, 8]},
    )
    chat = ChatFormat(template="", end_tokens=("<|assistant|>", "<|not there|>"))
    text = load(folder, chat, end_ids=(9,))
    assert text.end_ids == {7, 8, 9, id_of("<|user|>"), id_of("<|assistant|>")}


@pytest.mark.parametrize(
    "generation",
    [
        "[1]",
        "{",
        {"temperature": "hot"},
        {"temperature": -1},
        {"top_p": 0},
        {"top_p": 1.5},
        {"top_k": True},
        {"top_k": 2.5},
        {"min_p": 2},
        '{"temperature": NaN}',
        {"eos_token_id": 400},
        {"eos_token_id": [True]},
    ],
)
def test_a_broken_generation_config_is_named(tmp_path: Path, generation: object) -> None:
    with pytest.raises(StartError, match=r"generation_config\.json"):
        load(write_folder(tmp_path, generation_config=generation), end_ids=())


def test_sampling_defaults_are_read_and_greedy_ones_are_temperature_0(tmp_path: Path) -> None:
    asked = {"temperature": 1, "top_p": 0.95, "top_k": 40}
    defaults = load(write_folder(tmp_path, generation_config=asked), end_ids=()).defaults
    assert (defaults.temperature, defaults.top_p, defaults.top_k) == (1.0, 0.95, 40)
    greedy = write_folder(tmp_path, generation_config=asked | {"do_sample": False})
    assert load(greedy, end_ids=()).defaults.temperature == 0.0


def test_a_final_message_is_continued_where_it_stops(tmp_path: Path) -> None:
    template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}[end]{% endfor %}"
    text = load(write_folder(tmp_path, template=template), end_ids=())
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": " so far "}]
    rendered = text.render(messages, continue_final_message=True)
    assert rendered == "[user]x[end][assistant] so far "
    # The template's own words after the message are no part of it, whatever the message says.
    ends = [{"role": "assistant", "content": "the end"}]
    assert text.render(ends, continue_final_message=True) == "[assistant]the end"
    empty = [{"role": "assistant", "content": None}]
    assert text.render(empty, continue_final_message=True) == "[assistant]"
    blind = load(write_folder(tmp_path, template="{{ messages[0].role }}"), end_ids=())
    with pytest.raises(RequestError, match="leaves no place"):
        blind.chat_prompt(ends, continue_final_message=True)
