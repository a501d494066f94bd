"""What a family is: the mathematics of one model line, written against an op table.

A family's plugin object, its config and its chat format import without torch; its model is built
by core/engine, which hands it the ops of a backend. Arrays are torch tensors below this door.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from tensorfold.core.share import IDS, Share
from tensorfold.core.state_spec import StateSpec

if TYPE_CHECKING:
    from torch import Tensor

    from tensorfold.core.ops import Ops


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatFormat:
    """How a family writes chats, when the checkpoint does not say it itself.

    `template` is jinja. `think_open` and `think_close` are the texts around reasoning;
    `end_tokens` are the texts of the special tokens that end a reply.
    """

    template: str
    think_open: str = ""
    think_close: str = ""
    end_tokens: tuple[str, ...] = ()


class TensorSpec(NamedTuple):
    """A tensor that a checkpoint must hold, under its official name.

    A `table` is read row by row: it stays in its file, or in host memory, as it is stored. `dtype`
    is the format it is held in where the engine's own is narrower.

    Ranks cut `axis` in `units` equal units, each reading its own run of them. Without an axis, a
    tensor that belongs to one `unit` of them is read by the rank that holds it. `shape` is the
    checkpoint's.
    """

    name: str
    shape: tuple[int, ...]
    table: bool = False
    dtype: str = ""
    axis: int | None = None
    units: int = 1
    unit: int | None = None


class CutProduct(NamedTuple):
    """A product whose columns ranks cut: `op` is linear, or linear_heads with a weight a head.

    `runs` are (columns, units) in order, with 1 unit where every rank has all of them.
    """

    op: str
    inner: int
    runs: tuple[tuple[int, int], ...]
    heads: int = 1


class Cut(NamedTuple):
    """A run of rows in one forward: `kind` is "prompt" or "window"."""

    kind: str
    rows: int


class Read(NamedTuple):
    """What is read of a stream's `rows` rows of a prompt forward: the hidden row of the last one
    before a stop, of all of them with `every`.

    A stop is a position at which the stream's state is kept or its reply begins. `ahead` rows of
    its prompt lie between these and the first stop that they do not pass.
    """

    rows: int
    ahead: int
    every: bool = False

    @property
    def last(self) -> bool:
        """Whether the hidden row of the last of them is read."""
        return self.every or not self.ahead


class RowSplit(NamedTuple):
    """How ranks share the index of a forward's rows: rank r has rows bounds[r] to bounds[r + 1].

    The rows are one stream's `real` rows from position `start` on, and padding. `bounds` suit an
    index that scores all before a row; of one that scores other rows `shares` tells whether ranks
    have equal "cost" or equally many "rows" of it (core/index_shares.py).
    """

    rank: int
    bounds: tuple[int, ...]
    shares: str
    start: int
    real: int

    @property
    def own(self) -> slice:
        return slice(self.bounds[self.rank], self.bounds[self.rank + 1])

    @property
    def counts(self) -> list[int]:
        return [last - first for first, last in pairwise(self.bounds)]


class Rows(NamedTuple):
    """The rows of one forward, padded to the backend's row tile with rows of the spare lane.

    R rows, B streams (of a window forward or a pack), W rows of the longest window, N grid blocks
    of T rows, L lanes with the spare one last, P pages of a context; all int64.

    ids_R, lane_R, position_R: a row's token, stream's lane and absolute position. offset_R: its
    place among its own stream's rows of this forward. slot_R: its row in a `PerToken` buffer with
    `every` 1. table_LP: the page of a lane's tokens [p * page, (p + 1) * page); unclaimed entries
    are the spare page. lane_B, first_B, count_B: a stream's lane, first batch row and rows.

    Window forwards have rows_BW, the batch row of each window row, R where a window is shorter.
    Prompt forwards of a family whose state has `blocks` have blocks_NT, the batch rows of each
    block at multiples of the page, R where a block is short, and block_lane_N; a lane's blocks are
    in order.

    `width` bounds the tokens that any row sees, rounded up to one of few sizes. `sure` tells that
    the first row of every window counts: else a window may be run again as if it never had been,
    and all of its state waits for `settle`. With `split` a family that can has each rank pick for
    its own rows, and gathers the picks.

    Prompt forwards may have `reads`, on the host, a stream each; without it all is read. A model
    may leave out what can reach nothing that is read: such hidden rows are NaN, and state that no
    row behind a stop reads need not be there.
    """

    ids_R: Tensor
    lane_R: Tensor
    position_R: Tensor
    offset_R: Tensor
    slot_R: Tensor
    table_LP: Tensor
    lane_B: Tensor
    first_B: Tensor
    count_B: Tensor
    width: int
    rows_BW: Tensor | None = None
    sure: bool = True
    blocks_NT: Tensor | None = None
    block_lane_N: Tensor | None = None
    reads: tuple[Read, ...] | None = None
    split: RowSplit | None = None


class Model(Protocol):
    """A family's model bound to ops, weights and state buffers.

    `captures` tells whether a window's forward stays on the device from its first operation to its
    last, so that it can be captured there.
    """

    captures: bool

    def prompt(self, rows: Rows) -> Tensor:
        """Run prompt rows; returns final-normed hidden rows [R, D] and leaves the state after."""
        ...

    def window(self, rows: Rows) -> Tensor:
        """Run window rows; returns [R, D]. State that cannot be cut back waits for `settle`."""
        ...

    def settle(self, rows: Rows, accepted_B: Tensor) -> None:
        """Leave each stream's state as after its first `accepted_B` window rows."""
        ...

    def logits(self, hidden_RD: Tensor) -> Tensor:
        """[R, D] to [R, V], all of the vocabulary on every rank."""
        ...


