"""The cases of `faults`: each builds its kind of trouble and says what was found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tensorfold.core.lane_host.host import HostOptions
from tensorfold.core.lane_host.stream import CANCELLED
from tensorfold.tools.sim.arms import CUT_IN, DRAIN, MANY, SMOOTH, UNSET, Limits
from tensorfold.tools.sim.arrivals import Mix, poisson_story
from tensorfold.tools.sim.beside import (
    BESIDE_ROWS,
    DECODER,
    LONG,
    MOMENTS,
    SHORT,
    decode_story,
    long_ms,
    promised_share,
    prompt_rate,
    short_story,
)
from tensorfold.tools.sim.bursts import figures_of, off
from tensorfold.tools.sim.costs import fitted
from tensorfold.tools.sim.figures import (
    filled_once,
    gap_bound,
    kept_rate,
    longest_gap,
    longest_wait,
    most_rows,
    passed_by,
    pieces_before,
    rows_bound,
    wait_bound,
)
from tensorfold.tools.sim.sizes import Sizes
from tensorfold.tools.sim.world import Seen, Story, World, faithful, job_of, own_reply

CHUNKS_1: Mapping[str, Any] = {"fill_chunks": 1}
WITHIN = 0.02

# More prompts than the engine can take, so that some always wait.
BACKLOG = Mix(rate=6.0, classes=((1.0, 3072, 6144),), tokens=(32, 96))
BACKLOG_LANES = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """`holds` is none where nothing is asked of the row."""

    arm: str
    must: str
    found: str
    holds: bool | None


def backlog(arm: Mapping[str, Any], sizes: Sizes, lanes: int = BACKLOG_LANES) -> Story:
    streams = max(2 * lanes, min(3 * lanes, sizes.streams))
    return poisson_story(arm, fitted(), mix=BACKLOG, streams=streams, limits=Limits(lanes=lanes))


def prefill_first(sizes: Sizes) -> list[Finding]:
    must = "the gap between two rounds of a live stream is bounded"
    found = []
    for name, arm in {"unset": UNSET, "chunks 1": CHUNKS_1, "smooth": SMOOTH}.items():
        story = backlog(arm, sizes)
        gap = longest_gap(story)
        if not story.info.fill_chunks:
            found.append(Finding(arm=name, must=must, found=f"{gap:.2f} s", holds=None))
            continue
        most = gap_bound(story.info, story.costs, shortest=3072, context=6144)
        found.append(
            Finding(
                arm=name,
                must=must,
                found=f"{gap:.2f} s of {most:.2f} s",
                holds=gap <= most and faithful(story),
            )
        )
    return found


def knobs_bound_a_backlog(sizes: Sizes) -> list[Finding]:
    found = []
    for chunks in (1, 2, 4):
        for rounds in (0, 1, 3):
            arm = {"fill_chunks": chunks, "fill_many": True, "fill_rounds": rounds}
            story = backlog(arm, sizes, lanes=8)
            rows, most = most_rows(story), rows_bound(story.info)
            wait, longest = longest_wait(story).rounds, wait_bound(story.info)
            found.append(
                Finding(
                    arm=f"many, CHUNKS {chunks}, ROUNDS {rounds}",
                    must="rows before a round, and rounds before a step, are bounded",
                    found=f"{rows} of {most} rows, {wait} of {longest} rounds",
                    holds=rows <= most and wait <= longest and faithful(story),
                )
            )
    return found


def decode_and_prompt(sizes: Sizes) -> list[Finding]:
    costs, found = fitted(), []
    for budget in (1024, 4096, 8192):
        limits = Limits(context=1 << 17, chunk_rows=budget, pack_rows=budget)
        lone = decode_story(CHUNKS_1, costs, beside=False, limits=limits)
        story = decode_story(CHUNKS_1, costs, beside=True, limits=limits)
        kept = kept_rate(story, lone, DECODER, LONG)
        promised = promised_share(costs, 1, 1, limits)
        alone = 1000 * BESIDE_ROWS / long_ms(costs, BESIDE_ROWS, limits)
        filled = prompt_rate(story) / alone
        found.append(
            Finding(
                arm=f"chunks of {budget} rows",
                must="decode keeps rounds/(rounds + piece), the prompt piece/(rounds + piece)",
                found=f"{kept:.4f} of {promised:.4f}, {filled:.4f} of {1 - promised:.4f}",
                holds=kept >= promised * (1 - WITHIN) and filled >= (1 - promised) * (1 - WITHIN),
            )
        )
    return found


def short_behind_long(sizes: Sizes) -> list[Finding]:
    costs, found = fitted(), []
    rows = min(sizes.rows, 60_000)
    for name, arm, asked in (("chunks 1", CHUNKS_1, False), ("smooth", SMOOTH, True)):
        story = short_story(arm, costs, rows=rows, live=True)
        shorts = range(SHORT, SHORT + len(MOMENTS))
        pieces = max(pieces_before(story, LONG, short) for short in shorts)
        waited = max(story.seen(short).waited for short in shorts)
        found.append(
            Finding(
                arm=name,
                must=f"101 rows start within two pieces of {rows}",
                found=f"{pieces} pieces, first token after {waited:.2f} s",
                holds=pieces <= 2 and faithful(story) if asked else None,
            )
        )
    return found


def constant_cut_in(sizes: Sizes) -> list[Finding]:
    """Four clients that ask again as soon as they were answered, beside one long prompt."""
    found = []
    arms = {"cut in": CUT_IN, "cut in, ROUNDS 3": {**CUT_IN, "fill_rounds": 3}, "smooth": SMOOTH}
    for name, arm in arms.items():
        story = clients_beside_long(arm, clients=4)
        rounds = story.info.fill_rounds
        most = wait_bound(story.info) if story.info.fill_many else 2 * max(1, rounds)
        wait = longest_wait(story, LONG).rounds
        alone = long_ms(story.costs, BESIDE_ROWS // 4, Limits()) / 1000
        found.append(
            Finding(
                arm=name,
                must="the long prompt gets its next step within a bound",
                found=(
                    f"{wait} of {most} rounds; it took {story.seen(LONG).waited / alone:.1f} times "
                    "as long as alone"
                ),
                holds=wait <= most and faithful(story),
            )
        )
    return found


def clients_beside_long(arm: Mapping[str, Any], *, clients: int) -> Story:
    next_stream = 100

    def ended(world: World, seen: Seen) -> None:
        nonlocal next_stream
        if seen.stream >= 100 and not world.seen[LONG].times:
            next_stream += 1
            world.submit([job_of(next_stream, 40, 8)])

    world = World(arm, fitted(), ended=ended)
    world.arrive(0.0, job_of(LONG, BESIDE_ROWS // 4, 4))
    for client in range(clients):
        next_stream += 1
        world.arrive(0.5 + 0.1 * client, job_of(next_stream, 40, 8))
    return world.run()


def several_short(sizes: Sizes) -> list[Finding]:
    found = []
    arms = {"chunks 1": CHUNKS_1, "many": MANY, "cut in": CUT_IN, "smooth": SMOOTH}
    for name, arm in arms.items():
        world = World(arm, fitted())
        world.arrive(0.0, job_of(LONG, BESIDE_ROWS // 4, 4))
        shorts = range(SHORT, SHORT + 5)
        for short in shorts:
            world.arrive(1.0 + 0.01 * short, job_of(short, 200, 16))
        story = world.run()
        last = max(story.seen(short).times[0] for short in shorts)
        found.append(
            Finding(
                arm=name,
                must="five short ones have their first tokens before the long prompt is in",
                found=f"{last - 1.0:.2f} s, the long one {story.seen(LONG).times[0]:.2f} s",
                holds=None if arm is CHUNKS_1 else last < story.seen(LONG).times[0],
            )
        )
    return found


def full_pool(sizes: Sizes) -> list[Finding]:
    mix = Mix(rate=4.0, classes=((1.0, 600, 3000),), tokens=(16, 64))
    found = []
    for name, arm in {"chunks 1": CHUNKS_1, "smooth": SMOOTH}.items():
        story = poisson_story(arm, fitted(), mix=mix, streams=60, limits=Limits(room_tokens=3_300))
        found.append(
            Finding(
                arm=name,
                must="every prompt row goes in once and every reply is whole",
                found=f"{story.stats.filled_rows} rows of {sum(s.rows for s in story.streams)}",
                holds=filled_once(story) and faithful(story),
            )
        )
    return found


def place_in_line(sizes: Sizes) -> list[Finding]:
    """Small ones pass a big one that waits for memory, but not for ever."""
    mix = Mix(rate=6.0, classes=((0.9, 64, 256), (0.1, 2800, 3000)), tokens=(16, 64))
    skips = HostOptions().skips
    found = []
    for name, arm in {"chunks 1": CHUNKS_1, "smooth": SMOOTH}.items():
        story = poisson_story(arm, fitted(), mix=mix, streams=200, limits=Limits(room_tokens=3_300))
        passed = passed_by(story)
        found.append(
            Finding(
                arm=name,
                must=f"at most {skips} later ones pass one that waits for memory",
                found=f"{passed} passed",
                holds=passed <= skips and faithful(story),
            )
        )
    return found


def decode_stalls(sizes: Sizes) -> list[Finding]:
    costs, found = fitted(), []
    for name, arm in {"unset": UNSET, "chunks 1": CHUNKS_1, "smooth": SMOOTH}.items():
        story = decode_story(arm, costs, beside=True)
        gap = longest_gap(story)
        piece = costs.pass_ms([(BESIDE_ROWS - 512, BESIDE_ROWS)])
        most = (piece + costs.round_ms(10, 2)) / 1000
        found.append(
            Finding(
                arm=name,
                must="a round follows every piece",
                found=f"longest gap {gap:.2f} s, a piece and a round {most:.2f} s",
                holds=None if arm is UNSET else gap <= most,
            )
        )
    return found


def long_contexts(sizes: Sizes) -> list[Finding]:
    words = "not told here: the model's rounds cost the same at every context"
    return [Finding(arm="-", must="two long contexts keep their rate", found=words, holds=None)]


def burst_out_of_step(sizes: Sizes) -> list[Finding]:
    few = Sizes(prompts=min(4, sizes.prompts))
    many, drain, unset = (figures_of(arm, fitted(), few) for arm in (MANY, DRAIN, UNSET))
    gain = off(drain.aggregate, many.aggregate)
    return [
        Finding(
            arm="drain",
            must="a burst keeps its rate and its first tokens",
            found=(
                f"{gain:+.1%} over many, first {many.slowest_first:.2f} -> "
                f"{drain.slowest_first:.2f} s, unset {unset.slowest_first:.2f} s"
            ),
            holds=gain >= 0.55 and drain.slowest_first <= 1.01 * unset.slowest_first,
        )
    ]


def cyclic_contexts(sizes: Sizes) -> list[Finding]:
    words = "not told here: nothing is kept in this simulation"
    return [Finding(arm="-", must="a cycle of contexts is resumed", found=words, holds=None)]


def endless_queue(sizes: Sizes) -> list[Finding]:
    """Floods far beyond the queue's bound; the refused are told when to come again."""
    options = HostOptions(queue_requests=256)
    world = World(SMOOTH, fitted(), options=options)
    flood = max(600, min(3000, sizes.streams))
    for place in range(flood):
        at = 0.0 if place < flood // 2 else 8.0
        world.arrive(at, job_of(place, 64 + place % 128, 4))
    story = world.run()
    told = [refusal.retry_after or 0 for refusal in story.refusals if refusal.at > 0]
    waiting = [seen for seen in story.streams if seen.arrived <= 8.0 < seen.admitted]
    took = max(seen.admitted for seen in waiting) - 8.0
    most = max(turn.waiting for turn in story.turns)
    every = len(story.streams) + len(story.refusals) == flood
    refused = all(refusal.status == 429 for refusal in story.refusals)
    return [
        Finding(
            arm=f"smooth, queue of {options.queue_requests}",
            must="waiting is bounded, the rest gets a 429, every accepted reply is whole",
            found=f"{most} waited, {len(story.refusals)} of {flood} refused",
            holds=most <= options.queue_requests and every and refused and faithful(story),
        ),
        Finding(
            arm=f"smooth, queue of {options.queue_requests}",
            must="Retry-After is within a factor of two of the time until those waiting are in",
            found=f"told {min(told)} to {max(told)} s, it took {took:.1f} s",
            holds=took / 2 <= min(told) and max(told) <= 2 * took,
        ),
    ]


