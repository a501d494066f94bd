"""What is learned of guesses: by the rule as it is written, whatever came before, to the bit."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tensorfold.core.lane_host import chances
from tensorfold.core.lane_host.chances import BOUNDS, DEPTHS, Fared, Known, by_depth

MANY = settings(max_examples=200, deadline=None, derandomize=True, database=None)
# A chance, and whether the guess is right: of one stream's proposal, deeper than depths are told.
PROPOSAL = st.lists(
    st.tuples(st.sampled_from([0.0, 0.124, 0.125, 0.6, 0.97, 1.0]), st.sampled_from([1, 1, 1, 0])),
    max_size=DEPTHS + 3,
)
ROUNDS = st.lists(st.tuples(st.integers(0, 2), PROPOSAL, st.integers(1, DEPTHS + 4)), max_size=25)


class Rule:
    """The rule without a thought of its price: three dictionaries of what has been seen so far."""

    def __init__(self) -> None:
        self.value: dict[object, float] = {}
        self.seen: dict[object, int] = {}
        self.fared: dict[tuple[int, int], tuple[float, float]] = {}

    def label(self, chance: float) -> int:
        return sum(chance >= bound for bound in BOUNDS)

    def worth(self, depth: int, label: int) -> float:
        edges = (0.0, *BOUNDS, 1.0)
        return self.value.get((depth, label), (edges[label] + edges[label + 1]) / 2)

    def chance(self, stream: int, place: int, own: float | None) -> float:
        """Of a guess; without its own word, of one that is not made yet."""
        depth = min(place, DEPTHS - 1)
        true, hoped = self.fared.get((stream, depth), (1.0, 1.0))
        worth = self.value.get(depth, chances.UNKNOWN)
        if own is not None:
            worth = self.worth(depth, self.label(own))
        return min(chances.MOST, worth * (true / hoped))

    def learn(self, stream: int, proposal: list[tuple[float, int]], came: int) -> None:
        for place, (own, right) in enumerate(proposal[:came]):
            depth = min(place, DEPTHS - 1)
            key, trusted = (depth, self.label(own)), chances.STREAM_TRUSTED
            value = self.worth(*key)
            true, hoped = self.fared.get((stream, depth), (trusted, trusted))
            keeps, gives = chances.STREAM_KEEPS, chances.STREAM_GIVES
            self.fared[stream, depth] = true * keeps + gives + right, hoped * keeps + gives + value
            for which, now in ((key, value), (depth, self.value.get(depth, chances.UNKNOWN))):
                seen = self.seen.get(which, 0)
                self.value[which] = now + (right - now) * (1 / (chances.TRUSTED + 1 + seen))
                self.seen[which] = min(seen + 1, chances.FADES)
            if not right:
                return


@MANY
@given(rounds=ROUNDS)
def test_chances_are_what_the_history_says_and_nothing_else(
    rounds: list[tuple[int, list[tuple[float, int]], int]],
) -> None:
    source, streams = by_depth(Known), [by_depth(Fared) for _ in range(3)]
    rule = Rule()
    # So often that what was seen at first has faded.
    for stream, proposal, came in rounds * 8:
        own = [chance for chance, _ in proposal]
        found = chances.calibrated(source, streams[stream], own)
        assert found == [rule.chance(stream, place, each) for place, each in enumerate(own)]
        # The tokens that came are the guesses where those are right.
        tokens = [7 if right else 8 for _, right in proposal][:came]
        chances.learn(source, streams[stream], [7] * len(proposal), own, tokens)
        rule.learn(stream, proposal, came)
        for each in range(3):
            told = chances.expected(source, streams[each], DEPTHS + 2)
            assert told == [rule.chance(each, place, None) for place in range(DEPTHS + 2)]
