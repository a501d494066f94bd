"""The fake backend: found through the seam, served with its own tokenizer, true to the settings."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tensorfold.backends.fake import model, plugin
from tensorfold.backends.fake.backend import FakeBackend
from tensorfold.core.backend_api import EngineOrder
from tensorfold.core.errors import StartError
from tensorfold.core.settings import Settings


def folder() -> Path:
    found = FakeBackend().bundled()
    assert found is not None
    return found


def test_the_plugin_brings_the_backend() -> None:
    (backend,) = plugin.register_backends()
    assert backend.name == "fake"
    assert backend.unusable() is None
    assert not backend.needs_family


def test_its_check_holds_and_sums_up() -> None:
    lines: list[str] = []
    assert FakeBackend().check(lines.append)
    assert lines[-1].startswith("SUMMARY fake")


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"lanes": 3, "context": 256, "chunk_rows": 32, "window_rows": 4},
        {"fill_chunks": 2, "fill_many": True, "fill_rounds": 3},
        {"fill_chunks": 1, "fill_cut_in": 64, "fill_drain": 4096, "fill_pack": 512},
    ],
)
def test_settings_reach_info(values: dict[str, Any]) -> None:
    info = FakeBackend().engine(EngineOrder(settings=Settings(**values))).info
    for name, value in values.items():
        assert getattr(info, name) == value
    assert info.vocab_size == model.VOCAB
    json.dumps(info.to_json())


def test_a_preset_reaches_info_cut_to_what_the_engine_does() -> None:
    for chunk_rows, cut_in in ((512, 512), (64, 64)):
        settings = Settings(fill="smooth", chunk_rows=chunk_rows, fill_drain=100)
        info = FakeBackend().engine(EngineOrder(settings=settings)).info
        assert (info.fill_chunks, info.fill_many, info.fill_rounds) == (1, True, 1)
        assert (info.fill_cut_in, info.fill_drain, info.fill_pack) == (cut_in, 100, 1024)


@pytest.mark.parametrize("values", [{"chunk_rows": 50}, {"fill_pack": 5000}, {"fill_chunks": 99}])
def test_settings_that_cannot_work_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(StartError):
        FakeBackend().engine(EngineOrder(settings=Settings(**values)))


def test_its_tokenizer_has_one_token_a_character() -> None:
    tokenizer = Tokenizer.from_file(str(folder() / "tokenizer.json"))
    text = "".join(map(chr, range(32, 127))) + "\n"
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert ids == list(range(96))
    assert tokenizer.decode(ids) == text
    assert tokenizer.token_to_id("<|end|>") == model.END_TOKEN
    assert tokenizer.get_vocab_size() == model.VOCAB


def test_its_files_agree_with_each_other() -> None:
    config = json.loads((folder() / "config.json").read_text())
    tokens = json.loads((folder() / "tokenizer_config.json").read_text())
    assert config["vocab_size"] == model.VOCAB
    assert config["eos_token_id"] == model.END_TOKEN
    assert tokens["eos_token"] == "<|end|>"
    assert (folder() / "chat_template.jinja").is_file()
