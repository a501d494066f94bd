"""What an engine promises, looked at through its door alone: `core/engine_api`.

Replies are made of a few prompts, of lengths around the grid and a chunk's end, greedy and sampled.
Each must have the same tokens and log-probabilities alone, again, in company, in pieces, packed,
with guesses right and wrong, and from a kept state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tensorfold.core.engine_api import Engine, Window
from tensorfold.plugins.testing.driving import Driver, Reply, asks_of, hold


def check_engine(engine: Engine) -> Mapping[str, int]:
    """Hold an engine to its promises; how many replies were compared, by promise.

    The engine is left as it was found. A promise that its `Info` leaves no room for (packs, windows
    of several rows, several lanes) is told with 0. Raises `PromiseBroken` naming the reply.
    """
    driver, asks = Driver(engine), asks_of(engine)
    used = engine.memory().used
    solo = [driver.alone(ask) for ask in asks]
    found = {
        name: check(driver, solo)
        for name, check in (
            ("again = first", again),
            ("pieces = whole", in_pieces),
            ("packed = alone", packed),
            ("concurrent = solo", in_company),
            ("drafted = undrafted", guessed),
            ("forced = masked", forced),
            ("resumed = fresh", resumed),
            ("after = before", after_a_close),
        )
    }
    now = engine.memory().used
    hold(now == used, f"{now} bytes are in use after the last close, {used} were before")
    return found


def again(driver: Driver, solo: Sequence[Reply]) -> int:
    for reply in solo:
        driver.alone(reply.ask).same(reply, "again")
    return len(solo)


def in_pieces(driver: Driver, solo: Sequence[Reply]) -> int:
    compared = 0
    for reply in solo:
        rows = len(reply.ask.prompt)
        for step in (driver.pace, 2 * driver.pace):
            cuts = range(step, rows, step)
            if cuts:
                driver.alone(reply.ask, cuts).same(reply, f"in pieces of {step} rows")
                compared += 1
    return compared


def packed(driver: Driver, solo: Sequence[Reply]) -> int:
    """All prompts that fit one forward together, in both orders."""
    info = driver.info
    chosen: list[Reply] = []
    for reply in solo:
        rows = sum(len(one.ask.prompt) for one in (*chosen, reply))
        seats = info.lanes if info.passes == 0 else min(info.lanes, info.passes)
        fits = rows <= info.pack_rows and len(reply.ask.prompt) <= info.chunk_rows
        if fits and len(chosen) < min(seats, info.round_rows):
            chosen.append(reply)
    if len(chosen) < 2:
        return 0
    for order in (chosen, chosen[::-1]):
        replies = [driver.opened(reply.ask)[0] for reply in order]
        pieces = [driver.piece(reply, 0, len(reply.ask.prompt)) for reply in replies]
        driver.run(pieces, replies)
        driver.finish(replies)
        for found, wanted in zip(replies, order, strict=True):
            found.same(wanted, "packed")
    return 2 * len(chosen)


def in_company(driver: Driver, solo: Sequence[Reply]) -> int:
    """As many as there are lanes, begun one after another while the others are open."""
    seats = min(driver.info.lanes, driver.info.round_rows)
    if seats < 2:
        return 0
    for first in range(0, len(solo), seats):
        group = solo[first : first + seats]
        replies = []
        for reply in group:
            found, start = driver.opened(reply.ask)
            driver.fill(found, start)
            replies.append(found)
        driver.finish(replies)
        for found, wanted in zip(replies, group, strict=True):
            found.same(wanted, f"among {len(group)}")
    return len(solo)


def guessed(driver: Driver, solo: Sequence[Reply]) -> int:
    """Guesses that come true, that do not, that stop to, and the engine's own."""
    vocab_size, compared = driver.info.vocab_size, 0
    if driver.info.window_rows < 2:
        return 0

    def right(reply: Reply, most: int) -> Sequence[int]:
        known = solo[reply.ask.number].tokens
        return known[len(reply.tokens) : len(reply.tokens) + most]

    def wrong(reply: Reply, most: int) -> Sequence[int]:
        return [(token + 1) % vocab_size for token in right(reply, most)]

    def turning(reply: Reply, most: int) -> Sequence[int]:
        return [*right(reply, most)[:1], *wrong(reply, most)[1:]]

    def own(reply: Reply, most: int) -> Sequence[int]:
        return reply.drafts[:most]

    kinds = {"right": right, "wrong": wrong, "turning": turning, "the engine's own": own}
    for reply in solo:
        for name, guess in kinds.items():
            driver.alone(reply.ask, guess=guess).same(reply, f"with {name} guesses")
            compared += 1
    return compared


