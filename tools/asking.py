"""Questions to a running server from a client's side, and what must not change in a reply."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from tensorfold.core.errors import StartError
from tensorfold.core.keyed import token_sha256

ROUNDS = re.compile(r"^tensorfold:rounds_total (\S+)$", re.MULTILINE)
ALTERNATIVES = 5


class NoReply(Exception):
    """A reply that did not come, or cannot be told to be whole: never equal to another."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """One request: its text, how many tokens to write, and how they are drawn."""

    prompt: str
    tokens: int
    temperature: float
    seed: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """`logprobs` is the JSON of each token's log-probability and of its best alternatives.

    rows are the prompt's; the rest are the receipt's.
    """

    tokens: tuple[int, ...]
    logprobs: str
    engine: str
    rows: int
    cached: int
    rounds: int
    drafted: int
    accepted: int

    def differs(self, other: Answer) -> str | None:
        """How `other` is not the same reply, in words; none when it is."""
        if self.engine != other.engine:
            return f"engine {other.engine[:12]} in place of {self.engine[:12]}"
        for place, (mine, theirs) in enumerate(zip(self.tokens, other.tokens, strict=False)):
            if mine != theirs:
                return f"token {place} is {theirs} in place of {mine}"
        if len(self.tokens) != len(other.tokens):
            return f"{len(other.tokens)} tokens in place of {len(self.tokens)}"
        if self.logprobs != other.logprobs:
            return "the tokens are equal and their log-probabilities differ"
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Server:
    """A running server; `info` is its `/info`. Requests have `timeout` seconds each."""

    session: aiohttp.ClientSession
    base: str
    info: dict[str, Any]
    timeout: float

    async def ask(self, ask: Ask, *, draft: bool = True) -> Answer:
        """Raises `NoReply`."""
        body: dict[str, Any] = {
            "model": self.info["model"],
            "prompt": ask.prompt,
            "max_tokens": ask.tokens,
            "temperature": ask.temperature,
            "seed": ask.seed,
            "ignore_eos": True,
            "logprobs": ALTERNATIVES,
            "return_token_ids": True,
        }
        if not draft:
            body["draft"] = False
        try:
            async with self.session.post(
                f"{self.base}/v1/completions", json=body, timeout=limit(self.timeout)
            ) as response:
                text = await response.text()
                if response.status != 200:
                    raise NoReply(f"the server answered {response.status}: {text[:200]}")
        except (aiohttp.ClientError, TimeoutError) as error:
            raise NoReply(f"no answer: {error or type(error).__name__}") from None
        return read_answer(text, ask)

    async def together(self, asks: Sequence[Ask]) -> list[Answer]:
        """All at once. Raises `NoReply` if any of them has none."""
        return list(await asyncio.gather(*(self.ask(ask) for ask in asks)))

    async def rounds(self) -> int | None:
        """Rounds that the server has run so far; none where it does not tell."""
        try:
            async with self.session.get(
                f"{self.base}/metrics", timeout=limit(self.timeout)
            ) as response:
                found = ROUNDS.search(await response.text())
        except (aiohttp.ClientError, TimeoutError):
            return None
        return int(float(found.group(1))) if found else None


def limit(seconds: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=seconds)


def read_answer(text: str, ask: Ask) -> Answer:
    """A completion's body, held to its own receipt. Raises `NoReply`."""
    try:
        body = json.loads(text)
        (choice,) = body["choices"]
        receipt = body["tensorfold"]
        tokens = tuple(choice["token_ids"])
        logprobs = choice["logprobs"]
        answer = Answer(
            tokens=tokens,
            logprobs=json.dumps([logprobs["token_logprobs"], logprobs["top_logprobs"]]),
            engine=receipt["engine"],
            rows=body["usage"]["prompt_tokens"],
            cached=receipt["cached"],
            rounds=receipt["rounds"],
            drafted=receipt["drafted"],
            accepted=receipt["accepted"],
        )
        promised = receipt["token_sha256"]
        counted = len(logprobs["token_logprobs"])
    except (KeyError, TypeError, ValueError) as error:
        raise NoReply(f"the reply lacks what is compared: {error!r}") from None
    if len(tokens) != ask.tokens or counted != ask.tokens:
        raise NoReply(f"{len(tokens)} tokens and {counted} log-probabilities for {ask.tokens}")
    if promised != token_sha256(tokens):
        raise NoReply("the receipt's hash is not that of the reply's tokens")
    return answer


async def connect(session: aiohttp.ClientSession, base: str, timeout: float) -> Server:
    """The server at `base`, with or without `/v1`. Raises `StartError` where there is none."""
    base = base.rstrip("/").removesuffix("/v1")
    try:
        async with session.get(f"{base}/info", timeout=limit(timeout)) as response:
            if response.status != 200:
                raise StartError(f"{base}/info answers {response.status}: no TensorFold there")
            info = await response.json()
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise StartError(f"no TensorFold answers at {base}: {error}") from None
    lacking = [name for name in ("model", "lanes", "context", "grid", "ranks") if name not in info]
    if lacking:
        raise StartError(f"{base}/info lacks {', '.join(lacking)}: no TensorFold there")
    return Server(session=session, base=base, info=info, timeout=timeout)