def many_readers(sizes: Sizes) -> list[Finding]:
    """Replies of all lengths, of which every third reader leaves."""
    world = World(SMOOTH, fitted())
    for stream in range(48):
        world.arrive(0.2 * stream, job_of(stream, 30 + 50 * (stream % 7), 20 + 3 * stream))
        if stream % 3 == 0:
            world.cancel(0.2 * stream + 1.5, stream)
    story = world.run()
    left = [seen for seen in story.streams if seen.end and seen.end.reason == CANCELLED]
    own = all(seen.tokens == own_reply(seen.job)[: len(seen.tokens)] for seen in story.streams)
    stayed = [seen for seen in story.streams if seen not in left]
    whole = all(len(seen.tokens) == seen.job.most for seen in stayed)
    return [
        Finding(
            arm="smooth",
            must="each reader gets its own tokens once and one end",
            found=f"{len(stayed)} whole, {len(left)} left early",
            holds=own and whole and 0 < len(left) < len(story.streams),
        )
    ]


def overflow(sizes: Sizes) -> list[Finding]:
    world = World(SMOOTH, fitted(), limits=Limits(context=32_768, room_tokens=32_768))
    world.arrive(0.0, job_of(1, 22_000, 400))
    world.arrive(0.1, job_of(2, 22_000, 400))
    story = world.run()
    replies = " and ".join(str(len(seen.tokens)) for seen in story.streams)
    waited = story.seen(2).admitted - story.seen(2).arrived
    return [
        Finding(
            arm="smooth",
            must="both replies are whole, the second one waits",
            found=f"{replies} tokens, the second waited {waited:.1f} s",
            holds=faithful(story) and len(story.streams) == 2,
        )
    ]
