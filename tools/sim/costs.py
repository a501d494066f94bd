"""What forwards take: the cost model, and its constants fitted to the published burst.

A pass of rows `[start, end)` takes a + b·rows + c·rows·position milliseconds, position being its
middle row; a pack pays one `a`. A round takes d + e·rows + f·distinct windows: windows with the
same history and the same tokens read the same experts, so they count once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tensorfold.core.engine_api import Piece

# The fake drafts this many tokens and errs in one of so many, which makes 2.6 tokens a round.
DRAFTS = 4
WRONG_IN = 3
WINDOW_ROWS = DRAFTS + 1
TOKENS_A_ROUND = sum((1 - 1 / WRONG_IN) ** depth for depth in range(WINDOW_ROWS))


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """Milliseconds: `a` a pass, `b` a row, `c` a row and position; `d` a round, `e` a row of it,
    `f` a distinct window."""

    a: float
    b: float
    c: float
    d: float
    e: float
    f: float

    def pass_ms(self, spans: Iterable[tuple[int, int]]) -> float:
        """One forward over the rows `[start, end)` of one prompt or of several."""
        ms = self.a
        for start, end in spans:
            ms += (end - start) * (self.b + self.c * (start + end) / 2)
        return ms

    def round_ms(self, rows: int, distinct: int) -> float:
        return self.d + self.e * rows + self.f * distinct

    @property
    def lone_round_ms(self) -> float:
        """A round of one stream with all its drafts."""
        return self.round_ms(WINDOW_ROWS, 1)


def spans_of(pieces: Iterable[Piece]) -> list[tuple[int, int]]:
    return [(piece.start, piece.end) for piece in pieces]


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """A burst as its clients see it: tokens a second, and the slowest first token in seconds."""

    aggregate: float
    steady: float
    slowest_first: float


# Eight short prompts at temperature 0 in eight lanes, replies of 256 tokens, medians.
PUBLISHED_STREAMS = 8
PUBLISHED_TOKENS = 256
PUBLISHED = {
    "unset": Figures(aggregate=318.4, steady=342.6, slowest_first=0.60),
    "many": Figures(aggregate=198.9, steady=214.8, slowest_first=1.01),
    "drain": Figures(aggregate=318.4, steady=342.5, slowest_first=0.60),
}
# The same with four streams: aggregates that the fit does not see.
PUBLISHED_FOUR = {"unset": 212.9, "many": 168.8, "drain": 212.8}

# The published prompts' length is not known, nor how much of a short pass is `a`; both are assumed.
ASSUMED_ROWS = 64
ASSUMED_SHARE = 4 / 7
# Published: attention over the context is 7.4 % of a prompt of 128k rows, so at its middle row
# c·65536 = 0.074/0.926·b.
CONTEXT_SHARE = 0.074 / 0.926 / 65536


def fitted(*, share: float = ASSUMED_SHARE, rows: int = ASSUMED_ROWS) -> Costs:
    """Constants from the published burst of n streams that make T tokens a round.

    - Unset, the slowest first token ends n passes: pass = first / n; `share` of it is `a`, the
      rest its rows, b·rows·(1 + c/b·rows/2).
    - Unset, all are in step, so a full round is in_step = n·T / steady = d + e·n·w + f.
    - MANY starts them a round apart, so it is out_of_step = n·T / steady = d + e·n·w + f·n.
    - Its slowest first token waits for rounds of 1 to n-1 streams too, all distinct: their mean,
      (first_many - first) / (n-1) = d + (e·w + f)·n/2.
    """
    n, unset, many = PUBLISHED_STREAMS, PUBLISHED["unset"], PUBLISHED["many"]
    one_pass = 1000 * unset.slowest_first / n
    in_step = 1000 * n * TOKENS_A_ROUND / unset.steady
    out_of_step = 1000 * n * TOKENS_A_ROUND / many.steady
    starting = 1000 * (many.slowest_first - unset.slowest_first) / (n - 1)
    f = (out_of_step - in_step) / (n - 1)
    window = (out_of_step - starting) / (n / 2)  # e·w + f
    b = (1 - share) * one_pass / (rows * (1 + CONTEXT_SHARE * rows / 2))
    return Costs(
        a=share * one_pass,
        b=b,
        c=CONTEXT_SHARE * b,
        d=out_of_step - n * window,
        e=(window - f) / WINDOW_ROWS,
        f=f,
    )
