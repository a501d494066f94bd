"""Drafts copied from the stream's own context: what followed its last words when they came before.

The rule: a match is an earlier place where the same tokens ended, at least `LEAST` of them. Of the
`TRIED` most recent with their hash the longest counts, compared up to `MOST_COMPARED` tokens, and
of equally long ones the most recent. A match that goes on being right is kept, one that is wrong is
dropped. Past the context's end a copy goes on with what it has copied: a loop is copied as a loop.

The index is a chain of places by a hash of their last `LEAST` tokens, as in LZ77 coders. It takes
about 12 to 16 bytes a token of context. All of its work is done while a round is in flight, and
for at most `STEP` tokens: a match is found a round after it is there, and a long prompt is indexed
over several rounds.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from tensorfold.core.drafter_api import Guesses

LEAST = 8
TRIED = 8
MOST_COMPARED = 64
STEP = 1024
LEAST_SLOTS = 256

# A token's trace moves up by eight bits with each that follows it: after LEAST it has left.
BITS = 8
MASK = (1 << BITS * LEAST) - 1
SPREAD = 0x9E3779B97F4A7C15
NOWHERE = -1

# The label of a guess behind a match of so many tokens, from 0.7 for LEAST towards 1.
LONGEST = 1024
LABELS = tuple(1.0 - 2.4 / max(length, LEAST) for length in range(2 * LONGEST))


NOTHING = Guesses()


class Copies:
    name = "copies"
    summary = "what followed the same 8 tokens or more when they came before in the stream"

    def begin(self) -> StreamCopies:
        return StreamCopies()


class StreamCopies:
    """`tokens` are those of the context that are taken in, the first `len(earlier)` indexed.

    `earlier[i]` is the last place before i whose hash has the same slot, `heads` holds the last
    place of each slot. `source` is where the match goes on, `length` its tokens so far.
    """

    __slots__ = ("earlier", "heads", "key", "length", "source", "tokens")

    def __init__(self) -> None:
        self.tokens = array("i")
        self.earlier = array("i")
        self.heads = array("i")
        self.key = 0
        self.source = NOWHERE
        self.length = 0

    def propose(self, context: Sequence[int], most: int) -> Guesses:
        if self.source == NOWHERE:
            return NOTHING
        self.follow(context)
        if self.source == NOWHERE:
            return NOTHING
        tokens = self.tokens
        copied = tokens[self.source : self.source + most].tolist()
        for place in range(most - len(copied)):
            copied.append(copied[place])
        # The longer the match, the surer: a row's match is as long as if those before it came.
        first = self.length if self.length < LONGEST else LONGEST
        return Guesses(copied, LABELS[first : first + most])

    def landed(self, accepted: int) -> None:
        return None

    def rest(self, context: Sequence[int]) -> None:
        self.follow(context)
        if len(self.earlier) < len(self.tokens):
            place = self.index()
            if place >= LEAST - 1 and self.source == NOWHERE:
                self.search(place)

    def follow(self, context: Sequence[int]) -> None:
        """Take in the tokens that have come, and hold the match to them."""
        tokens = self.tokens
        coming = list(context[len(tokens) :])
        if not coming:
            return
        tokens.fromlist(coming)
        if self.source != NOWHERE:
            end = self.source + len(coming)
            if tokens[self.source : end].tolist() == coming:
                self.source = end
                self.length += len(coming)
            else:
                self.source = NOWHERE

    def index(self) -> int:
        """Index what is not yet, `STEP` tokens at most; where the newest one's slot was before it,
        if it has one and nothing is left to index."""
        if len(self.tokens) > len(self.heads):
            self.make_room()
        tokens, earlier, heads = self.tokens, self.earlier, self.heads
        key, slots = self.key, len(heads) - 1
        place, before = len(earlier), NOWHERE
        for token in tokens[place : place + STEP]:
            key = (key << BITS ^ token * SPREAD) & MASK
            slot = key * SPREAD >> 32 & slots
            before = heads[slot]
            earlier.append(before)
            heads[slot] = place
            place += 1
        self.key = key
        return before if place == len(tokens) else NOWHERE

    def make_room(self) -> None:
        """A slot for each token and more; the index starts afresh."""
        slots = max(LEAST_SLOTS, 1 << len(self.tokens).bit_length())
        self.heads = array("i", [NOWHERE]) * slots
        self.earlier = array("i")
        self.key = 0

    def search(self, place: int) -> None:
        """The match by the rule above, if there is one, from the newest place of its slot on."""
        tokens = self.tokens
        last = len(tokens) - 1
        newest = tokens[last]
        best = 0
        for _ in range(TRIED):
            if place < LEAST - 1:
                break
            # Most places that share a slot share nothing else.
            if (
                tokens[place] == newest
                and tokens[place + 1 - LEAST : place + 1] == tokens[last + 1 - LEAST :]
            ):
                length = self.common(place, last)
                if length > best:
                    best, self.source = length, place + 1
                    if best >= MOST_COMPARED:
                        break
            place = self.earlier[place]
        self.length = best

    def common(self, place: int, last: int) -> int:
        """How many tokens up to and with `place` equal those up to and with `last`."""
        tokens = self.tokens
        length = LEAST
        while length < MOST_COMPARED and length <= place:
            if tokens[place - length] != tokens[last - length]:
                break
            length += 1
        return length
