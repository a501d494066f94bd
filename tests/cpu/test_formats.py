"""An engine of bfloat16: what it holds in float32, what it keeps, and that rows stay row-exact."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tensorfold.backends.cpu_reference.backend import graph
from tensorfold.backends.cpu_reference.table import candidates
from tensorfold.core.backend_api import EngineOrder, Place
from tensorfold.core.engine.gloo import connect
from tensorfold.core.engine.open_engine import Device, open_torch_engine
from tensorfold.core.engine.optable import Candidate, Candidates
from tensorfold.core.engine.replay import Replayed, replay
from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.family_api import Cut, Family
from tensorfold.core.ops import SPECS, OpSpec
from tensorfold.core.ops.wide import wide
from tensorfold.core.settings import read
from tensorfold.families.dsv41.plugin import FAMILY as DSV41
from tensorfold.families.glm53.plugin import FAMILY as GLM53
from tensorfold.tools import widths
from tests.cpu.driving import Asked, alone, begin, fill_all, step

DATA = Path(__file__).parents[1] / "data"
FAMILIES: tuple[Family, ...] = (GLM53, DSV41)


# An op, one of its arguments and the format it came in.
Seen = set[tuple[str, str, torch.dtype]]


def narrowed(spec: OpSpec, call: Callable[..., Any], seen: Seen) -> Callable[..., Any]:
    """An op whose arithmetic is float32, between arguments and outputs of the formats that its
    shape function tells."""
    names = list(inspect.signature(spec.reference).parameters)

    def run_op(*args: Any) -> Any:
        for name, arg in zip(names, args, strict=True):
            if is_float(arg):
                seen.add((spec.name, name, arg.dtype))
        promised = spec.shape(*args)
        whole = [wide(arg) if is_float(arg) else arg for arg in args]
        found = call(*whole)
        for name, given, written in zip(names, args, whole, strict=True):
            if name in spec.mutates:
                given.copy_(written)
        if isinstance(found, tuple):
            pairs = zip(found, promised, strict=True)
            return tuple(one.to(wanted.dtype) for one, wanted in pairs)
        return found.to(promised.dtype)

    return run_op


def widened(call: Callable[..., Any]) -> Callable[..., Any]:
    """An op whose arithmetic and outputs are float32."""
    return lambda *args: call(*(wide(arg) if is_float(arg) else arg for arg in args))


def is_float(arg: Any) -> bool:
    return isinstance(arg, Tensor) and arg.is_floating_point()


def in_bfloat16(table: Candidates, seen: Seen) -> Candidates:
    specs = {spec.name: spec for spec in SPECS}
    return {
        name: tuple(
            Candidate(
                label=c.label,
                call=narrowed(specs[name], c.call, seen),
                library=c.library,
                unrounded=widened(c.call),
            )
            for c in choices
        )
        for name, choices in table.items()
    }


def opened(
    family: Family,
    seen: Seen | None = None,
    *,
    folder: Path | None = None,
    place: Place | None = None,
    **flags: Any,
) -> TorchEngine:
    sizes = {"lanes": 4, "context": 320, "chunk_rows": 320, "window_rows": 4} | flags
    folder = folder or DATA / family.name / "ckpt"
    order = EngineOrder(settings=read(sizes, {}), folder=folder, family=family, place=place)
    device = Device(
        backend="bfloat16 on the CPU",
        candidates=in_bfloat16(candidates(), set() if seen is None else seen),
        device=torch.device("cpu"),
        dtype=torch.bfloat16,
        tile=4,
        free_bytes=lambda: 1 << 32,
        bits={},
        graph=graph,
        connect=connect,
    )
    return open_torch_engine(order, device)


@pytest.fixture(scope="module", params=FAMILIES, ids=lambda family: family.name)
def engine(request: pytest.FixtureRequest) -> TorchEngine:
    return opened(request.param)


def golden_of(engine: TorchEngine) -> dict[str, Tensor]:
    return load_file(DATA / engine.info.family / "golden.safetensors")


def replayed(engine: TorchEngine, *cuts: Cut) -> Replayed:
    tokens = golden_of(engine)["ids"].flatten().tolist()
    return replay(engine, tokens, cuts)


# Rows after which a random model's choices of experts and tokens have gone their own way.
ROWS = 70


def test_logits_are_those_of_float32_within_the_format(engine: TorchEngine) -> None:
    """Spec glm53, 6: in bfloat16 the highest logit is float32's in 81 of 100 rows."""
    golden = golden_of(engine)
    found = replayed(engine, Cut("prompt", golden["ids"].numel()))
    wanted = golden["logits"].view(found.logits.shape)
    same = found.logits[:ROWS].argmax(-1) == wanted[:ROWS].argmax(-1)
    assert float(same.float().mean()) > 0.77
    off = (found.logits.float() - wanted)[:ROWS].abs()
    assert float(off.mean()) < 0.2 * float(wanted.std())


