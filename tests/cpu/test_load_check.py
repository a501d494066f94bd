"""The load-time check: what fails it is replaced by name, and every promise holds without it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from tensorfold.backends.cpu_reference import backend as cpu_reference
from tensorfold.backends.cpu_reference.table import candidates
from tensorfold.core.engine import checks
from tensorfold.core.engine.optable import Call, Candidate, complete
from tensorfold.core.engine.replay import replay
from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.engine_api import Sampling
from tensorfold.core.family_api import Cut
from tensorfold.tools import parity
from tests.cpu.driving import (
    CKPT,
    GOLDEN,
    Asked,
    alone,
    begin,
    fill,
    opened,
    same_state,
    some_tokens,
    step,
)
from tests.cpu.test_parity import first_rows

# Ops of the other family, which this model never calls and no check runs here.
UNCALLED = {
    "engram_gate",
    "experts_weighted",
    "hc_collapse",
    "hc_mix",
    "pick_rows",
    "rotate",
    "sink_attention",
}
LIBRARY_FORMS = sorted(
    name for name, choices in candidates().items() if choices[0].library and name not in UNCALLED
)
SMALL = {"lanes": 3, "context": 128, "chunk_rows": 128, "window_rows": 4}


def failing(*names: str) -> Callable[..., bool]:
    def verdict(call: Call, candidate: Candidate, widths: Sequence[int]) -> bool:
        return call.name not in names

    return verdict


def promises_hold(engine: TorchEngine) -> None:
    """A reduced sweep: lengths, pieces, packs, windows with guesses, and company."""
    tokens = some_tokens(70, seed=6)
    whole = replay(engine, tokens, [Cut("prompt", 70)])
    for length in (1, 9, 64, 65):
        ran = replay(engine, tokens[:length], [Cut("prompt", length)])
        assert torch.equal(ran.logits, whole.logits[:length]), length
    pieces = replay(engine, tokens, [Cut("prompt", 64), Cut("prompt", 6)])
    assert torch.equal(pieces.logits, whole.logits)
    assert same_state(pieces.state, whole.state)
    orders = [
        Asked(
            prompt=tuple(some_tokens(length, seed=length)),
            most=5,
            sampling=Sampling(temperature=float(number % 2), top_k=30),
            seed=number,
        )
        for number, length in enumerate((3, 66, 18))
    ]
    wanted = [alone(engine, asked) for asked in orders]
    tolds = [begin(engine, stream, asked) for stream, asked in enumerate(orders)]
    fill(engine, (tolds[1], 0, 64), (tolds[0], 0, 3))
    fill(engine, (tolds[2], 0, 18), (tolds[1], 64, 66))
    # One stream's guesses are right, one's half right, one has none.
    right, half = wanted[0].tokens[1:3], [*wanted[1].tokens[1:2], 0]
    step(engine, tolds, {0: right, 1: half})
    while live := [told for told in tolds if not told.done]:
        step(engine, live)
    assert [told.proof() for told in tolds] == [told.proof() for told in wanted]
    for told in tolds:
        engine.close(told.stream)
    assert engine.memory().used == 0


def test_every_op_has_a_guaranteed_form_last() -> None:
    complete(candidates())
    assert len(LIBRARY_FORMS) == 12


def test_every_op_is_the_preferred_form_or_one_behind_it_and_info_says_which(
    shared_engine: TorchEngine,
) -> None:
    """On a machine whose library is not row-exact some are false, and never silently."""
    for name in UNCALLED:
        assert shared_engine.info.checks[f"rows:{name}"] is None
        assert shared_engine.info.ops[name] == candidates()[name][-1].label
    for name in LIBRARY_FORMS:
        preferred = candidates()[name][0].label
        held = shared_engine.info.checks[f"rows:{name}"]
        assert held is not None, name
        assert (shared_engine.info.ops[name] == preferred) is held, name


def test_a_second_library_form_stands_in_for_the_first() -> None:
    """Products padded to four rows fail, those padded to eight pass."""
    first, second, _ = candidates()["linear"]

    def verdict(call: Call, candidate: Candidate, widths: Sequence[int]) -> bool:
        return candidate.label != first.label

    engine = opened(verdict=verdict, **SMALL)
    assert engine.info.ops["linear"] == second.label
    assert engine.info.checks["rows:linear"] is False
    assert engine.info.checks["rows:rms_norm"] is True
    promises_hold(engine)


@pytest.mark.parametrize("name", LIBRARY_FORMS)
def test_an_op_that_fails_the_check_is_replaced_by_name_and_the_promises_hold(name: str) -> None:
    engine = opened(verdict=failing(name), **SMALL)
    *library, fallback = candidates()[name]
    assert engine.info.ops[name] == fallback.label
    assert fallback.label not in [form.label for form in library]
    assert engine.info.checks[f"rows:{name}"] is False
    for other in LIBRARY_FORMS:
        if other != name:
            assert engine.info.checks[f"rows:{other}"] is True
            assert engine.info.ops[other] == candidates()[other][0].label
    promises_hold(engine)


def test_the_fallback_is_part_of_the_engines_identity() -> None:
    first = opened(verdict=failing(), **SMALL).info
    second = opened(verdict=failing("linear"), **SMALL).info
    assert first.identity != second.identity
    assert first.identity == opened(verdict=failing(), **SMALL).info.identity


def test_an_engine_of_fallbacks_alone_keeps_the_promises() -> None:
    engine = opened(verdict=failing(*LIBRARY_FORMS), **SMALL)
    rows = [held for name, held in engine.info.checks.items() if name.startswith("rows:")]
    assert rows
    assert not any(rows)
    promises_hold(engine)


def test_an_engine_of_fallbacks_alone_agrees_with_the_golden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ckpt").symlink_to(CKPT, target_is_directory=True)
    golden = first_rows(load_file(GOLDEN / "golden.safetensors"), rows=26)
    save_file(
        {name: tensor.contiguous() for name, tensor in golden.items()},
        tmp_path / "golden.safetensors",
    )
    seen: list[TorchEngine] = []
    real = cpu_reference.open_engine

    def fallbacks(order: Any) -> TorchEngine:
        seen.append(real(order, verdict=failing(*LIBRARY_FORMS)))
        return seen[-1]

    monkeypatch.setattr(cpu_reference, "open_engine", fallbacks)
    assert parity.main([str(tmp_path)]) == 0
    assert "agrees, tolerance 5e-05" in capsys.readouterr().out
    assert seen[0].info.ops["linear"] == "fixed tiles of 8 rows"


def recorded(name: str) -> list[Call]:
    """The calls that opening the golden model makes of an op."""
    found: list[Call] = []

    def verdict(call: Call, candidate: Candidate, widths: Sequence[int]) -> bool:
        if call.name == name:
            found.append(call)
        return True

    opened(verdict=verdict, **SMALL)
    assert found, name
    return found


def exact(x_RK: Tensor, w_NK: Tensor) -> Tensor:
    return candidates()["linear"][-1].call(x_RK, w_NK)


def by_rows(x_RK: Tensor, w_NK: Tensor) -> Tensor:
    """Other bits from 16 rows up, as of a library that splits a long product."""
    if x_RK.shape[0] < 16:
        return F.linear(x_RK, w_NK)
    half = x_RK.shape[1] // 2
    return F.linear(x_RK[:, :half], w_NK[:, :half]) + F.linear(x_RK[:, half:], w_NK[:, half:])


def by_place(x_RK: Tensor, w_NK: Tensor) -> Tensor:
    """A row's bits depend on whether it is the first."""
    out = exact(x_RK, w_NK).clone()
    out[1:] = torch.nextafter(out[1:], torch.full_like(out[1:], torch.inf))
    return out


