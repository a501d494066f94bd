"""What a drafter owes the host: `core/drafter_api`."""

from __future__ import annotations

from collections.abc import Sequence

from tensorfold.core.drafter_api import HostDrafter, StreamDrafter
from tensorfold.plugins.testing.driving import hold

VOCAB = 32
MOST = 5
ROUNDS = 200
# A context that repeats itself and one that does not.
LOOP, WALK = (3, 1, 4, 1, 5, 9, 2, 6), 7


def token_at(kind: str, place: int) -> int:
    return LOOP[place % len(LOOP)] if kind == "loop" else (place * place + WALK * place) % VOCAB


def check_drafter(drafter: HostDrafter) -> int:
    """Hold a drafter to its words over two streams in turns; how many of its guesses came true.

    Looked at: at most as many guesses as asked, each a token with a chance from 0 to 1, and that a
    stream's guesses do not depend on the other stream. Raises `PromiseBroken`.
    """
    hold(bool(drafter.name and drafter.summary), f"{drafter!r} has no name or no summary")
    apart = [drive({kind: drafter.begin()}) for kind in ("loop", "walk")]
    together = drive({"loop": drafter.begin(), "walk": drafter.begin()})
    for kind, own in zip(("loop", "walk"), apart, strict=True):
        alone, beside = own[kind], together[kind]
        hold(alone == beside, f"{drafter.name} guesses otherwise for a stream beside another")
    return sum(true for own in apart for guesses in own.values() for _, true in guesses)


def drive(streams: dict[str, StreamDrafter]) -> dict[str, list[tuple[list[int], int]]]:
    """Rounds as a host has them: guesses, what came of them, and the time of a round in flight."""
    contexts: dict[str, list[int]] = {kind: [token_at(kind, 0)] for kind in streams}
    found: dict[str, list[tuple[list[int], int]]] = {kind: [] for kind in streams}
    for turn in range(ROUNDS):
        for kind, stream in streams.items():
            context, most = contexts[kind], 1 + turn % MOST
            guesses = proposed(stream, tuple(context), most)
            coming = [token_at(kind, len(context) + place) for place in range(len(guesses) + 1)]
            true = next(
                (place for place, guess in enumerate(guesses) if guess != coming[place]),
                len(guesses),
            )
            context += coming[: true + 1]
            if guesses:
                stream.landed(true)
            stream.rest(tuple(context))
            found[kind].append((guesses, true))
    return found


def proposed(stream: StreamDrafter, context: Sequence[int], most: int) -> list[int]:
    answer = stream.propose(context, most)
    tokens, chances = list(answer.tokens), list(answer.chances)
    hold(len(tokens) == len(chances), f"{len(tokens)} guesses with {len(chances)} chances")
    hold(len(tokens) <= most, f"{len(tokens)} guesses, and {most} were asked")
    kinds = all(type(token) is int and token >= 0 for token in tokens)
    hold(kinds, f"a guess among {tokens} is no token")
    hold(all(0 <= chance <= 1 for chance in chances), f"a chance among {chances} is not in 0 to 1")
    return tokens
