"""Any drafts in any company: tokens and log-probability bits are those of the undrafted solo run.

Both families; guesses are right, wrong, mixed, of every length, from the head, from copies and from
drafters that lie; streams come and are cancelled at any moment, and tokens of some are forced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensorfold.core.copies import Copies
from tensorfold.core.drafter_api import Guesses
from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.engine_api import Sampling, TokenLogprob
from tensorfold.core.keyed import mix
from tensorfold.core.lane_host.host import Host
from tensorfold.core.lane_host.stream import Delivery, End, Job, nothing
from tests.cpu import driving
from tests.cpu.driving import some_tokens
from tests.cpu.dsv41 import engines
from tests.cpu.dsv41.test_dspark import drafting_checkpoint
from tests.null.drafters import LIES, Drafter

HOW = (
    Sampling(),
    Sampling(temperature=1.0),
    Sampling(temperature=0.9, top_p=0.95),
    Sampling(temperature=0.7, top_p=0.9, top_k=40, min_p=0.02),
)
FEW = settings(
    max_examples=3,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


class Read:
    def __init__(self) -> None:
        self.replies: dict[int, tuple[list[int], list[TokenLogprob]]] = {}
        self.ends: dict[int, End] = {}

    def __call__(self, deliveries: Sequence[Delivery]) -> None:
        for one in deliveries:
            tokens, logprobs = self.replies.setdefault(one.stream, ([], []))
            tokens.extend(one.tokens)
            logprobs.extend(one.logprobs)
            if one.end is not None:
                self.ends[one.stream] = one.end


def after_some(tokens: Sequence[int]) -> tuple[int, ...]:
    """Three tokens that are sure to come after every fifth id."""
    word = (7, 11, 13)
    for said in (2, 1):
        if tuple(tokens[-said:]) == word[:said]:
            return word[said:]
    return word if tokens and tokens[-1] % 5 == 0 else ()


@dataclass(frozen=True)
class Asked:
    length: int
    most: int
    how: Sampling
    forced: bool
    stops: bool
    loops: bool

    def job(self, stream: int) -> Job:
        tokens = some_tokens(self.length, self.length)
        prompt = (tokens[:9] * self.length)[: self.length] if self.loops else tokens
        return Job(
            stream=stream,
            prompt=tuple(prompt),
            most=self.most,
            sampling=self.how,
            seed=self.length * 7 - 3,
            logprobs=2,
            forces=after_some if self.forced else nothing,
            ends=ends_at_sixes if self.stops else never,
        )


def ends_at_sixes(tokens: Sequence[int]) -> bool:
    return len(tokens) > 5 and tokens[-1] % 6 == 0


def never(tokens: Sequence[int]) -> bool:
    return False


class Lab:
    """An engine without drafts and one with the head's, and the replies of the first."""

    def __init__(self, plain: TorchEngine, drafted: TorchEngine) -> None:
        self.plain = plain
        self.drafted = drafted
        self.known: dict[Asked, tuple[list[int], list[TokenLogprob], str]] = {}

    def alone(self, asked: Asked) -> tuple[list[int], list[TokenLogprob], str]:
        """The undrafted reply with nobody else there."""
        if asked not in self.known:
            read = Read()
            host = Host(self.plain, read)
            host.submit([replace(asked.job(1), draft=False)])
            while host.turn():
                pass
            self.known[asked] = *read.replies[1], read.ends[1].reason
        return self.known[asked]


@pytest.fixture(scope="module", params=["glm53", "dsv41"])
def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Lab:
    if request.param == "glm53":
        return Lab(driving.opened(), driving.opened(drafts=3))
    folder = drafting_checkpoint(tmp_path_factory.mktemp("dsv41"))
    sizes = {"lanes": 4, "context": 128, "chunk_rows": 128, "window_rows": 6}
    plain = engines.opened("plain", folder, **sizes)
    return Lab(plain, engines.opened("plain", folder, drafts=5, **sizes))


ASKED = st.builds(
    Asked,
    st.integers(1, 90),
    st.integers(1, 14),
    st.sampled_from(HOW),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)