@runtime_checkable
class LeavesOut(Protocol):
    """A model that runs a prompt's rows only as far as `Rows.reads` asks."""

    def aheads(self) -> Sequence[int]:
        """Some `Read.ahead`, such that prompts of these, of 0 and of a whole context run every kind
        of sublayer in every way."""
        ...


@runtime_checkable
class ReadsAhead(Protocol):
    """A model that reads rows of tables on the host, and can begin before a forward needs them."""

    def expect(self, tokens: Sequence[int], start: int, end: int) -> None:
        """Rows [start, end) of the prompt `tokens` run soon.

        Returns at once and changes no result. Raises `EngineLost` where reading ahead has failed.
        """
        ...


class Drafter(Protocol):
    """A family's draft layer bound to ops, weights and state of its own."""

    def forward(self, rows: Rows, hidden_RD: Tensor) -> Tensor:
        """Rows whose ids_R are the tokens after the model's hidden rows [R, D], one for one.

        The last forward's rows may come again, with other tokens after them.

        Returns [R, D], for `logits` of the token after those, and to stand for the next hidden row
        when guesses are chained.
        """
        ...

    def logits(self, hidden_RD: Tensor) -> Tensor:
        """[R, D] to [R, V]."""
        ...


class Proposal(NamedTuple):
    """A block of drafts: tokens_BK in order, and the chance_BK of each given those before it."""

    tokens_BK: Tensor
    chance_BK: Tensor


@runtime_checkable
class BlockDrafter(Protocol):
    """A family's drafter that guesses `block` tokens in one forward of its own rows.

    It looks at the model it was made with, not at hidden rows.
    """

    block: int

    def follow(self, rows: Rows) -> None:
        """Take in the rows of the model's last forward, once or again; rejected ones may be among
        them."""
        ...

    def tokens(self, pending_B: Tensor) -> Tensor:
        """The ids [B, block] of rows after streams' committed rows, the pending token first."""
        ...

    def propose(self, rows: Rows, choose: Callable[[int, Tensor], Tensor]) -> Proposal:
        """Drafts over window rows, a whole block a stream; keeps nothing.

        `choose` gives the tokens [B] of a step from its logits [B, V].
        """
        ...


class Mode(NamedTuple):
    """One arithmetic of a family in a golden: what `Family.config` calls it, the name of its
    logits there, and the largest difference allowed."""

    numerics: str
    logits: str
    tolerance: float


