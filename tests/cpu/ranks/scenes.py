"""What a rank count must not change: replies in every kind of company, as proofs by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tensorfold.core.engine_api import Engine, Sampling, TokenLogprob
from tensorfold.core.keyed import token_sha256
from tensorfold.core.lane_host.host import Host
from tensorfold.core.lane_host.stream import Delivery, Job
from tests.cpu.driving import Asked, Told, alone, begin, fill, fill_all, some_tokens, step

Proof = tuple[str, tuple[TokenLogprob, ...]]
Proofs = dict[str, dict[int, Proof]]

HOW = (
    Sampling(),
    Sampling(temperature=1.0),
    Sampling(temperature=0.7, top_p=0.9, top_k=40, min_p=0.02),
)
LENGTHS = (5, 70, 130, 1, 64, 65, 19, 200)
TOKENS = 8


def job(stream: int, *, draft: bool) -> Job:
    return Job(
        stream=stream,
        prompt=tuple(some_tokens(LENGTHS[stream], seed=stream)),
        most=TOKENS,
        sampling=HOW[stream % len(HOW)],
        seed=stream * 7 - 3,
        logprobs=2,
        draft=draft,
    )


def replies(engine: Engine, jobs: Sequence[Job]) -> dict[int, Proof]:
    """The proofs of jobs submitted at once and run to their ends."""
    tokens: dict[int, list[int]] = {job.stream: [] for job in jobs}
    logprobs: dict[int, list[TokenLogprob]] = {job.stream: [] for job in jobs}
    ends = []

    def deliver(deliveries: Sequence[Delivery]) -> None:
        for one in deliveries:
            tokens[one.stream] += one.tokens
            logprobs[one.stream] += one.logprobs
            if one.end is not None:
                assert one.end.reason == "length", one.end
                ends.append(one.stream)

    host = Host(engine, deliver)
    host.submit(jobs)
    while host.turn():
        pass
    assert sorted(ends) == sorted(tokens)
    assert not any(job.draft for job in jobs) or host.stats().drafted["head"] > 0
    return {stream: (token_sha256(tokens[stream]), tuple(logprobs[stream])) for stream in tokens}


# A greedy reply, and a sampled one with every cut; one that is sampled alone is run by hand.
STREAMS = (0, 2)


def company(engine: Engine, streams: Sequence[int] = STREAMS) -> Proofs:
    """Of replies: alone, drafted, and among eight."""
    found: Proofs = {"alone": {}, "drafted": {}}
    for stream in streams:
        found["alone"] |= replies(engine, [job(stream, draft=False)])
        found["drafted"] |= replies(engine, [job(stream, draft=True)])
    found["among eight"] = replies(engine, [job(stream, draft=stream > 3) for stream in range(8)])
    found["drafted among eight"] = replies(
        engine, [job(stream, draft=stream < 4) for stream in range(8)]
    )
    return found


def by_hand(engine: Engine) -> dict[str, Proof]:
    """One reply in every way to run its prompt: whole, in pieces, packed, and resumed."""
    asked = Asked(prompt=tuple(some_tokens(150, seed=40)), most=4, sampling=HOW[1], seed=9)
    found = {"whole": alone(engine, asked).proof()}
    told = begin(engine, 1, asked)
    fill_all(engine, told, cuts=(64, 128))
    found["pieces"] = ended(engine, told)
    other = begin(engine, 2, replace(asked, prompt=tuple(some_tokens(30, seed=41))))
    told = begin(engine, 3, asked)
    fill(engine, (other, 0, 30), (told, 0, 150))
    found["packed"] = ended(engine, told)
    engine.close(2)
    keeping = begin(engine, 4, replace(asked, prompt=asked.prompt[:100], most=1), marks=(64,))
    fill_all(engine, keeping, cuts=(64,))
    engine.close(4)
    told = begin(engine, 5, asked, resume=keeping.saved[0])
    assert (told.cached, told.lost) == (64, None)
    fill_all(engine, told)
    found["resumed"] = ended(engine, told)
    engine.drop(keeping.saved[0])
    return found


def ended(engine: Engine, told: Told) -> Proof:
    """The rest of a reply whose prompt is in."""
    while not told.done:
        step(engine, [told])
    engine.close(told.stream)
    return told.proof()


def everything(engine: Engine, streams: Sequence[int] = STREAMS) -> tuple[Proofs, dict[str, Proof]]:
    found = company(engine, streams), by_hand(engine)
    assert engine.memory().used == 0
    return found
