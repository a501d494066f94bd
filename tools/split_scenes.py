"""What a split index may not change: prompts in every company, their next window, and every state.

Each rank plays every scene on its own engine, once with whole indexes and once for each way to
share them, and keeps what came of it: tokens and log-probabilities as they were told, logits of the
window after the prompt, and the bytes of the stream's state before and after that window.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tensorfold.core.engine import batch
from tensorfold.core.engine.batch import Run
from tensorfold.core.engine.index_split import IndexSplit
from tensorfold.core.engine.replay import stream_state
from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.engine_api import Opening, Piece, Sampling, Saved, Window
from tensorfold.core.errors import StartError
from tensorfold.core.index_shares import COST, HOW
from tensorfold.core.ops import Ops

# Rows of the window after a prompt: the pending token, one that is forced, and a guess.
WINDOW = 3
# Tokens of reply that there is room for.
ROOM = 8
# Rows of the prompts that are packed.
PACKED = (30, 21)
LANES = 2 + len(PACKED)
# Of what differs in a case, so many parts are named.
TOLD = 4


class Sizes(NamedTuple):
    """Prompts of so many rows in chunks of `chunk`; those that start at `position` or after it are
    split."""

    chunk: int
    position: int
    prompts: tuple[int, ...]

    @property
    def context(self) -> int:
        return max(self.prompts) + ROOM

    def resumed(self, grid: int) -> int:
        """A place in the first split chunk where no share of two or three ranks ends."""
        return self.position + (3 * self.chunk // 8 + 1) // grid * grid


# Of the last, a rank of three has no row in the last chunk of 4,098 rows.
FULL = Sizes(512, 2048, (6444, 4098, 4101, 4096))
SCALED = Sizes(256, 256, (662, 514, 517, 512))


class Case(NamedTuple):
    """A scene with its indexes shared, against the same with whole ones.

    `broken` names what differs, rank by rank; `shared` counts this rank's indexes that were shared
    in so many `chunks`, none where a compiled forward hides them. `proof` is a hash of what was
    told.
    """

    scene: str
    how: str
    broken: tuple[str, ...]
    shared: int | None
    chunks: int
    proof: str

    def words(self) -> str:
        told = "; ".join(self.broken[:TOLD])
        if len(self.broken) > TOLD:
            told += f"; and {len(self.broken) - TOLD} more"
        found = f"BROKEN: {told}" if self.broken else "holds"
        shared = "uncounted" if self.shared is None else str(self.shared)
        return (
            f"{self.scene}, by {self.how}: {found} "
            f"({shared} indexes shared in {self.chunks} chunks)"
        )


@dataclass(kw_only=True)
class Counts:
    """Calls of a model's ops: of indexes, and of what gathers their picks."""

    picks: int = 0
    gathers: int = 0


@dataclass(kw_only=True)
class Reply:
    """A stream's prompt, and what came of it."""

    stream: int
    prompt: tuple[int, ...]
    told: list[Any] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    saved: list[Saved] = field(default_factory=list)


