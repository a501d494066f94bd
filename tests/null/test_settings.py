"""The table of settings: flags over environment over defaults, and a clear end for nonsense."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from tensorfold.core.draft_settings import drafter_names
from tensorfold.core.errors import StartError
from tensorfold.core.settings import Settings, add_flags, read, switches

NUMBERS = [name for name, (_, d) in switches().items() if type(d) in (int, float)]


def test_every_setting_has_its_own_variable_flag_unit_and_help() -> None:
    table = switches()
    entries = [entry for entry, _ in table.values()]
    assert len({entry.env for entry in entries}) == len(entries)
    for name, (entry, default) in table.items():
        assert entry.env == "TF_" + name.upper()
        assert entry.unit
        assert entry.help
        assert read({name: default}, {}) == Settings(), name


def test_a_flag_wins_over_the_environment_and_that_over_the_default() -> None:
    assert read({}, {}).port == 8000
    assert read({}, {"TF_PORT": "9"}).port == 9
    assert read({"port": "10"}, {"TF_PORT": "9"}).port == 10


def test_flags_that_are_not_given_stay_out_of_the_way() -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    assert vars(parser.parse_args([])) == {}
    given_flags = parser.parse_args(["--no-compile", "--chunk-rows", "64", "--fill-many"])
    settings = read(vars(given_flags), {"TF_COMPILE": "1"})
    assert (settings.compile, settings.chunk_rows, settings.fill_many) == (False, 64, True)


def test_every_flag_shows_its_variable_and_the_values_it_takes_in_the_help() -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    words = "".join(parser.format_help().split())
    for name, (entry, _) in switches().items():
        assert entry.env in words
        for choice in entry.choices:
            assert choice in words, name
    assert "[ids|width;TF_EXPERT_CUT;'ids']" in words


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize(
    "text", ["", "many", "1,5", "0x10", "nan", "1e400", "--", "9" * 5000 + "x"]
)
def test_a_number_that_is_none_is_refused_naming_variable_and_value(name: str, text: str) -> None:
    entry, _ = switches()[name]
    with pytest.raises(StartError) as caught:
        read({}, {entry.env: text})
    assert entry.env in str(caught.value)
    assert "number" in str(caught.value)


def test_the_refusal_of_a_fill_that_is_no_number_is_one_sentence() -> None:
    with pytest.raises(StartError) as caught:
        read({}, {"TF_FILL_DRAIN": "lots"})
    assert str(caught.value) == "TF_FILL_DRAIN must be a whole number, not 'lots'"


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"port": "70000"}, "--port must be at most 65535, not 70000"),
        ({"lanes": "0"}, "--lanes must be at least 1, not 0"),
        ({"fill_chunks": "-1"}, "--fill-chunks must be at least 0, not -1"),
        ({"context": "1"}, "--context must be at least 2, not 1"),
        ({"temperature": "-0.5"}, "--temperature must be at least 0, not -0.5"),
        ({"temperature": "3"}, "--temperature must be at most 2, not 3.0"),
        ({"top_p": "0"}, "--top-p must be more than 0, not 0.0"),
        ({"log": "loud"}, "--log must be one of debug, info, warning, error, not 'loud'"),
        ({"compile": "perhaps"}, "--compile must be on or off, not 'perhaps'"),
        ({"copies": ""}, "--copies must be on or off, not ''"),
        ({"min_p": "-0.5"}, "--min-p must be at least 0, not -0.5"),
    ],
)
def test_a_value_out_of_bounds_is_refused_with_the_bound(
    flags: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(StartError) as caught:
        read(flags, {})
    assert str(caught.value) == sentence


def test_the_value_that_means_unset_may_lie_outside_the_bounds() -> None:
    names = ("temperature", "top_p", "top_k", "min_p")
    settings = read(dict.fromkeys(names, "-1"), {})
    assert [getattr(settings, name) for name in names] == [-1, -1, -1, -1]


def test_a_misspelt_fill_switch_is_refused_and_other_peoples_variables_are_not() -> None:
    read({}, {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_CLI_CONFIG_FILE": "x"})
    with pytest.raises(StartError, match="there is no setting TF_FILL_CHUNK; there are TF_FILL_C"):
        read({}, {"TF_FILL_CHUNK": "1"})


def test_drafts_are_turned_off_by_a_flag_of_their_own() -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    assert read(vars(parser.parse_args(["--no-drafts"])), {"TF_DRAFTS": "3"}).drafts == 0
    assert read(vars(parser.parse_args(["--drafts", "2"])), {}).drafts == 2


def test_copies_come_first_unless_they_are_named_or_refused() -> None:
    assert drafter_names(read({}, {})) == ["copies"]
    assert drafter_names(read({"drafters": "mine, other"}, {})) == ["copies", "mine", "other"]
    assert drafter_names(read({"drafters": "mine,copies"}, {})) == ["mine", "copies"]
    assert drafter_names(read({"copies": False, "drafters": "mine"}, {})) == ["mine"]
    assert drafter_names(read({}, {"TF_COPIES": "0"})) == []
    for text in (",,", "mine,", " "):
        with pytest.raises(StartError, match=f"--drafters is {text!r}: one of its names is empty"):
            drafter_names(read({}, {"TF_DRAFTERS": text}))
    with pytest.raises(StartError, match="--drafters names copies, and --no-copies refuses it"):
        drafter_names(read({"copies": False, "drafters": "copies"}, {}))
