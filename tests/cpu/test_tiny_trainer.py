"""The trainer's own model against the given reference, and its blocked delta rule."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tensorfold.tools.tiny.glm53 import losses_of
from tensorfold.tools.tiny.kda import blocked_delta_rule, unit
from tensorfold.tools.tiny.lines import load_official
from tensorfold.tools.tiny.model import Model, loss_of, official_tensors
from tensorfold.tools.tiny.shape import read_shape

GIVEN = Path(__file__).parents[1] / "data" / "glm53"


@pytest.fixture(scope="module")
def given() -> tuple[Model, dict[str, Tensor]]:
    model = Model(read_shape(json.loads((GIVEN / "ckpt/config.json").read_text("utf-8"))))
    load_official(official_tensors(model), load_file(GIVEN / "ckpt/model.safetensors"))
    return model, load_file(GIVEN / "golden.safetensors")


@pytest.mark.parametrize("grad", [False, True])
def test_logits_drafts_and_selections_are_the_references(
    given: tuple[Model, dict[str, Tensor]], grad: bool
) -> None:
    model, golden = given
    ids = golden["ids"]
    with torch.set_grad_enabled(grad):
        hidden, asides = model(ids)
        drafted, _ = model.draft(ids[:, 1:], hidden[:, :-1])
        logits, drafts = model.lm_head(hidden)[0], model.lm_head(drafted)[0]
    assert (logits - golden["logits"]).abs().max() <= 5e-5
    assert (drafts - golden["mtp_logits"]).abs().max() <= 5e-5
    pool, layers = model.shape.pool, [i for i, kda in enumerate(model.shape.linear) if not kda]
    assert layers
    for layer in layers:
        chosen_TP = asides[layer].chosen_BTP[0]
        for row in range(ids.shape[1]):
            pools = chosen_TP[row].nonzero().flatten().tolist()
            read = {pool * p + i for p in pools for i in range(pool)}
            read |= set(range(row + 1 - (row + 1) % pool, row + 1))
            assert read == set(golden[f"topk.{layer}"][row].tolist()) - {-1}


def test_every_weight_learns(given: tuple[Model, dict[str, Tensor]]) -> None:
    model, golden = given
    ids = golden["ids"]
    main, draft, ranking, _ = losses_of(model, loss_of, ids, torch.ones(ids.shape))
    (main + draft + ranking).backward()
    still = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    model.zero_grad(set_to_none=True)
    assert still == []


def recurrence(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    state = torch.zeros(*k.shape[:1], *k.shape[2:], v.shape[-1], dtype=torch.float64)
    q, k, v, g, beta = (x.double() for x in (q, k, v, g, beta))
    out = []
    for t in range(k.shape[1]):
        state = state * g[:, t].exp()[..., None]
        guess = torch.einsum("bhkv,bhk->bhv", state, k[:, t])
        change = beta[:, t][..., None] * (v[:, t] - guess)
        state = state + k[:, t][..., None] * change[:, :, None]
        out.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
    return torch.stack(out, 1)


@pytest.mark.parametrize("rows", [1, 3, 63, 64, 65, 300])
@pytest.mark.parametrize("gates", ["at the bound", "near zero", "mixed", "one key"])
def test_blocks_equal_the_recurrence(rows: int, gates: str) -> None:
    generator = torch.Generator().manual_seed(rows)
    q, k, v, noise = (torch.randn(2, rows, 3, 16, generator=generator) for _ in range(4))
    q, k = unit(q), unit(k)
    beta = torch.sigmoid(torch.randn(2, rows, 3, generator=generator))
    g = {"at the bound": torch.full_like(k, -5.0), "mixed": -5 * torch.sigmoid(4 * noise)}.get(
        gates, torch.full_like(k, -1e-4)
    )
    if gates == "one key":
        k, beta = k[:, :1].expand_as(k), torch.full_like(beta, 0.99)
    leaves = [x.clone().requires_grad_() for x in (q, k, v, g, beta)]
    out = blocked_delta_rule(*leaves)
    assert (out - recurrence(q, k, v, g, beta)).abs().max() < 2e-5
    out.square().sum().backward()
    assert all(x.grad.isfinite().all() for x in leaves)


def test_a_gradient_of_the_blocks_is_the_recurrences() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v, noise = (torch.randn(1, 130, 2, 8, generator=generator) for _ in range(4))
    beta = torch.sigmoid(torch.randn(1, 130, 2, generator=generator))
    inputs = (unit(q), unit(k), v, -5 * torch.sigmoid(noise), beta)
    ours = [x.clone().requires_grad_() for x in inputs]
    theirs = [x.double().requires_grad_() for x in inputs]
    blocked_delta_rule(*ours).square().sum().backward()
    recurrence(*theirs).square().sum().backward()
    for one, two in zip(ours, theirs, strict=True):
        assert (one.grad - two.grad).abs().max() < 1e-4 * two.grad.abs().max()


@pytest.mark.parametrize("spoil", ["missing", "left over", "misshapen"])
def test_a_wrong_tensor_is_named(given: tuple[Model, dict[str, Tensor]], spoil: str) -> None:
    model, _ = given
    tensors = {name: value.detach() for name, value in official_tensors(model).items()}
    name = "lm_head.weight"
    if spoil == "missing":
        del tensors[name]
    elif spoil == "left over":
        tensors[name := "lm_head.bias"] = torch.zeros(1)
    else:
        tensors[name] = tensors[name][:-1]
    with pytest.raises(ValueError, match=name):
        load_official(official_tensors(model), tensors)