class Player:
    """Runs scenes on an engine with its indexes whole, or shared as `how` says.

    Of the chunks that are split if any are: `chunks` of them, with so many `picks` of indexes that
    this rank made.
    """

    def __init__(self, engine: TorchEngine, sizes: Sizes, how: str, counts: Counts | None) -> None:
        self.engine, self.sizes, self.how, self.counts = engine, sizes, how, counts
        self.split = IndexSplit(position=sizes.position, shares=how or COST)
        self.chunks = self.picks = 0

    def begin(
        self, stream: int, rows: int, *, mark: int | None = None, resume: Saved | None = None
    ) -> Reply:
        """The prompt of so many rows is always the same."""
        draw = random.Random(rows)
        prompt = tuple(draw.randrange(self.engine.info.vocab_size) for _ in range(rows))
        marks = () if mark is None else (mark,)
        opening = Opening(
            stream=stream,
            prompt=prompt,
            most=ROOM,
            sampling=Sampling(temperature=0.9),
            seed=rows,
            logprobs=2,
            marks=marks,
            resume=resume,
        )
        opened = self.engine.open(opening)
        assert opened.lost is None, opened
        assert opened.cached == (resume.rows if resume else 0), opened
        return Reply(stream=stream, prompt=prompt)

    def fill(self, *pieces: tuple[Reply, int, int], read: bool = False) -> None:
        """One forward over pieces (reply, start, end); with `read` all of their rows are read."""
        logprobs = 0 if read else None
        asked = [
            Piece(stream=reply.stream, start=start, end=end, logprobs=logprobs)
            for reply, start, end in pieces
        ]
        marked = self.split.marked(asked)
        split = any(piece.split for piece in marked)
        before = self.counts.picks if self.counts else 0
        results = self.engine.fill(marked if self.how else asked).land()
        if split:
            self.chunks += 1
            self.picks += self.counts.picks - before if self.counts else 0
        for (reply, _, _), found in zip(pieces, results, strict=True):
            assert found.fault is None, found
            reply.told += [found.token, found.logprob, found.rows]
            if found.saved is not None:
                reply.saved.append(found.saved)

    def fill_to(self, reply: Reply, start: int, end: int, *, read: bool = False) -> None:
        for first in range(start, end, self.sizes.chunk):
            self.fill((reply, first, min(first + self.sizes.chunk, end)), read=read)

    def end(self, *replies: Reply) -> list[Reply]:
        """Streams whose prompts are in: state, a window of all of them, and state again."""
        windows = []
        for reply in replies:
            self.keep_state(reply, "after the prompt")
            pending = reply.told[-3]
            assert pending is not None, reply.stream
            tokens = (pending, *reply.prompt[: WINDOW - 1])
            windows.append(Window(stream=reply.stream, tokens=tokens, forced=1))
        for reply, logits in zip(replies, self.logits(windows), strict=True):
            reply.tensors["logits of the window"] = logits
        for reply, landed in zip(replies, self.engine.round(windows).land(), strict=True):
            assert landed.fault is None, landed
            reply.told += [landed.tokens, landed.logprobs]
            self.keep_state(reply, "after the window")
        for reply in replies:
            self.engine.close(reply.stream)
        return list(replies)

    def keep_state(self, reply: Reply, when: str) -> None:
        held = self.engine.streams[reply.stream]
        with torch.inference_mode():
            for name, part in stream_state(self.engine.storage, held.seat, held.rows).items():
                reply.tensors[f"state {name} {when}"] = part

    @torch.inference_mode()
    def logits(self, windows: Sequence[Window]) -> Sequence[Tensor]:
        """Of windows that run once more after it, in the same places."""
        engine = self.engine
        held = [engine.streams[window.stream] for window in windows]
        runs = [
            Run(window.tokens, own.seat.lane, own.rows)
            for window, own in zip(windows, held, strict=True)
        ]
        rows = batch.build(
            runs, engine.storage, prompt=False, tile=engine.tile, context=engine.info.context
        )
        logits_RV = engine.model.logits(engine.model.window(rows))
        return logits_RV[: WINDOW * len(runs)].clone().split(WINDOW)


Scene = Callable[[Player], list[Reply]]


def scenes(sizes: Sizes, grid: int) -> Mapping[str, Scene]:
    """By name; each plays on an engine without streams, and leaves it so."""
    first, second, *rest = sizes.prompts
    read = rest[0] if rest else second

    def alone(rows: int, *, read: bool = False) -> Scene:
        def play(player: Player) -> list[Reply]:
            reply = player.begin(1, rows)
            player.fill_to(reply, 0, rows, read=read)
            return player.end(reply)

        return play

    def resumed(player: Player) -> list[Reply]:
        mark = sizes.resumed(grid)
        keeping = player.begin(1, first, mark=mark)
        player.fill_to(keeping, 0, mark)
        player.engine.close(1)
        (kept,) = keeping.saved
        reply = player.begin(2, first, resume=kept)
        player.fill_to(reply, mark, first)
        player.engine.drop(kept)
        return player.end(reply)

    def beside(player: Player) -> list[Reply]:
        """Two prompts take turns, a chunk each; amid them others are packed."""
        turns = [player.begin(1, first), player.begin(2, second)]
        packed = [player.begin(3 + place, rows) for place, rows in enumerate(PACKED)]
        for start in range(0, first, sizes.chunk):
            for reply in turns:
                end = min(start + sizes.chunk, len(reply.prompt))
                if start < end:
                    player.fill((reply, start, end))
            if start == sizes.position:
                player.fill(*((reply, 0, len(reply.prompt)) for reply in packed))
        return player.end(*turns, *packed)

    return {
        **{f"{rows} rows": alone(rows) for rows in sizes.prompts},
        f"{read} rows, all of them read": alone(read, read=True),
        f"{first} rows, resumed at {sizes.resumed(grid)}": resumed,
        f"{first} and {second} rows in turns, {' and '.join(map(str, PACKED))} packed": beside,
    }


