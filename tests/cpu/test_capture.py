"""The model's forward is captured whole, one graph a kind of sublayer, and captured ops give the
bits of plain ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tensorfold.backends.cpu_reference.table import candidates
from tensorfold.core.checkpoint import open_checkpoint, read_config
from tensorfold.core.engine import batch, optable
from tensorfold.core.engine.batch import Run
from tensorfold.core.engine.compile import capturing, library_ops
from tensorfold.core.engine.state import allocate
from tensorfold.core.ops import Ops
from tensorfold.families.glm53.block import PLAIN
from tensorfold.families.glm53.plugin import FAMILY
from tests.drawing import preferred

FOLDER = Path(__file__).parent.parent / "data" / "glm53" / "ckpt"
CONTEXT = 256
# Kinds, rows a stream and first positions: one stream and several, one block and several, windows
# of equal and of different widths, rows that keep every token and rows that drop some.
FORWARDS = (
    ("prompt", (10,), (0,)),
    ("prompt", (130,), (64,)),
    ("prompt", (5, 30), (0, 64)),
    ("window", (1,), (3,)),
    ("window", (1, 1, 1), (3, 70, 200)),
    ("window", (2, 3), (80, 7)),
    ("prompt", (9,), (0,)),
    ("window", (1, 1), (90, 91)),
)


def hidden_rows(
    ops: Ops, compiled: Callable[..., Any] | None, config: Any, weights: Any
) -> list[torch.Tensor]:
    spec = FAMILY.state_spec(config, window_rows=8)
    storage = allocate(spec, lanes=4, context=CONTEXT, kept_bytes=0, device=torch.device("cpu"))
    model = FAMILY.model(config, weights, ops, storage.buffers, compiled)
    seats = [storage.claim(CONTEXT) for _ in range(4)]
    generator = torch.Generator().manual_seed(0)
    found = []
    for kind, counts, starts in FORWARDS:
        runs = [
            Run(torch.randint(1, 140, (count,), generator=generator).tolist(), seat.lane, start)
            for count, start, seat in zip(counts, starts, seats, strict=False)
        ]
        prompt = kind == "prompt"
        rows = batch.build(runs, storage, prompt=prompt, tile=8, context=CONTEXT)
        found.append(model.prompt(rows) if prompt else model.window(rows))
        if not prompt:
            model.settle(rows, rows.count_B)
    return found


def test_every_kind_of_sublayer_is_one_whole_graph_with_the_bits_of_plain_ops() -> None:
    config = FAMILY.config(read_config(FOLDER))
    tensors = open_checkpoint(FOLDER).load(
        FAMILY.tensors(config),
        FAMILY.ignored,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    weights = FAMILY.weights(config, tensors, FOLDER)
    plain = preferred(candidates())
    opaque = library_ops("tensorfold_capture_test", plain)
    graphs: Counter[str] = Counter()

    def compile(function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
            graphs[function.__name__] += 1
            return graph.forward

        return capturing(function, backend=counted)

    # Shapes that are symbols cost more to keep than to make again.
    shapes_made_again = torch._dynamo.config.patch(fake_tensor_cache_enabled=False)
    with torch.inference_mode(), shapes_made_again:
        wanted = hidden_rows(plain, None, config, weights)
        found = hidden_rows(opaque, compile, config, weights)
    assert all(map(torch.equal, found, wanted))
    assert set(graphs) == {function.__name__ for function in PLAIN}
    # Sizes of one are graphs of their own; nothing else may be, whatever the rows and positions.
    assert max(graphs.values()) <= 4, graphs


def test_a_break_in_a_sublayer_is_an_error_not_a_second_graph() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x + 1

    with pytest.raises(torch._dynamo.exc.Unsupported):
        capturing(broken, backend="eager")(torch.ones(3))


def test_a_process_holds_several_tables_of_one_name() -> None:
    chosen = {name: choices[-1].call for name, choices in candidates().items()}
    plain = optable.table(chosen)
    x, w = torch.randn(3, 8), torch.randn(5, 8)
    first, second = (library_ops("tensorfold_twice_test", plain) for _ in range(2))
    assert first.linear is not second.linear
    assert torch.equal(first.linear(x, w), second.linear(x, w))