def by_company(x_RK: Tensor, w_NK: Tensor) -> Tensor:
    return exact(x_RK, w_NK) * (1 + x_RK.abs().max() * 1e-6)


def by_mood(x_RK: Tensor, w_NK: Tensor) -> Tensor:
    """Every second call of many rows gives other bits; few rows are always right."""
    if x_RK.shape[0] <= 64:
        return exact(x_RK, w_NK)
    calls = MOOD[w_NK.shape] = MOOD.get(w_NK.shape, 0) + 1
    return exact(x_RK, w_NK) * (1 + (calls - 1) % 2 * 1e-6)


MOOD: dict[torch.Size, int] = {}


@pytest.mark.parametrize("dishonest", [by_rows, by_place, by_company, by_mood])
def test_the_real_verdict_catches_a_product_whose_bits_depend_on_company(
    dishonest: Callable[..., Tensor],
) -> None:
    calls = recorded("linear")
    candidate = Candidate(label="dishonest", call=dishonest, library=True)
    assert not all(checks.holds(call, candidate, [64, 128]) for call in calls)
    honest = candidates()["linear"]
    chosen, found = checks.choose({"linear": [candidate, *honest]}, calls, 128)
    assert chosen["linear"].label == honest[0].label
    assert found == {"rows:linear": False}


