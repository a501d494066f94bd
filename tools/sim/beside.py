"""A long prompt with company: a short request behind it, a stream that decodes beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorfold.tools.sim.arms import CUT_IN, MANY, SMOOTH, UNSET, Limits
from tensorfold.tools.sim.costs import Costs, fitted
from tensorfold.tools.sim.figures import (
    beginning,
    first_launch,
    gap_bound,
    kept_rate,
    longest_gap,
    most_rows,
    pieces_before,
    rows_bound,
)
from tensorfold.tools.sim.report import Cell, Check, Outcome, Panel, Table
from tensorfold.tools.sim.sizes import Sizes
from tensorfold.tools.sim.world import Story, World, faithful, job_of

DECODER, LONG, SHORT = 1, 2, 3
SHORT_ROWS = 101
TWO_PIECES = 2
# When the short request comes, as parts of the time that the long prompt takes alone.
MOMENTS = (0.013, 0.27, 0.5, 0.77)

BESIDE_ROWS = 65_535
DECODER_ROWS = 4_094
DECODER_TOKENS = 8_192
BESIDE_LIMITS = Limits(context=1 << 17)
WITHIN = 0.02
DRAWN_SECONDS = 8.0


# -- a short request beside a long prompt ----------------------------------------------------------


def long_ms(costs: Costs, rows: int, limits: Limits) -> float:
    """A prompt alone, chunk by chunk."""
    starts = range(0, rows, limits.chunk_rows)
    return sum(costs.pass_ms([(start, min(start + limits.chunk_rows, rows))]) for start in starts)


def short_story(
    arm: Mapping[str, Any],
    costs: Costs,
    *,
    rows: int,
    live: bool,
    moments: tuple[float, ...] = MOMENTS,
    tokens: int = 4096,
) -> Story:
    """A long prompt, short ones at moments of the long one's time, and maybe a decoder of
    `tokens`."""
    limits = Limits()
    world = World(arm, costs, limits=limits)
    if live:
        world.arrive(0.0, job_of(DECODER, 16, tokens))
    world.arrive(0.1, job_of(LONG, rows, 1))
    for place, moment in enumerate(moments):
        at = 0.1 + moment * long_ms(costs, rows, limits) / 1000
        world.arrive(at, job_of(SHORT + place, SHORT_ROWS, 16))
    return world.run()


def short_beside_long(sizes: Sizes) -> Outcome:
    costs = fitted()
    rows: list[tuple[Cell, ...]] = []
    checks: list[Check] = []
    for name, arm in {"unset": UNSET, "chunks 1": {"fill_chunks": 1}}.items():
        cells, _ = short_row(name, arm, None, costs, sizes)
        rows.append(cells)
    for name, arm in {"many": MANY, "cut in": CUT_IN, "smooth": SMOOTH}.items():
        for rounds in (0, 1, 3):
            cells, check = short_row(name, {**arm, "fill_rounds": rounds}, rounds, costs, sizes)
            rows.append(cells)
            checks.append(check)
    return Outcome(
        scenario="short-beside-long",
        tables=(
            Table(
                title=f"{SHORT_ROWS} rows beside a prompt of {sizes.rows} rows",
                columns=(
                    *("arm", "ROUNDS", "pieces before it", "slowest first s"),
                    *("beside a decoder: pieces", "slowest first s, decoder", "bar"),
                ),
                rows=tuple(rows),
                note=(
                    f"The worst of {len(MOMENTS)} moments of arrival. Counted are pieces of the "
                    "long prompt that end after the short request came and begin before it starts, "
                    "the one in flight included. Unset, the whole prompt is one step."
                ),
            ),
        ),
        checks=tuple(checks),
        panels=(
            Panel(
                title="short beside long, smooth",
                turns=short_story(SMOOTH, costs, rows=8_192, live=True, moments=(0.4,)).turns[:40],
            ),
        ),
    )


def short_row(
    name: str, arm: Mapping[str, Any], rounds: int | None, costs: Costs, sizes: Sizes
) -> tuple[tuple[Cell, ...], Check]:
    """Alone with the long prompt and beside a decoder too."""
    found: list[tuple[int, float]] = []
    good = True
    for live in (False, True):
        story = short_story(arm, costs, rows=sizes.rows, live=live)
        shorts = range(SHORT, SHORT + len(MOMENTS))
        good &= faithful(story)
        pieces = max(pieces_before(story, LONG, short) for short in shorts)
        found.append((pieces, max(story.seen(short).waited for short in shorts)))
    holds = good and max(pieces for pieces, _ in found) <= TWO_PIECES
    where = f"{name}, ROUNDS {rounds}"
    check = Check(
        name=f"{SHORT_ROWS} rows start within two pieces of {sizes.rows} ({where})",
        holds=holds,
        found=f"{found[0][0]} pieces, {found[1][0]} beside a decoder",
    )
    asked = None if rounds is None else holds
    return (name, rounds, *found[0], *found[1], asked), check


# -- a decoder beside a long prompt ----------------------------------------------------------------


def decode_story(
    arm: Mapping[str, Any], costs: Costs, *, beside: bool, limits: Limits = BESIDE_LIMITS
) -> Story:
    """A stream that decodes, and a long prompt that comes when it has begun."""
    world = World(arm, costs, limits=limits)
    world.arrive(0.0, job_of(DECODER, DECODER_ROWS, DECODER_TOKENS))
    if beside:
        alone = long_ms(costs, DECODER_ROWS, limits)
        world.arrive(alone / 1000 + 1.0, job_of(LONG, BESIDE_ROWS, 1))
    return world.run()


def promised_share(costs: Costs, chunks: int, rounds: int, limits: Limits) -> float:
    """rounds / (rounds + piece) by the cost model: a step beside the rounds that follow it."""
    steps = -(-BESIDE_ROWS // (chunks * limits.chunk_rows))
    step = long_ms(costs, BESIDE_ROWS, limits) / steps
    lone = rounds * costs.lone_round_ms
    return lone / (lone + step)


def decode_beside_65k(sizes: Sizes) -> Outcome:
    costs, limits = fitted(), BESIDE_LIMITS
    lone = decode_story(UNSET, costs, beside=False)
    lone_rate = rate(lone)
    rows: list[tuple[Cell, ...]] = []
    checks: list[Check] = []
    arms: list[tuple[str, Mapping[str, Any], int, int]] = [
        ("chunks", {"fill_chunks": chunks, "fill_rounds": rounds}, chunks, rounds)
        for chunks in (1, 2, 4)
        for rounds in (1, 3)
    ]
    arms.append(("smooth", SMOOTH, 1, 1))
    for name, arm, chunks, rounds in arms:
        story = decode_story(arm, costs, beside=True)
        kept = kept_rate(story, lone, DECODER, LONG)
        promised = promised_share(costs, chunks, rounds, limits)
        gap, bound = longest_gap(story), beside_gap_bound(story)
        where = f"{name} {chunks}, ROUNDS {rounds}"
        found = [
            Check(
                name=f"a decoder keeps its share beside {BESIDE_ROWS} rows ({where})",
                holds=faithful(story) and kept >= promised * (1 - WITHIN),
                found=f"{kept:.4f} of its lone rate, promised {promised:.4f}",
            ),
            Check(
                name=f"no longer gap than a step and a round ({where})",
                holds=gap <= bound and most_rows(story) <= rows_bound(story.info),
                found=f"{gap:.3f} s of {bound:.3f} s",
            ),
        ]
        checks += found
        rows.append(
            (
                *(name, chunks, rounds, f"{kept:.4f}", f"{promised:.4f}", kept * lone_rate),
                *(gap, bound, prompt_rate(story), all(check.holds for check in found)),
            )
        )
    plain = decode_story(UNSET, costs, beside=True)
    rows.append(
        (*("unset", 0, 1, None, None, None), longest_gap(plain), None, prompt_rate(plain), None)
    )
    return Outcome(
        scenario="decode-beside-65k",
        tables=(
            Table(
                title=f"a stream decodes beside a prompt of {BESIDE_ROWS} rows",
                columns=(
                    *("arm", "CHUNKS", "ROUNDS", "kept", "promised", "tok/s beside"),
                    *("longest gap s", "bound s", "prompt rows/s", "bar"),
                ),
                rows=tuple(rows),
                note=(
                    f"Alone it decodes {lone_rate:.1f} tok/s and the prompt goes in at "
                    f"{1000 * BESIDE_ROWS / long_ms(costs, BESIDE_ROWS, limits):.0f} rows/s. "
                    "Promised: rounds / (rounds + piece) by the cost model. Unset, no round runs."
                ),
            ),
        ),
        checks=tuple(checks),
        panels=tuple(
            Panel(
                title=f"decode beside {BESIDE_ROWS} rows, CHUNKS 1, ROUNDS {rounds}",
                turns=beginning(
                    decode_story({"fill_chunks": 1, "fill_rounds": rounds}, costs, beside=True),
                    DRAWN_SECONDS,
                ),
            )
            for rounds in (1, 3)
        ),
    )


def beside_gap_bound(story: Story) -> float:
    """One prompt beside one stream: the bounded rows as its deepest ones, and a round."""
    one = story.info.chunk_rows * story.info.fill_chunks
    return gap_bound(story.info, story.costs, shortest=max(1, one), context=BESIDE_ROWS)


def rate(story: Story) -> float:
    """Tokens a second of the decoder after its first."""
    seen = story.seen(DECODER)
    return (len(seen.tokens) - 1) / (seen.times[-1] - seen.times[0])


def prompt_rate(story: Story) -> float:
    """Rows a second of the long prompt, from its first forward to its first token."""
    took = story.seen(LONG).times[0] - first_launch(story.turns, LONG)
    return BESIDE_ROWS / took
