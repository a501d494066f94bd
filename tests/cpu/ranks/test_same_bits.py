"""Engines of several ranks over gloo: the promises at each count, and one rank's bits at others."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from tensorfold.backends.cpu_reference.table import candidates
from tensorfold.core.backend_api import Place
from tests.cpu.ranks.running import led, on_ranks, opened_at
from tests.cpu.ranks.scenes import everything

COUNTS = (1, 2, 3, 4)
pytestmark = pytest.mark.timeout(240)


def played(place: Place | None) -> tuple[Any, dict[str, Any]]:
    engine = opened_at(place, drafts=3)
    info = engine.info
    sizes = {name: tuple(buffer.shape) for name, buffer in engine.storage.buffers.items()}
    told: dict[str, Any] = {
        "identity": info.identity,
        "ranks": info.ranks,
        "checks": dict(info.checks),
    }
    told["ops"] = dict(info.ops)
    return led(place, engine, everything), {**told, "sizes": sizes}


@functools.cache
def play(count: int) -> list[tuple[Any, dict[str, Any]]]:
    """What rank 0 of `count` ranks drew, each outcome equal to the others', and what each holds."""
    return on_ranks(count, played)


@pytest.mark.parametrize("count", COUNTS)
def test_a_reply_is_the_same_alone_drafted_and_among_eight(count: int) -> None:
    company, _ = play(count)[0][0]
    for stream, proof in company["alone"].items():
        for how in ("drafted", "among eight", "drafted among eight"):
            assert company[how][stream] == proof, (how, stream)


@pytest.mark.parametrize("count", COUNTS)
def test_a_prompt_whole_in_pieces_packed_or_resumed_gives_one_reply(count: int) -> None:
    _, by_hand = play(count)[0][0]
    assert len(set(map(repr, by_hand.values()))) == 1, by_hand


@pytest.mark.parametrize("count", [2, 4])
def test_two_and_four_ranks_give_the_bits_of_one(count: int) -> None:
    assert play(count)[0][0] == play(1)[0][0]


def test_the_identity_is_that_of_one_rank_where_the_bits_are() -> None:
    identities = [{told["identity"] for _, told in play(count)} for count in COUNTS]
    assert all(len(own) == 1 for own in identities)
    one, two, three, four = (own.pop() for own in identities)
    assert one == two == four != three


def test_a_rank_keeps_only_the_state_of_its_heads() -> None:
    whole = play(1)[0][1]["sizes"]
    for count in COUNTS[1:]:
        for name in whole:
            held = [told["sizes"][name] for _, told in play(count)]
            if name.startswith(("kda.", "conv.")):
                axis = 1 if name.startswith("kda.") else 2
                assert sum(size[axis] for size in held) == whole[name][axis], name
                assert all(size[axis] < whole[name][axis] for size in held), name
            else:
                assert held == [whole[name]] * count, name


@pytest.mark.parametrize("count", COUNTS)
def test_the_checks_of_shares_hold_and_the_engine_tells_its_ranks(count: int) -> None:
    for _, told in play(count):
        assert told["ranks"] == count
        shares = {name: held for name, held in told["checks"].items() if name.startswith("ranks:")}
        assert {"ranks:linear", "ranks:linear_parts", "ranks:latent_attention"} <= set(shares)
        assert all(shares.values()), shares
        # The quick forms pass: no count falls back to slower ones.
        for name in ("linear", "linear_parts", "latent_attention", "experts", "kda_steps"):
            assert told["ops"][name] == candidates()[name][0].label, name