def test_states_of_the_first_layers_are_those_of_float32_within_the_format() -> None:
    engine = opened(GLM53)
    golden = golden_of(engine)
    rows = golden["ids"].numel()
    state = replayed(engine, Cut("prompt", rows)).state
    pairs = GLM53.golden().states(engine.model, state, golden, rows)
    for name in ("kda_state.0", "conv_state.0", "latent.1", "indexer.1"):
        mine, theirs = (part.double() for part in pairs[name])
        assert float((mine - theirs).norm() / theirs.norm()) < 0.01, name


def test_rows_keep_their_bits_in_pieces_and_windows(engine: TorchEngine) -> None:
    rows = golden_of(engine)["ids"].numel()
    whole = replayed(engine, Cut("prompt", rows))
    half = rows // 2 // engine.info.grid * engine.info.grid
    pieces = replayed(engine, Cut("prompt", half), Cut("prompt", rows - half))
    assert torch.equal(whole.logits, pieces.logits)
    ones = replayed(engine, Cut("prompt", rows - 12), *[Cut("window", 1)] * 12)
    threes = replayed(engine, Cut("prompt", rows - 12), *[Cut("window", 3)] * 4)
    assert torch.equal(ones.logits, threes.logits)
    assert all(torch.equal(ones.state[name], threes.state[name]) for name in ones.state)


def test_a_reply_is_the_same_alone_and_among_others(engine: TorchEngine) -> None:
    asks = [Asked(prompt=tuple(range(3, 3 + length)), seed=length) for length in (5, 70, 33)]
    solo = [alone(engine, ask).proof() for ask in asks]
    told = [begin(engine, stream, ask) for stream, ask in enumerate(asks)]
    for one in told:
        fill_all(engine, one)
    while not all(one.done for one in told):
        step(engine, [one for one in told if not one.done])
    assert [one.proof() for one in told] == solo
    for stream in range(len(asks)):
        engine.close(stream)


@pytest.mark.parametrize("guesses", [1, 2])
def test_a_reply_is_the_same_under_guesses_right_and_wrong(
    engine: TorchEngine, guesses: int
) -> None:
    """In so narrow a format near ties are many, and a row's last bit decides them."""
    ask = Asked(prompt=tuple(range(3, 40)), most=40, seed=5)
    solo = alone(engine, ask)
    told = begin(engine, 1, ask)
    fill_all(engine, told)
    while not told.done:
        place = len(told.tokens)
        coming = solo.tokens[place : min(place + guesses, ask.most - 1)]
        if place % 3 == 0 and coming:
            coming[place % len(coming)] ^= 1
        step(engine, [told], {1: coming})
    engine.close(1)
    assert told.proof() == solo.proof()


WIDE_WEIGHTS = {
    "glm53": ("hc_attn_fn", "hc_ffn_base", "A_log", "q_conv1d.weight", "mlp.gate.weight"),
    "dsv41": ("hc_attn_fn", "attn_sink", "ffn.gate.weight", "ffn.gate.bias", "engram.q_weight"),
}
WIDE_STATES = {"glm53": ("kda",), "dsv41": ("open",)}


