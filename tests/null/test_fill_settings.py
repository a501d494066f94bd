"""What a backend makes of the fill switches: presets, bounds, and refusals with the reason."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorfold.core.errors import StartError
from tensorfold.core.fill_settings import FILLS, PRESETS, fill_fields
from tensorfold.core.settings import Settings, read, switches


def fields(settings: Settings, **changes: int) -> dict[str, Any]:
    engine = {"context": 4096, "chunk_rows": 512, "passes": 0, "pack_rows": 512, **changes}
    return fill_fields(settings, **engine)


def test_unset_fills_are_zero_but_for_the_rounds() -> None:
    unset = dict.fromkeys(("fill_chunks", "fill_cut_in", "fill_drain", "fill_pack"), 0)
    assert fields(Settings()) == {**unset, "fill_many": False, "fill_rounds": 1}


@pytest.mark.parametrize(
    ("settings", "engine", "sentence"),
    [
        (Settings(fill_many=True), {}, "TF_FILL_MANY needs TF_FILL_CHUNKS"),
        (Settings(fill_rounds=2), {}, "TF_FILL_ROUNDS needs TF_FILL_CHUNKS"),
        (Settings(fill_rounds=0), {}, "TF_FILL_ROUNDS needs TF_FILL_CHUNKS"),
        (Settings(fill_cut_in=8), {}, "TF_FILL_CUT_IN needs TF_FILL_CHUNKS"),
        (Settings(fill_drain=8), {}, "TF_FILL_DRAIN needs TF_FILL_CHUNKS"),
        (Settings(fill_chunks=1, fill_cut_in=8), {"passes": 1}, "TF_FILL_CUT_IN cannot work"),
        (Settings(fill_pack=8), {"passes": 1}, "TF_FILL_PACK cannot work"),
        (Settings(fill_pack=513), {}, "TF_FILL_PACK is 513 rows, more than the 512"),
        (Settings(fill_chunks=9), {}, "TF_FILL_CHUNKS is 9, more than the 8 chunks"),
    ],
)
def test_a_combination_that_can_do_nothing_is_refused_with_the_reason(
    settings: Settings, engine: dict[str, int], sentence: str
) -> None:
    with pytest.raises(StartError, match=sentence):
        fields(settings, **engine)


@given(
    chunks=st.integers(1, 8),
    many=st.booleans(),
    rounds=st.integers(0, 5),
    cut_in=st.integers(0, 600),
    drain=st.integers(0, 9000),
    pack=st.integers(0, 512),
)
def test_with_chunks_set_every_fill_reaches_the_engine_as_it_was_given(
    chunks: int, many: bool, rounds: int, cut_in: int, drain: int, pack: int
) -> None:
    wanted = {
        "fill_chunks": chunks,
        "fill_many": many,
        "fill_rounds": rounds,
        "fill_cut_in": cut_in,
        "fill_drain": drain,
        "fill_pack": pack,
    }
    assert fields(Settings(**wanted)) == wanted


# -- presets -----------------------------------------------------------------------------------

SMOOTH = {
    "fill_chunks": 1,
    "fill_many": True,
    "fill_rounds": 1,
    "fill_cut_in": 512,
    "fill_drain": 1024,
    "fill_pack": 1024,
}
ROOMY = {"chunk_rows": 2048, "context": 1 << 20, "pack_rows": 8192}


def test_every_preset_is_a_choice_and_names_fills_alone() -> None:
    entry, default = switches()["fill"]
    assert set(PRESETS) == set(entry.choices)
    assert default == ""
    assert all(set(values) <= set(FILLS) for values in PRESETS.values())
    assert set(FILLS) == {name for name in switches() if name.startswith("fill_")}


def test_smooth_sets_every_fill_and_plain_none() -> None:
    assert fields(read({"fill": "smooth"}, {}), **ROOMY) == SMOOTH
    assert fields(read({}, {"TF_FILL": "smooth"}), **ROOMY) == SMOOTH
    unset = fields(Settings())
    assert fields(read({"fill": "plain"}, {})) == fields(read({"fill": ""}, {})) == unset
    assert fields(read({"fill": "plain"}, {"TF_FILL": "smooth"})) == unset


def test_a_preset_that_is_none_is_refused() -> None:
    with pytest.raises(StartError, match="--fill must be one of plain, smooth, not 'rough'"):
        read({"fill": "rough"}, {})


@pytest.mark.parametrize("source", ["flag", "environment"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fill_chunks", 3),
        ("fill_many", False),
        ("fill_rounds", 0),
        ("fill_cut_in", 0),
        ("fill_drain", 0),
        ("fill_drain", 100),
        ("fill_pack", 0),
        ("fill_pack", 4096),
    ],
)
def test_a_fill_that_is_given_itself_wins_over_the_preset_even_with_its_default(
    source: str, name: str, value: int
) -> None:
    flags = {name: str(value)} if source == "flag" else {}
    environ = {} if flags else {"TF_" + name.upper(): str(value)}
    settings = read({"fill": "smooth", **flags}, environ)
    assert fields(settings, **ROOMY) == {**SMOOTH, name: value}


def test_plain_leaves_a_fill_that_is_given_itself() -> None:
    given_too = read({"fill": "plain", "fill_pack": "100"}, {"TF_FILL_CHUNKS": "2"})
    assert fields(given_too) == {**fields(Settings()), "fill_chunks": 2, "fill_pack": 100}


@pytest.mark.parametrize(
    ("engine", "changed"),
    [
        ({"pack_rows": 500}, {"fill_pack": 500}),
        ({"pack_rows": 0}, {"fill_pack": 0}),
        ({"chunk_rows": 64}, {"fill_cut_in": 64}),
        ({"passes": 1}, {"fill_pack": 0, "fill_cut_in": 0}),
        ({"passes": 2}, {}),
        ({"context": 16}, {}),
    ],
)
def test_a_preset_is_cut_to_what_the_engine_can_do(
    engine: dict[str, int], changed: dict[str, int]
) -> None:
    settings = read({"fill": "smooth"}, {})
    assert fields(settings, **{**ROOMY, **engine}) == {**SMOOTH, **changed}


@given(
    chunk_rows=st.integers(1, 5000),
    context=st.integers(1, 1 << 21),
    passes=st.integers(0, 3),
    pack_rows=st.integers(0, 1 << 16),
    name=st.sampled_from(sorted(PRESETS)),
)
def test_no_engine_refuses_a_preset(
    chunk_rows: int, context: int, passes: int, pack_rows: int, name: str
) -> None:
    fill_fields(
        read({"fill": name}, {}),
        context=context,
        chunk_rows=chunk_rows,
        passes=passes,
        pack_rows=pack_rows,
    )


def test_a_fill_given_beside_a_preset_is_refused_as_before() -> None:
    cases: list[tuple[dict[str, str], dict[str, int], str]] = [
        ({"fill_pack": "513"}, {}, "TF_FILL_PACK is 513 rows, more than the 512"),
        ({"fill_pack": "8"}, {"passes": 1}, "TF_FILL_PACK cannot work"),
        ({"fill_cut_in": "8"}, {"passes": 1}, "TF_FILL_CUT_IN cannot work"),
        ({"fill_chunks": "9"}, {}, "TF_FILL_CHUNKS is 9, more than the 8 chunks"),
        ({"fill_chunks": "0"}, {}, "TF_FILL_MANY needs TF_FILL_CHUNKS"),
    ]
    for flags, engine, words in cases:
        with pytest.raises(StartError, match=words):
            fields(read({"fill": "smooth", **flags}, {}), **engine)