def guesser(lab: Lab, jobs: dict[tuple[int, ...], Asked], salt: int) -> Drafter:
    """Knows the replies, and says them right, cut short, or with wrong tokens among them."""

    def propose(context: Sequence[int], most: int) -> Guesses:
        for prompt, asked in jobs.items():
            rows = len(prompt)
            if tuple(context[:rows]) != prompt:
                continue
            draw = mix(len(context) * 31 + salt)
            whole = lab.alone(asked)[0]
            coming = list(whole[len(context) - rows :][: draw % (most + 1)])
            wrong = draw // 64 % (2 * most)
            if wrong < len(coming):
                coming[wrong] = (coming[wrong] + 1 + draw // 4096 % 150) % driving.VOCAB
            return Guesses(coming, [(draw >> row & 15) / 15 for row in range(len(coming))])
        return Guesses()

    return Drafter("guesser", propose)


@FEW
@given(
    orders=st.lists(st.tuples(ASKED, st.integers(0, 6)), min_size=1, max_size=6),
    cancels=st.dictionaries(st.integers(1, 9), st.integers(0, 9), max_size=2),
    salt=st.integers(0, 1 << 30),
    lie=st.sampled_from(sorted(LIES)),
    costs=st.sampled_from([(), ((8, 5.0), (64, 5.1)), ((4, 1.0), (8, 3.0), (64, 90.0))]),
)
def test_any_drafts_in_any_company_leave_every_reply_as_it_is_alone(
    lab: Lab,
    orders: list[tuple[Asked, int]],
    cancels: dict[int, int],
    salt: int,
    lie: str,
    costs: tuple[tuple[int, float], ...],
) -> None:
    engine = lab.drafted
    engine.info = replace(engine.info, round_costs=costs, draft_costs=((1, 2.0),) if costs else ())
    jobs = {asked.job(1).prompt: asked for asked, _ in orders}
    liar = Drafter("liar", LIES[lie][0])
    read = Read()
    host = Host(engine, read, drafters=[guesser(lab, jobs, salt), Copies(), liar])
    turns = 0
    while turns < 12 or host.turn():
        for stream, (asked, turn) in enumerate(orders, 1):
            if turn == turns:
                host.submit([asked.job(stream)])
        for stream, turn in cancels.items():
            if turn == turns and stream <= len(orders) and stream in read.replies:
                host.cancel(stream)
        if turns < 12:
            host.turn()
        turns += 1
    assert host.stats().lost is None
    assert not engine.streams
    for stream, (asked, _) in enumerate(orders, 1):
        tokens, logprobs, reason = lab.alone(asked)
        found, told = read.replies[stream]
        end = read.ends[stream]
        if end.reason != "cancelled":
            assert (found, end.reason) == (tokens, reason)
        assert found == tokens[: len(found)]
        assert told == logprobs[: len(found)]
        assert end.counts.tokens == len(found)


@pytest.mark.parametrize("how", HOW[:3], ids=("greedy", "sampled", "cut"))
def test_guesses_of_every_length_right_and_wrong_at_every_place_leave_the_reply(
    lab: Lab, how: Sampling
) -> None:
    engine = lab.drafted
    engine.info = replace(engine.info, round_costs=(), draft_costs=())
    asked = Asked(33, 12, how, False, False, False)
    whole, logprobs, _ = lab.alone(asked)
    rows = asked.length
    for length in (1, 2, 5, engine.info.window_rows - 1):
        for wrong in (*{0, length // 2, length - 1}, None):

            def propose(
                context: Sequence[int], most: int, n: int = length, at: int | None = wrong
            ) -> Guesses:
                coming = list(whole[len(context) - rows :][: min(n, most)])
                if at is not None and at < len(coming):
                    coming[at] = (coming[at] + 1) % driving.VOCAB
                return Guesses(coming, [1.0] * len(coming))

            read = Read()
            host = Host(engine, read, drafters=[Drafter("d", propose)])
            host.submit([asked.job(1)])
            while host.turn():
                pass
            assert read.replies[1] == (whole, logprobs), (length, wrong)
