"""The fake model: integers only, so that any slip of rollback or position changes tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tensorfold.core.engine_api import Opening, TokenLogprob
from tensorfold.core.keyed import row_key

VOCAB = 97
END_TOKEN = 96
# Logits fall by one for each SLOPE ids above the likeliest one, around the vocabulary.
SLOPE = 8.0
NORMALISER = math.log(math.fsum(math.exp(-step / SLOPE) for step in range(VOCAB)))


def likeliest(total: int, length: int) -> int:
    """The greedy next token of a history: its sum and its length are all that counts."""
    return (7 * total + 3 * length) % VOCAB


def drawn(total: int, length: int, opening: Opening, mask: bytes | None = None) -> int:
    """The token at position `length`: keyed noise when sampled, then the first that is allowed."""
    token = likeliest(total, length)
    if opening.sampling.temperature > 0:
        token = (token + row_key(opening.seed, length)) % VOCAB
    if mask is not None:
        steps = (step for step in range(VOCAB) if allows(mask, (token + step) % VOCAB))
        token = (token + next(steps)) % VOCAB
    return token


def allows(mask: bytes, token: int) -> bool:
    return bool(mask[token // 8] >> token % 8 & 1)


def logprob(total: int, length: int, token: int, top: int) -> TokenLogprob:
    """The raw log-probability of a token after a history, and the `top` likeliest ones."""
    first = likeliest(total, length)
    best = tuple(
        ((first + step) % VOCAB, -step / SLOPE - NORMALISER) for step in range(min(top, VOCAB))
    )
    step = (token - first) % VOCAB
    return TokenLogprob(token=token, logprob=-step / SLOPE - NORMALISER, top=best)


def drafts(total: int, length: int, opening: Opening, want: int, wrong_in: int) -> tuple[int, ...]:
    """Guesses that continue a history, each wrong about one time in `wrong_in` (0: never)."""
    guesses = []
    for position in range(length, length + want):
        guess = drawn(total, position, opening)
        if wrong_in and row_key(~opening.seed, position) % wrong_in == 0:
            guess = (guess + 1) % VOCAB
        guesses.append(guess)
        total += guess
    return tuple(guesses)


def reply(opening: Opening, most: int, ends: Sequence[int] = ()) -> list[int]:
    """The whole reply of a job alone, by the definition: what a host over the fake must give."""
    history = list(opening.prompt)
    while len(history) < len(opening.prompt) + most:
        history.append(drawn(sum(history), len(history), opening))
        if history[-1] in ends:
            break
    return history[len(opening.prompt) :]