def test_weights_and_states_are_of_the_formats_that_are_declared(engine: TorchEngine) -> None:
    family, model = engine.info.family, engine.model
    wide_names = {
        spec.name.split(".", 1)[1]
        for spec in next(f for f in FAMILIES if f.name == family).tensors(model.config)  # type: ignore[attr-defined]
        if spec.dtype == "float32"
    }
    for ending in WIDE_WEIGHTS[family]:
        assert any(name.endswith(ending) for name in wide_names), ending
    for name, buffer in engine.storage.buffers.items():
        wanted = torch.float32 if name.startswith(WIDE_STATES[family]) else torch.bfloat16
        assert buffer.dtype == (torch.int64 if name == "ids" else wanted), name
    assert engine.info.dtype == "bfloat16"


# Arguments that come in float32; every other one comes in bfloat16.
WIDE_ARGUMENTS = {
    "glm53": {
        "hc_split": ("fn_MF", "base_M", "scale_3"),
        "hc_join": ("post_RN", "comb_RNN"),
        "short_conv": ("taps_CT",),
        "kda_steps": ("gate_BWHK", "beta_BWH", "state_LHKV"),
        "kda_blocks": ("gate_RHK", "beta_RH", "state_LHKV"),
        "route": ("logit_RE", "bias_E"),
        "experts": ("weight_RK",),
        # The recurrence's own norms and the router read these beside the engine's format.
        "rms_norm": ("weight",),
        "linear": ("w_NK",),
    },
    "dsv41": {
        "hc_mix": ("fn_MF", "base_M", "scale_3"),
        "hc_collapse": ("pre_RN",),
        "hc_join": ("post_RN", "comb_RNN"),
        "engram_gate": ("weight_ND",),
        "pool_keys": ("keys_PMD", "gates_PMD", "ape_MD"),
        "sink_attention": ("sink_H",),
        "route_softplus": ("logit_RE", "bias_E"),
        "rotate": ("cos_RP", "sin_RP"),
        "experts_weighted": ("weight_RK",),
        # The router, the compressors and the head.
        "linear": ("w_NK", "x_RK"),
    },
}
BOTH = {("rms_norm", "x"), ("rms_norm", "weight"), ("linear", "w_NK"), ("linear", "x_RK")}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_op_is_given_the_formats_that_the_reference_computes_in(family: Family) -> None:
    seen: Seen = set()
    opened(family, seen)
    wide_ones = {(op, name) for op, names in WIDE_ARGUMENTS[family.name].items() for name in names}
    assert {(op, name) for op, name, dtype in seen if dtype == torch.float32} == wide_ones
    narrow = {(op, name) for op, name, dtype in seen if dtype == torch.bfloat16}
    assert narrow & wide_ones <= BOTH


def test_what_a_stream_of_the_release_keeps() -> None:
    """Spec glm53, section 3."""
    config = GLM53.config(widths.glm53())
    spec = replace(GLM53.state_spec(config, window_rows=1), dtype="bfloat16")
    assert spec.bytes_per_token() == 11 * (1024 + 64)
    kda, history, tail = 34 * 64 * 128 * 128 * 4, 34 * 147_456, 11 * 4 * 512
    assert spec.bytes_per_lane() == kda + history + tail
    config = DSV41.config(widths.dsv41())
    spec = replace(DSV41.state_spec(config, window_rows=1), dtype="bfloat16")
    assert spec.bytes_per_token() == 2560 + 640


def test_a_state_without_a_format_of_its_own_has_the_engines() -> None:
    for family, raw in ((GLM53, widths.glm53()), (DSV41, widths.dsv41())):
        spec = family.state_spec(family.config(raw), window_rows=4)
        assert {spec.dtype_of(entry) for entry in spec.entries} == {"float32"}