def attends_by_width(*args: Any) -> Tensor:
    """Attention whose bits depend on the length of the list."""
    out = candidates()["latent_attention"][0].call(*args)
    return out * (1 + args[4].shape[1] * 1e-6)


def test_the_real_verdict_catches_attention_that_depends_on_unused_entries() -> None:
    calls = recorded("latent_attention")
    candidate = Candidate(label="dishonest", call=attends_by_width, library=True)
    assert not all(checks.holds(call, candidate, [64, 128]) for call in calls)


def test_the_real_verdict_catches_blocks_that_depend_on_one_another() -> None:
    def blocks(*args: Any) -> Tensor:
        out = candidates()["kda_blocks"][0].call(*args)
        return out * (1 + args[5].shape[0] * 1e-6)

    calls = recorded("kda_blocks")
    candidate = Candidate(label="dishonest", call=blocks, library=True)
    assert not all(checks.holds(call, candidate, [64, 128]) for call in calls)


@pytest.mark.parametrize(("name", "counted"), [("kda_steps", 0), ("kda_blocks", 5)])
def test_the_real_verdict_catches_states_that_depend_on_company(name: str, counted: int) -> None:
    """Outputs are right, and what is left in the streams' states is not."""

    def leaving(*args: Any) -> Tensor:
        out: Tensor = candidates()[name][0].call(*args)
        if args[counted].shape[0] > 1:
            args[-1].mul_(1 + 1e-6)
        return out

    calls = recorded(name)
    candidate = Candidate(label="dishonest", call=leaving, library=True)
    assert not all(checks.holds(call, candidate, [64, 128]) for call in calls)


def test_the_real_verdict_catches_picks_that_depend_on_how_far_is_looked() -> None:
    def picks(*args: Any) -> Tensor:
        found: Tensor = candidates()["pick_tokens"][0].call(*args)
        return found + args[-1]

    calls = recorded("pick_tokens")
    candidate = Candidate(label="dishonest", call=picks, library=True)
    assert not all(checks.holds(call, candidate, [64, 128]) for call in calls)


def test_an_op_that_nothing_called_is_not_said_to_hold() -> None:
    chosen, found = checks.choose({"linear": candidates()["linear"]}, [], 128)
    assert found == {"rows:linear": None}
    assert not chosen["linear"].library


def test_the_check_leaves_no_trace_in_the_state(shared_engine: TorchEngine) -> None:
    engine = opened(**SMALL)
    assert engine.memory().used == engine.memory().peak == 0
    assert all(not buffer.any() for buffer in engine.storage.buffers.values())
