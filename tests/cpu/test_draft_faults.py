"""How drafts have changed replies elsewhere, on a bundled model.

Greedy text that copies change after a few words; rows that are verified together and differ from
the same row alone in the last bit; replies that part at near ties or only after 250 tokens; replies
that lose tokens, or say them twice, where storage holds few of the streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tensorfold.core.copies import Copies
from tensorfold.core.drafter_api import HostDrafter
from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.engine_api import Sampling, TokenLogprob
from tensorfold.core.lane_host.host import Host
from tensorfold.core.lane_host.stream import Delivery, Job
from tests.cpu.driving import opened

TINY = Path(__file__).parents[2] / "families" / "glm53" / "tiny"
SIZES = {"context": 512, "chunk_rows": 512, "lanes": 2}
TOKENS = 270
# A phrase that comes again, so that there is much to copy.
PROMPT = (5, 300, 41, 7, 900, 12, 77, 8, 15, 260, 33) * 3
JOBS = [
    Job(stream=1, prompt=PROMPT, most=TOKENS, logprobs=3),
    Job(stream=2, prompt=PROMPT[4:], most=TOKENS, logprobs=3, sampling=Sampling(temperature=1.0)),
]
Reply = tuple[list[int], list[TokenLogprob]]


def replies(
    engine: TorchEngine, drafters: Sequence[HostDrafter], jobs: Sequence[Job] = JOBS
) -> tuple[dict[int, Reply], Host]:
    found: dict[int, Reply] = {job.stream: ([], []) for job in jobs}

    def deliver(deliveries: Sequence[Delivery]) -> None:
        for one in deliveries:
            found[one.stream][0].extend(one.tokens)
            found[one.stream][1].extend(one.logprobs)

    host = Host(engine, deliver, drafters=drafters)
    host.submit(jobs)
    while host.turn():
        pass
    return found, host


@pytest.fixture(scope="module")
def plain() -> dict[int, Reply]:
    found, host = replies(opened(TINY, **SIZES), [])
    assert host.stats().round_rows == host.stats().tokens - 2
    return found


@pytest.mark.parametrize("window_rows", [3, 5])
def test_copies_do_not_change_greedy_text(plain: dict[int, Reply], window_rows: int) -> None:
    found, host = replies(opened(TINY, window_rows=window_rows, **SIZES), [Copies()])
    assert host.stats().drafted["copies"] > 20
    assert found == plain


@pytest.mark.parametrize("drafts", [1, 2, 4])
def test_rows_verified_together_have_the_bits_of_the_row_alone_and_part_nowhere(
    plain: dict[int, Reply], drafts: int
) -> None:
    engine = opened(TINY, drafts=drafts, **SIZES)
    # Nothing is known of costs then: every guess gets its row.
    engine.info = replace(engine.info, round_costs=(), draft_costs=())
    found, host = replies(engine, [Copies()])
    assert host.stats().accepted["head"] > 50
    assert found == plain


def test_with_storage_for_two_of_nine_every_reply_is_whole_and_said_once() -> None:
    jobs = [
        replace(JOBS[stream % 2], stream=stream, prompt=PROMPT[stream:], most=9 + 4 * stream)
        for stream in range(1, 10)
    ]
    plain = opened(TINY, **SIZES)
    drafted = opened(TINY, drafts=2, **SIZES)
    drafted.info = replace(drafted.info, round_costs=(), draft_costs=())
    found, host = replies(drafted, [Copies()], jobs)
    stats = host.stats()
    assert stats.accepted["head"] > 10
    assert stats.tokens == sum(job.most for job in jobs)
    assert drafted.memory().used == 0
    for job in jobs:
        assert found[job.stream] == replies(plain, [], [job])[0][job.stream], job.stream
        assert len(found[job.stream][0]) == job.most
