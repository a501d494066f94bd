"""What a family is: the mathematics of one model line, written against an op table.

A family's plugin object, its config and its chat format import without torch; its model is built
by core/engine, which hands it the ops of a backend. Arrays are torch tensors below this door.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

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
    """A tensor that a checkpoint must hold, under its official name."""

    name: str
    shape: tuple[int, ...]


class Segment(NamedTuple):
    """One prompt's rows in a prompt forward: batch rows `[first, first + rows)` are the stream in
    `lane`'s positions `[start, start + rows)`; `start` is on the grid."""

    first: int
    rows: int
    lane: int
    start: int


class Rows(NamedTuple):
    """The rows of one forward, padded to the backend's row tile with rows of the spare lane.

    ids_R, lane_R, position_R and slot_R are int64 [R]; slot is the row of a `PerToken` buffer with
    `every` 1. table_LP int64 [lanes + 1, pages of a context] maps a lane's pages to slots / page.
    `width` bounds the tokens that any row sees, rounded up to one of few sizes. Prompt forwards
    have `segments`; windows have rows_BW int64 [B, W], the batch row of stream b's window row w,
    with row R (one past the end) where a window is shorter, and lane_B int64 [B].
    """

    ids_R: Tensor
    lane_R: Tensor
    position_R: Tensor
    slot_R: Tensor
    table_LP: Tensor
    width: int
    segments: tuple[Segment, ...] = ()
    rows_BW: Tensor | None = None
    lane_B: Tensor | None = None


class Model(Protocol):
    """A family's model bound to ops, weights and state buffers."""

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
        """[R, D] to [R, V]."""
        ...


class Family(Protocol):
    """A model line found through the plugin seam.

    `model_types` are the config.json `model_type` values it serves. `grid` is where its prompts
    may be cut. `bundled` maps the names of models that ship with it to their folders.
    """

    name: str
    model_types: tuple[str, ...]
    grid: int
    chat: ChatFormat

    def bundled(self) -> Mapping[str, Path]: ...

    def config(self, raw: Mapping[str, Any]) -> Any:
        """Read config.json's object key by key. Raises `StartError` naming key and value."""
        ...

    def vocab_size(self, config: Any) -> int: ...

    def context(self, config: Any) -> int:
        """Most tokens of prompt plus reply that the model was made for."""
        ...

    def end_ids(self, config: Any) -> tuple[int, ...]:
        """Token ids that end a reply, as the config names them."""
        ...

    def tensors(self, config: Any) -> Sequence[TensorSpec]:
        """Every tensor the model reads, under the checkpoint's names."""
        ...

    def ignored(self, name: str) -> bool:
        """Whether a tensor of the checkpoint belongs to a part that is not served (vision)."""
        ...

    def state_spec(self, config: Any, *, window_rows: int) -> StateSpec: ...

    def model(
        self, config: Any, weights: Mapping[str, Tensor], ops: Ops, state: Mapping[str, Tensor]
    ) -> Model: ...