def check(
    engine: TorchEngine, sizes: Sizes, report: Callable[[Case], None] = lambda case: None
) -> list[Case]:
    """Every case on this rank; what differs on any rank is told to all. All ranks call it alike."""
    assert engine.group is not None, engine
    found = []
    for name, scene in scenes(sizes, engine.info.grid).items():
        with counted(engine) as counts:
            player = Player(engine, sizes, "", counts)
            whole = scene(player)
        for how in HOW:
            with counted(engine) as counts:
                replies = scene(Player(engine, sizes, how, counts))
            own = [
                part
                for one, other in zip(whole, replies, strict=True)
                for part in differences(one, other)
            ]
            shared = counts.gathers if counts else None
            if shared is not None and (not shared or shared != player.picks):
                own.append(f"{shared} of {player.picks} indexes were shared")
            told = engine.group.exchange(json.dumps(own).encode())
            broken = tuple(
                f"rank {rank}: {part}"
                for rank, said in enumerate(told)
                for part in json.loads(said)
            )
            case = Case(name, how, broken, shared, player.chunks, proof(replies))
            report(case)
            found.append(case)
    return found


def played_whole(engine: TorchEngine, sizes: Sizes) -> dict[str, str]:
    """The proof of every scene with whole indexes, on any number of ranks."""
    made = scenes(sizes, engine.info.grid).items()
    return {name: proof(scene(Player(engine, sizes, "", None))) for name, scene in made}


def proof(replies: Sequence[Reply]) -> str:
    told = repr([reply.told for reply in replies])
    return blake2b(told.encode(), digest_size=16).hexdigest()


def differences(one: Reply, other: Reply) -> list[str]:
    """The parts of two replies that are not the same bytes."""
    parts = [] if one.told == other.told else ["what was told"]
    assert one.tensors.keys() == other.tensors.keys(), (one.stream, other.stream)
    parts += [name for name in one.tensors if not same(one.tensors[name], other.tensors[name])]
    return [f"{part} of stream {one.stream}" for part in parts]


def same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same bytes."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


@contextmanager
def counted(engine: TorchEngine) -> Iterator[Counts | None]:
    """Counts a model's calls; none where compiled forwards hold their own ops."""
    model: Any = engine.model
    ops: Ops = model.ops
    if isinstance(ops.linear, torch._ops.OpOverload):
        yield None
        return
    counts = Counts()

    def picking(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            counts.picks += 1
            return call(*args)

        return run

    def gather(part: Tensor) -> Tensor:
        counts.gathers += 1
        return ops.gather(part)

    model.ops = replace(
        ops,
        pick_tokens=picking(ops.pick_tokens),
        pick_rows=picking(ops.pick_rows),
        gather=gather,
    )
    try:
        yield counts
    finally:
        model.ops = ops


def refuse_small(sizes: Sizes) -> None:
    """Raise `StartError` where a scene would have nothing to split."""
    if len(sizes.prompts) < 2:
        raise StartError("--prompts needs two lengths at least: two prompts take turns")
    if sizes.chunk < max(16, sum(PACKED)):
        raise StartError(f"--chunk-rows is {sizes.chunk}, less than the {sum(PACKED)} packed rows")
    if sizes.position < 1 or sizes.position % sizes.chunk:
        raise StartError(
            f"--position is {sizes.position}, not a chunk's start: chunks have {sizes.chunk} rows"
        )
    for rows in sizes.prompts:
        if rows <= sizes.position:
            raise StartError(
                f"--prompts has {rows}: no chunk of it starts at row {sizes.position} or after it"
            )