class Golden(Protocol):
    """How a family's runs are compared with a golden: its `golden` module's functions."""

    MODES: Sequence[Mode]

    def cuts(self, length: int) -> Mapping[str, Sequence[Cut]]: ...

    def names(self, config: Any) -> Sequence[str]:
        """Everything a golden can hold besides `ids`."""
        ...

    def selections(self, model: Any, rows: int) -> Mapping[str, list[set[Any]]]: ...

    def as_sets(self, name: str, golden: Tensor) -> list[set[Any]]: ...

    def states(
        self, model: Any, state: Mapping[str, Tensor], golden: Mapping[str, Tensor], length: int
    ) -> Mapping[str, tuple[Tensor, Tensor]]: ...

    def draft_logits(
        self, model: Any, state: Mapping[str, Tensor], rows: Rows, hidden_RD: Tensor
    ) -> Tensor: ...


class Family(Protocol):
    """A model line found through the plugin seam.

    `model_types` are the config.json `model_type` values it serves. `index_split` names the setting
    from which position on its index may be split, empty where it cannot be. `grid` is where its
    prompts may be cut. `files` are files of a checkpoint, beside its weights and config, that bits
    depend on where they are there. `bundled` maps the names of models that ship with it to their
    folders.
    """

    name: str
    model_types: tuple[str, ...]
    grid: int
    files: tuple[str, ...]
    index_split: str
    chat: ChatFormat

    def bundled(self) -> Mapping[str, Path]: ...

    def chat_in(self, folder: Path) -> ChatFormat:
        """`chat`, with what a checkpoint's folder says of it. Raises `StartError`."""
        ...

    def config(self, raw: Mapping[str, Any], numerics: str = "", expert_cut: str = IDS) -> Any:
        """Read config.json's object key by key. Raises `StartError` naming key and value.

        `numerics` names one of the family's arithmetics; empty is the checkpoint's own.
        `expert_cut` is how ranks cut routed experts: by ids or by width.
        """
        ...

    def numerics(self, config: Any) -> str:
        """The arithmetic in effect; empty for a family that has one."""
        ...

    def vocab_size(self, config: Any) -> int: ...

    def context(self, config: Any) -> int:
        """Most tokens of prompt plus reply that the model was made for."""
        ...

    def end_ids(self, config: Any) -> tuple[int, ...]:
        """Token ids that end a reply, as the config names them."""
        ...

    def drafts(self, config: Any) -> int:
        """How many drafts a stream and round suit the checkpoint; 0 where it has no draft layer."""
        ...

    def shared(self, config: Any, share: Share) -> Any:
        """The config of what one of several ranks holds, for its state, weights and model.

        Raises `StartError` naming what cannot be cut for so many.
        """
        ...

    def cut_products(self, config: Any) -> Sequence[CutProduct]:
        """Every product of which a rank has some of the columns; `config` is the whole model's."""
        ...

    def tensors(self, config: Any) -> Sequence[TensorSpec]:
        """Every tensor the model reads, under the checkpoint's names."""
        ...

    def ignored(self, name: str) -> str:
        """The part that is not served which a tensor of the checkpoint belongs to, or empty."""
        ...

    def state_spec(self, config: Any, *, window_rows: int, drafts: bool = False) -> StateSpec: ...

    def weights(self, config: Any, tensors: Mapping[str, Tensor], folder: Path) -> Any:
        """The model's weights in the forms its layers use, from tensors under official names.

        `folder` is the checkpoint's, for files beside its tensors.
        """
        ...

    def model(
        self,
        config: Any,
        weights: Any,
        ops: Ops,
        state: Mapping[str, Tensor],
        compile: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
    ) -> Model:
        """Bind weights, ops and state; `compile` wraps the function of a layer."""
        ...

    def drafter(
        self, config: Any, weights: Any, ops: Ops, state: Mapping[str, Tensor], model: Any
    ) -> Drafter | BlockDrafter:
        """The drafter of `model`, over state of `state_spec(..., drafts=True)`."""
        ...

    def golden(self) -> Golden: ...
