"""Replies read token by token: no half characters, stops wherever they are cut, reasoning apart."""

from __future__ import annotations

import random
import time
from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorfold.core.text import Part, Reader, ReadingRules, ends_at_stop
from tensorfold.core.text.stops import Finder, Found
from tests.null.wordy import PLAIN, byte_level_tokenizer, id_of, rules, think_markers, vocabulary

QUICK = settings(max_examples=60, deadline=None, derandomize=True)
TEXTS = st.text(
    st.one_of(st.sampled_from("the cafèé世界日本語漢字🎉🎊👩‍👧 \n"), st.characters(codec="utf-8")),
    max_size=40,
)
TOKENS = st.lists(st.integers(0, 331), max_size=40)
LETTERS = st.text("ab", min_size=1, max_size=5)


def read_all(reading: ReadingRules, tokens: list[int]) -> list[Part]:
    """Token by token, each part as it comes."""
    reader = Reader(reading)
    parts = [part for token in tokens for part in reader.feed([token])]
    return parts + reader.finish()


def text_of(parts: list[Part], section: str = "content") -> str:
    return "".join(part.text for part in parts if part.section == section)


@QUICK
@given(TEXTS)
def test_reading_token_by_token_gives_the_text_that_was_encoded(text: str) -> None:
    tokens = list(vocabulary().encode(text))
    parts = read_all(rules(), tokens)
    assert text_of(parts) == text
    assert all(part.text and "\ufffd" not in part.text for part in parts) or "\ufffd" in text


@QUICK
@given(TOKENS)
def test_reading_token_by_token_equals_the_tokenizers_own_decoding_of_the_whole(
    tokens: list[int],
) -> None:
    whole = byte_level_tokenizer().decode(tokens, skip_special_tokens=True)
    assert text_of(read_all(rules(), tokens)) == whole


@QUICK
@given(TOKENS, st.data())
def test_the_text_does_not_depend_on_how_tokens_were_delivered(
    tokens: list[int], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(tokens)), max_size=5)))
    reading = rules(stops=("é", "the"), markers=think_markers(as_tokens=True))
    reader = Reader(reading)
    parts = []
    for start, end in pairwise([0, *cuts, len(tokens)]):
        parts += reader.feed(tokens[start:end])
    parts += reader.finish()
    apart = read_all(reading, tokens)
    for section in ("reasoning", "content"):
        assert text_of(parts, section) == text_of(apart, section)


@pytest.mark.parametrize("text", ["🎉", "世界", "👩‍👩‍👧", "é"])
def test_a_character_cut_over_tokens_comes_whole_and_an_unfinished_one_only_at_the_end(
    text: str,
) -> None:
    pieces = [byte_level_tokenizer().token_to_id(one) for one in spelled(text)]
    assert text_of(read_all(rules(), pieces)) == text
    reader = Reader(rules())
    assert "\ufffd" not in text_of(reader.feed(pieces[:-1]))
    assert text_of(reader.finish()) == "\ufffd"


def spelled(text: str) -> list[str]:
    """The byte-level alphabet's character of every byte."""
    from tensorfold.core.text.tokenizer import ALPHABET

    of_byte = {byte: character for character, byte in ALPHABET.items()}
    return [of_byte[byte] for byte in text.encode()]


def test_special_tokens_are_no_text_unless_asked_for_and_an_end_token_never_is() -> None:
    end, user = id_of("<|endoftext|>"), id_of("<|user|>")
    tokens = [*vocabulary().encode("a"), user, *vocabulary().encode("b"), end]
    ends = frozenset({end})
    assert text_of(read_all(rules(end_tokens=ends), tokens)) == "ab"
    shown = rules(end_tokens=ends, skip_special=False)
    assert text_of(read_all(shown, tokens)) == "a<|user|>b"


def test_reading_costs_the_same_for_every_token() -> None:
    tokens = [random.Random(0).randrange(300) for _ in range(10_000)]
    reader = Reader(rules(stops=("never to be seen",)))

    def seconds(first: int, last: int) -> float:
        began = time.process_time()
        for token in tokens[first:last]:
            reader.feed([token])
        return time.process_time() - began

    early, _, late = seconds(0, 2000), seconds(2000, 8000), seconds(8000, 10_000)
    assert late < 3 * early + 0.05


