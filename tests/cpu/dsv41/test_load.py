"""What an engine of dsv41 checks at load, how it falls back, and what a compiled one captures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tensorfold.backends.cpu_reference.table import candidates
from tensorfold.core.engine import batch
from tensorfold.core.engine.batch import Run
from tensorfold.core.engine.compile import capturing, fix_sizes, library_ops
from tensorfold.core.engine.replay import replay
from tensorfold.core.engine.state import allocate
from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.errors import StartError
from tensorfold.core.family_api import Cut, Read
from tensorfold.core.ops import Ops
from tensorfold.families.dsv41.block import PLAIN
from tensorfold.families.dsv41.model import Dsv41
from tensorfold.families.dsv41.plugin import FAMILY
from tensorfold.tools.serve import skipped
from tests.cpu.driving import same_state, some_tokens
from tests.cpu.dsv41.engines import CKPT, MODES, live, opened
from tests.drawing import preferred

CALLED = {
    "linear",
    "linear_parts",
    "linear_heads",
    "rms_norm",
    "hc_mix",
    "hc_collapse",
    "hc_join",
    "engram_gate",
    "pick_rows",
    "sink_attention",
    "experts_weighted",
}


def test_every_op_that_the_model_calls_is_checked(shared: TorchEngine) -> None:
    checked = {name for name, held in shared.info.checks.items() if held is not None}
    assert {name for name in checked if name.startswith("rows:")} == {
        f"rows:{name}" for name in CALLED
    }
    shares = {name: shared.info.checks[name] for name in checked if name.startswith("ranks:")}
    assert {"ranks:linear", "ranks:sink_attention", "ranks:experts_weighted"} <= set(shares)
    assert all(shares.values()), shares
    for name in CALLED:
        preferred = candidates()[name][0].label
        assert (shared.info.ops[name] == preferred) is shared.info.checks[f"rows:{name}"], name


@pytest.mark.parametrize("numerics", MODES)
def test_the_promises_hold_on_the_fallback_forms(numerics: str) -> None:
    engine = opened(numerics, verdict=lambda *_: False, lanes=2, context=128, chunk_rows=128)
    for name in CALLED:
        assert engine.info.ops[name] == candidates()[name][-1].label
    tokens = some_tokens(75)
    whole = replay(engine, tokens, [Cut("prompt", 75)])
    for cuts in ([Cut("prompt", 31), Cut("window", 3), Cut("prompt", 41)], [Cut("window", 5)] * 15):
        ran = replay(engine, tokens, cuts)
        assert torch.equal(ran.logits, whole.logits)
        assert same_state(live(engine, ran.state, 75), live(engine, whole.state, 75))


def test_the_arithmetic_is_part_of_the_engines_identity() -> None:
    plain, faithful = (opened(numerics, lanes=1, context=64, chunk_rows=64) for numerics in MODES)
    assert plain.info.identity != faithful.info.identity
    assert plain.info.grid == 1


def test_a_choice_spelled_out_is_the_engine_of_the_same_one_left_unsaid() -> None:
    unsaid, said = (
        opened(numerics, lanes=1, context=64, chunk_rows=64) for numerics in ("", "plain")
    )
    assert unsaid.info.identity == said.info.identity


def test_what_is_passed_over_is_counted_by_its_part(tmp_path: Path) -> None:
    tensors = load_file(CKPT / "model.safetensors")
    for number in range(266):
        tensors[f"vision.blocks.{number}.weight"] = torch.zeros(number, 2, dtype=torch.bfloat16)
    tensors["layers.3.ffn.gate.bias_vl"] = torch.zeros(6)
    save_file(tensors, tmp_path / "model.safetensors")
    for name in ("config.json", "engram_token_map.json"):
        (tmp_path / name).write_text((CKPT / name).read_text())
    sizes = {"lanes": 1, "context": 64, "chunk_rows": 64}
    info = opened("plain", tmp_path, **sizes).info
    assert info.to_json()["skipped"] == {
        "vision": {"tensors": 266, "bytes": 4 * sum(range(266))},
        "image bias of routers": {"tensors": 1, "bytes": 24},
    }
    assert "266 tensors of 140,980 bytes passed over: vision, not served" in skipped(info)
    assert skipped(opened("plain", **sizes).info) == []


def test_drafts_are_refused_where_the_checkpoint_has_no_drafter() -> None:
    with pytest.raises(StartError, match="--drafts is 3"):
        opened("plain", drafts=3)


# Kind, rows by stream, first positions; of prompts that are not read whole, rows up to a stop.
FORWARDS: tuple[tuple[str, tuple[int, ...], tuple[int, ...], int | None], ...] = (
    ("prompt", (31, 5), (0, 0), None),
    ("prompt", (1,), (31,), None),
    ("window", (2, 1, 3), (32, 5, 0), None),
    ("window", (1,), (34,), None),
    ("prompt", (70,), (35,), None),
    ("window", (4, 4), (105, 6), None),
    ("prompt", (30, 40), (0, 0), 0),
    ("prompt", (33,), (30,), 9),
    ("prompt", (64,), (63,), 0),
)
CONTEXT = 128


def hidden_rows(ops: Ops, compiled: Callable[..., Any] | None, model: Dsv41) -> list[torch.Tensor]:
    spec = FAMILY.state_spec(model.config, window_rows=8)
    storage = allocate(spec, lanes=3, context=CONTEXT, kept_bytes=0, device=torch.device("cpu"))
    own = FAMILY.model(model.config, model.weights, ops, storage.buffers, compiled)
    if compiled is not None:
        # As a start does.
        fix_sizes((model.weights, dict(storage.buffers), storage.table))
    seats = [storage.claim(CONTEXT) for _ in range(3)]
    found = []
    for kind, counts, starts, ahead in FORWARDS:
        runs = [
            Run(some_tokens(count, seed=count), seat.lane, start)
            for count, start, seat in zip(counts, starts, seats, strict=False)
        ]
        prompt = kind == "prompt"
        rows = batch.build(runs, storage, prompt=prompt, tile=8, context=CONTEXT)
        if ahead is not None:
            rows = rows._replace(reads=tuple(Read(count, ahead) for count in counts))
        found.append(own.prompt(rows) if prompt else own.window(rows))
    return found


def test_every_kind_of_sublayer_is_whole_graphs_with_the_bits_of_plain_ops(
    shared: TorchEngine,
) -> None:
    model = shared.model
    assert isinstance(model, Dsv41)
    plain = preferred(candidates())
    mode = "faithful" if model.config.faithful else "plain"
    opaque = library_ops(f"tensorfold_dsv41_{mode}", plain)
    graphs: Counter[str] = Counter()

    def compile(function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
            graphs[function.__name__] += 1
            return graph.forward

        return capturing(function, backend=counted)

    # Shapes that are symbols cost more to keep than to make again.
    shapes_made_again = torch._dynamo.config.patch(fake_tensor_cache_enabled=False)
    with torch.inference_mode(), shapes_made_again:
        wanted = hidden_rows(plain, None, model)
        found = hidden_rows(opaque, compile, model)
    for mine, theirs in zip(found, wanted, strict=True):
        assert torch.equal(mine.nan_to_num(), theirs.nan_to_num())
        assert torch.equal(mine.isnan(), theirs.isnan())
    assert set(graphs) == {function.__name__ for function in PLAIN}
    # A layer of the window alone, one that makes rows and one that reads them, at each ratio, and
    # one that picks among candidates: five to six shapes of one function, each with few graphs.
    for function in ("make", "look_up", "begin", "moe_sublayer"):
        assert graphs[function] <= 4, graphs
    assert graphs["engram_sublayer"] <= 4, graphs
    assert graphs["attention_sublayer"] <= 24, graphs