def forced(driver: Driver, solo: Sequence[Reply]) -> int:
    """Two tokens that the engine would not draw: forced in one window, and each the only one that
    its row's mask allows."""
    vocab_size = driver.info.vocab_size
    if driver.info.window_rows < 3:
        return 0
    for reply in solo:
        first, second = ((token + 1) % vocab_size for token in reply.tokens[1:3])
        together, start = driver.opened(reply.ask)
        driver.fill(together, start)
        tokens = (together.tokens[-1], first, second)
        (landed,) = driver.round([Window(stream=together.stream, tokens=tokens, forced=2)])
        hold(landed.tokens[:2] == (first, second), f"{landed} lacks forced {first}, {second}")
        driver.take(together, landed.tokens, landed.logprobs)
        driver.finish([together])
        masked, start = driver.opened(reply.ask)
        driver.fill(masked, start)
        for token in (first, second):
            window = Window(
                stream=masked.stream,
                tokens=(masked.tokens[-1],),
                masks=(only(token, vocab_size),),
            )
            (landed,) = driver.round([window])
            hold(landed.tokens == (token,), f"{landed} where the mask allows {token} alone")
            driver.take(masked, landed.tokens, landed.logprobs)
        driver.finish([masked])
        masked.same(together, "masked one by one against forced together")
    return len(solo)


def resumed(driver: Driver, solo: Sequence[Reply]) -> int:
    """From the first two states kept and the last; one of another beginning is not taken."""
    compared = 0
    for reply in solo:
        places = range(driver.pace, len(reply.ask.prompt), driver.pace)
        marks = sorted({*places[:2], *places[-1:]})
        if not marks:
            continue
        marked, start = driver.opened(reply.ask, marks)
        driver.fill(marked, start, marks)
        kept = [saved.rows for saved in marked.saved]
        hold(kept == marks, f"states are kept at rows {kept}, marks are {marks}")
        driver.finish([marked])
        marked.same(reply, "with states kept")
        for saved in marked.saved:
            warm, start = driver.opened(reply.ask, resume=saved)
            hold(start == saved.rows, f"{saved} goes on from row {start}")
            driver.fill(warm, start)
            driver.finish([warm])
            warm.same(reply, f"from row {start}")
            compared += 1
        other = solo[reply.ask.number - 1]
        cold, start = driver.opened(other.ask, resume=marked.saved[0])
        hold(start == 0, f"ask {other.ask.number} goes on from a state of another beginning")
        driver.fill(cold, start)
        driver.finish([cold])
        cold.same(other, "with a state of another beginning offered")
        for saved in marked.saved:
            driver.engine.drop(saved)
    return compared


def after_a_close(driver: Driver, solo: Sequence[Reply]) -> int:
    """Streams that end in the middle of their prompt, and after a token, leave nothing behind."""
    longest = solo[-1].ask
    begun, _ = driver.opened(longest)
    rows = min(driver.pace, driver.info.chunk_rows)
    if len(longest.prompt) > rows:
        driver.run([driver.piece(begun, 0, rows)], [begun])
    driver.engine.close(begun.stream)
    begun, start = driver.opened(longest)
    driver.fill(begun, start)
    driver.engine.close(begun.stream)
    for reply in solo:
        driver.alone(reply.ask).same(reply, "after others were closed")
    return len(solo)


def only(token: int, vocab_size: int) -> bytes:
    """The vocabulary mask that allows one token."""
    mask = bytearray(-(-vocab_size // 8))
    mask[token // 8] = 1 << token % 8
    return bytes(mask)