# -- stops -------------------------------------------------------------------------------------


def first_stop(text: str, stops: list[str]) -> tuple[str, str | None]:
    """By definition: the first stop to be complete, the longest of those complete at once."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


@QUICK
@given(
    st.text("ab", max_size=20), st.lists(LETTERS, min_size=1, max_size=3, unique=True), st.data()
)
def test_a_stop_is_found_wherever_the_text_is_cut_and_nothing_else_is_held_at_the_end(
    text: str, stops: list[str], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    finder = Finder(stops)
    given, stopped = "", None
    for start, end in pairwise([0, *cuts, len(text)]):
        found = finder.feed(text[start:end])
        if isinstance(found, Found):
            given, stopped = given + found.before, found.text
            break
        given += found
        # Only what may still become a stop is held back.
        assert finder.held == "" or any(stop.startswith(finder.held) for stop in stops)
    assert (given + finder.flush(), stopped) == first_stop(text, stops)


def test_a_stop_is_found_in_every_short_text() -> None:
    texts = ["".join(letters) for size in range(9) for letters in product("ab", repeat=size)]
    for stop in ("a", "ab", "aab", "aba", "abab", "aabaa", "abaab"):
        for text in texts:
            finder = Finder((stop,))
            before, stopped = "", None
            for character in text:
                found = finder.feed(character)
                if isinstance(found, Found):
                    before, stopped = before + found.before, found.text
                    break
                before += found
            assert (before + finder.flush(), stopped) == first_stop(text, [stop])


def test_a_reader_costs_the_same_however_long_its_stops_are() -> None:
    """A request may have thousands of replies, each read on the thread that serves everyone."""

    def seconds(length: int) -> float:
        stops = tuple("ab"[index % 2] * length + str(index) for index in range(64))
        began = time.process_time()
        for _ in range(100):
            Reader(rules(stops=stops)).feed([id_of("a")])
        return time.process_time() - began

    seconds(9)
    assert seconds(4096) < 3 * seconds(9) + 0.05


def cut(*pieces: str) -> list[int]:
    """Tokens of exactly these texts, added to the vocabulary as they are asked for."""
    tokenizer = byte_level_tokenizer()
    ids = []
    for piece in pieces:
        tokenizer.add_tokens([piece])
        found = tokenizer.token_to_id(piece)
        vocabulary().added[found] = piece.encode()
        ids.append(found)
    return ids


@pytest.mark.parametrize(
    ("stop", "pieces", "text", "ends_at"),
    [
        ("DEFGHIJ", ("ABC", "DEF", "G", "HI", "J", "KL"), "ABC", 5),
        ("DE", ("ABC", "DEF", "GHI"), "ABC", 2),
        ("XYZ", ("AX", "YX", "YZ"), "AXY", 3),
        ("\n\n", ("a\n", "b\n", "\nc"), "a\nb", 3),
    ],
)
def test_a_stop_over_tokens_and_inside_a_token_ends_the_reply_at_its_token(
    stop: str, pieces: tuple[str, ...], text: str, ends_at: int
) -> None:
    tokens = cut(*pieces)
    reading = rules(stops=(stop,))
    assert text_of(read_all(reading, tokens)) == text
    ends = ends_at_stop(reading)
    verdicts = [ends(tokens[: count + 1]) for count in range(len(tokens))]
    assert verdicts.index(True) + 1 == ends_at


def test_what_was_held_back_is_given_at_the_end_and_no_part_is_empty() -> None:
    parts = read_all(rules(stops=("DEFGHIJ",)), cut("ABC", "DEF", "G"))
    assert [part.text for part in parts] == ["ABC", "DEFG"]


# -- reasoning ---------------------------------------------------------------------------------


@pytest.mark.parametrize("as_tokens", [True, False])
@pytest.mark.parametrize("opened", [True, False])
def test_reasoning_is_apart_from_content_by_token_and_by_text(
    as_tokens: bool, opened: bool
) -> None:
    text = ("" if opened else "\n<think>") + "wonder 世</think>\nhere </think> it is"
    tokens = list(vocabulary().encode(text))
    if not as_tokens:
        tokens = [token for one in text for token in vocabulary().encode(one)]
    reading = rules(markers=think_markers(as_tokens=as_tokens), reasoning=opened)
    parts = read_all(reading, tokens)
    assert text_of(parts, "reasoning") == "wonder 世"
    assert text_of(parts).strip() == "here </think> it is"


@pytest.mark.parametrize("as_tokens", [True, False])
def test_a_reply_that_does_not_begin_with_its_marker_is_content(as_tokens: bool) -> None:
    for text in ("plain <think>no</think>", "<th", " <thin", "<think"):
        tokens = [token for one in text for token in vocabulary().encode(one)]
        if as_tokens:
            tokens = list(vocabulary().encode(text))
        parts = read_all(rules(markers=think_markers(as_tokens=as_tokens)), tokens)
        assert (text_of(parts), text_of(parts, "reasoning")) == (text, "")


@pytest.mark.parametrize("as_tokens", [True, False])
def test_a_stop_inside_the_reasoning_does_not_end_the_reply(as_tokens: bool) -> None:
    text = "a STOP b</think>c STOP d"
    tokens = [token for one in text for token in vocabulary().encode(one)]
    if as_tokens:
        tokens = list(vocabulary().encode(text))
    reading = rules(markers=think_markers(as_tokens=as_tokens), reasoning=True, stops=("STOP",))
    parts = read_all(reading, tokens)
    assert text_of(parts, "reasoning") == "a STOP b"
    assert text_of(parts) == "c "
    ends = ends_at_stop(reading)
    first = next(n for n in range(1, len(tokens) + 1) if ends(tokens[:n]))
    # The content's STOP is complete with its P.
    assert vocabulary().decode(tokens[:first]).endswith("c STOP")


@pytest.mark.parametrize("as_tokens", [True, False])
def test_a_section_end_at_every_place_of_a_window_reads_as_if_its_tokens_came_one_by_one(
    as_tokens: bool,
) -> None:
    text = "a STOP 世</think>c d STOP e"
    tokens = [token for one in text for token in vocabulary().encode(one)]
    if as_tokens:
        tokens = list(vocabulary().encode(text))
    reading = rules(markers=think_markers(as_tokens=as_tokens), reasoning=True, stops=("STOP",))
    apart, single = read_all(reading, tokens), Reader(reading)
    for token in tokens:
        single.feed([token])
    assert text_of(apart, "reasoning") == "a STOP 世"
    for width in range(2, len(tokens) + 1):
        for first in range(width):
            reader, ends = Reader(reading), ends_at_stop(reading)
            cuts = [0, first, *range(first + width, len(tokens), width), len(tokens)]
            parts = []
            for start, end in pairwise(cuts):
                parts += reader.feed(tokens[start:end])
                # The engine thread asks for each token of a window in turn.
                stopped = [ends(tokens[:count]) for count in range(start + 1, end + 1)]
                if any(stopped):
                    assert start + stopped.index(True) + 1 == stop_at(reading, tokens)
                    break
            parts += reader.finish()
            for section in ("reasoning", "content"):
                assert text_of(parts, section) == text_of(apart, section)
            assert reader.reasoning_tokens == single.reasoning_tokens
            assert reader.stopped == single.stopped == "STOP"


def stop_at(reading: ReadingRules, tokens: list[int]) -> int:
    ends = ends_at_stop(reading)
    return next(count for count in range(1, len(tokens) + 1) if ends(tokens[:count]))


def test_reasoning_tokens_count_up_to_the_marker_that_closes_it() -> None:
    tokens = [*vocabulary().encode("ab"), id_of(PLAIN[1]), *vocabulary().encode("cd")]
    reader = Reader(rules(markers=think_markers(as_tokens=True), reasoning=True))
    reader.feed(tokens)
    assert reader.reasoning_tokens == tokens.index(id_of(PLAIN[1])) + 1


def test_a_half_character_before_a_marker_stays_in_its_section() -> None:
    half = byte_level_tokenizer().token_to_id(spelled("🎉")[0])
    tokens = [half, id_of(PLAIN[1]), *vocabulary().encode("x")]
    parts = read_all(rules(markers=think_markers(as_tokens=True), reasoning=True), tokens)
    assert (text_of(parts, "reasoning"), text_of(parts)) == ("\ufffd", "x")
