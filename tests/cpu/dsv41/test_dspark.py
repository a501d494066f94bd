"""The drafter against a second one, written as plainly as can be: float64, one row at a time."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tensorfold.core.engine import batch
from tensorfold.core.engine.batch import Run
from tensorfold.core.engine.state import Seat, Storage, allocate
from tensorfold.core.engine.torch_engine import TorchEngine
from tensorfold.core.ops.rounding import fp8_round
from tensorfold.families.dsv41 import names
from tensorfold.families.dsv41.config import Config, read
from tensorfold.families.dsv41.draft import Block, Dspark, highest
from tensorfold.families.dsv41.model import Dsv41
from tensorfold.families.dsv41.plugin import FAMILY
from tests.cpu.driving import some_tokens
from tests.cpu.dsv41.engines import CKPT, MODES, opened

DRAFTING = {
    "num_nextn_predict_layers": 3,
    "dspark_block_size": 5,
    "dspark_noise_token_id": 3,
    "dspark_target_layer_ids": [4, 5, 6],
    "dspark_markov_rank": 16,
    "dspark_n_routed_experts": 4,
    "dspark_num_experts_per_tok": 2,
    "compress_ratios": [0, 0, 2, 2, 1, 1, 1, 0, 0, 0],
}
CONTEXT = 128


def drafting_checkpoint(folder: Path) -> Path:
    """The golden model with a drafter of random weights."""
    raw = json.loads((CKPT / "config.json").read_text())
    raw["text_config"] |= DRAFTING
    (folder / "config.json").write_text(json.dumps(raw))
    for shipped in ("engram_token_map.json",):
        (folder / shipped).write_text((CKPT / shipped).read_text())
    tensors = load_file(CKPT / "model.safetensors")
    generator = torch.Generator().manual_seed(11)
    for spec in names.tensors(read(raw)):
        if not spec.name.startswith("mtp."):
            continue
        drawn = torch.randn(spec.shape, generator=generator)
        if len(spec.shape) == 2:
            drawn = drawn * spec.shape[1] ** -0.5
        elif spec.name.endswith(("norm.weight", "scale")):
            drawn = 1 + 0.1 * drawn
        else:
            drawn = 0.3 * drawn
        tensors[spec.name] = drawn
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module", params=MODES)
def drafting(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> TorchEngine:
    return opened(request.param, drafting_checkpoint(tmp_path_factory.mktemp("drafting")))


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A drafter with storage of its own."""

    drafter: Dspark
    storage: Storage

    def take_in(self, seat: Seat, taps: Tensor, start: int, *, prompt: bool = True) -> None:
        run = Run([0] * len(taps), seat.lane, start)
        rows = batch.build([run], self.storage, prompt=prompt, tile=4, context=CONTEXT)
        padded = torch.zeros(len(rows.ids_R), taps.shape[1])
        padded[: len(taps)] = taps
        self.drafter.take_in(rows, padded)

    def propose(self, blocks: Sequence[tuple[Seat, int, int]]) -> Block:
        """Of (seat, pending token, position of its row)."""
        runs = [
            Run(self.drafter.tokens(torch.tensor([token]))[0].tolist(), seat.lane, at)
            for seat, token, at in blocks
        ]
        rows = batch.build(runs, self.storage, prompt=False, tile=4, context=CONTEXT)
        return self.drafter.draft(rows)


@pytest.fixture
def bench(drafting: TorchEngine) -> Bench:
    model = drafting.model
    assert isinstance(model, Dsv41)
    spec = FAMILY.state_spec(model.config, window_rows=6, drafts=True)
    storage = allocate(spec, lanes=4, context=CONTEXT, kept_bytes=0, device=torch.device("cpu"))
    drafter = Dspark(model.config, model.weights, model.ops, storage.buffers)
    return Bench(drafter=drafter, storage=storage)


def some_taps(count: int, seed: int) -> Tensor:
    return torch.randn(count, 3 * 128, generator=torch.Generator().manual_seed(seed))


# -- the second drafter --------------------------------------------------------------------------


class Twin:
    def __init__(self, folder: Path, config: Config) -> None:
        stored = load_file(folder / "model.safetensors")
        self.w = {name: tensor.double() for name, tensor in stored.items()}
        self.config = config

    def narrow(self, x: Tensor) -> Tensor:
        return fp8_round(x) if self.config.faithful else x

    def norm(self, x: Tensor, name: str | None = None) -> Tensor:
        normed = x / torch.sqrt((x * x).mean() + 1e-20)
        return normed if name is None else normed * self.w[name]

    def turned(self, x: Tensor, position: int, sign: float = 1.0) -> Tensor:
        x = x.clone()
        first = len(x) - 32
        for pair in range(16):
            angle = position * 10000.0 ** (-2 * pair / 32)
            cos, sin = math.cos(angle), sign * math.sin(angle)
            a, b = float(x[first + 2 * pair]), float(x[first + 2 * pair + 1])
            x[first + 2 * pair] = a * cos - b * sin
            x[first + 2 * pair + 1] = a * sin + b * cos
        return x

    def kept(self, taps: Tensor, position: int, stage: int) -> Tensor:
        """A stage's row for a position of the main model."""
        main = self.norm(
            self.w["mtp.0.main_proj.weight"] @ self.narrow(taps.double()), "mtp.0.main_norm.weight"
        )
        where = f"mtp.{stage}.attn."
        kv = self.norm(self.w[where + "wkv.weight"] @ self.narrow(main), where + "kv_norm.weight")
        return self.narrow(self.turned(kv, position))

    def mixes(self, streams: Tensor, where: str) -> tuple[Tensor, Tensor, Tensor]:
        flat = streams.flatten()
        z = self.w[where + "_fn"] @ (flat / torch.sqrt((flat * flat).mean() + 1e-20))
        scale, base = self.w[where + "_scale"], self.w[where + "_base"]
        pre = torch.sigmoid(z[:4] * scale[0] + base[:4]) + 1e-6
        post = 2 * torch.sigmoid(z[4:8] * scale[1] + base[4:8])
        comb = torch.softmax((z[8:] * scale[2] + base[8:]).view(4, 4), -1) + 1e-6
        comb = comb / (comb.sum(0) + 1e-6)
        for _ in range(19):
            comb = comb / (comb.sum(1)[:, None] + 1e-6)
            comb = comb / (comb.sum(0) + 1e-6)
        return pre, post, comb

    def swiglu(self, x: Tensor, where: str, weight: float) -> Tensor:
        limit, x = self.config.swiglu_limit, self.narrow(x)
        gate = (self.w[where + ".w1.weight"] @ x).clamp(max=limit)
        up = (self.w[where + ".w3.weight"] @ x).clamp(-limit, limit)
        hidden = weight * torch.nn.functional.silu(gate) * up
        return self.w[where + ".w2.weight"] @ self.narrow(hidden)

    def moe(self, x: Tensor, where: str) -> Tensor:
        logits = self.w[where + ".gate.weight"] @ x
        chances = torch.sqrt(torch.nn.functional.softplus(logits))
        biased = (chances + self.w[where + ".gate.bias"]).tolist()
        chosen = sorted(range(len(biased)), key=lambda expert: (-biased[expert], expert))[:2]
        total = sum(float(chances[expert]) for expert in chosen)
        out = self.swiglu(x, where + ".shared_experts", 1.0)
        for expert in chosen:
            weight = float(chances[expert]) / total * 1.5
            out = out + self.swiglu(x, f"{where}.experts.{expert}", weight)
        return out

    def attention(
        self, rows: list[Tensor], context: list[Tensor], start: int, where: str
    ) -> list[Tensor]:
        keys = list(context)
        for place, x in enumerate(rows):
            kv = self.w[where + "wkv.weight"] @ self.narrow(x)
            kv = self.norm(kv, where + "kv_norm.weight")
            keys.append(self.narrow(self.turned(kv, start + place)))
        key = torch.stack(keys)
        found = []
        for place, x in enumerate(rows):
            down = self.w[where + "wq_a.weight"] @ self.narrow(x)
            down = self.narrow(self.norm(down, where + "q_norm.weight"))
            q = (self.w[where + "wq_b.weight"] @ down).view(4, 64)
            heads = []
            for head in range(4):
                scores = key @ self.turned(q[head], start + place) * 64**-0.5
                raised = torch.exp(scores)
                total = raised.sum() + torch.exp(self.w[where + "attn_sink"][head])
                heads.append(self.turned(raised @ key / total, start + place, -1.0))
            joined = torch.cat(heads).view(2, 128)
            down_2 = self.w[where + "wo_a.weight"].view(2, 32, 128)
            z = torch.cat([down_2[group] @ joined[group] for group in range(2)])
            found.append(self.w[where + "wo_b.weight"] @ self.narrow(z))
        return found

    def propose(
        self, taps: Tensor, pending: int, position: int
    ) -> tuple[list[int], Tensor, list[float]]:
        streams = [
            self.w["embed.weight"][token].expand(4, -1).clone() for token in [pending, 3, 3, 3, 3]
        ]
        pre = [torch.tensor([1.0, 0, 0, 0], dtype=torch.float64)] * 5
        for stage in range(3):
            where = f"mtp.{stage}."
            first = max(0, position - self.config.window)
            context = [self.kept(taps[p], p, stage) for p in range(first, position)]
            for which in ("attn", "ffn"):
                mixed = [self.mixes(x, f"{where}hc_{which}") for x in streams]
                rows = [
                    self.norm(weights @ x, f"{where}{which}_norm.weight")
                    for weights, x in zip(pre, streams, strict=True)
                ]
                if which == "attn":
                    out = self.attention(rows, context, position, where + "attn.")
                else:
                    out = [self.moe(x, where + "ffn") for x in rows]
                streams = [
                    post[:, None] * y + comb.T @ x
                    for x, y, (_, post, comb) in zip(streams, out, mixed, strict=True)
                ]
                pre = [weights for weights, _, _ in mixed]
        before, tokens, logits, confidence = pending, [], [], []
        for weights, x in zip(pre, streams, strict=True):
            hidden = weights @ x
            word = self.w["mtp.2.markov_head.embed.weight"][before]
            row = self.w["head.weight"] @ self.norm(hidden, "mtp.2.norm.weight")
            row = row + self.w["mtp.2.markov_head.head.weight"] @ word
            before = int(row.argmax())
            tokens.append(before)
            logits.append(row)
            joined = torch.cat([hidden, word])
            confidence.append(float(self.w["mtp.2.confidence_head.proj.weight"][0] @ joined))
        return tokens, torch.stack(logits), confidence


@pytest.mark.parametrize("position", [1, 3, 7, 8, 9, 20, 61])
@torch.inference_mode()
def test_the_drafter_agrees_with_one_written_a_second_time(
    drafting: TorchEngine, bench: Bench, position: int, tmp_path: Path
) -> None:
    twin = Twin(drafting_checkpoint(tmp_path), bench.drafter.config)
    taps = some_taps(position, seed=position)
    seat = bench.storage.claim(CONTEXT)
    bench.take_in(seat, taps, 0)
    proposal = bench.propose([(seat, 17, position)])
    tokens, logits, confidence = twin.propose(taps, 17, position)
    assert proposal.tokens_BK[0].tolist() == tokens
    assert float((proposal.logits_BKV[0].double() - logits).abs().max()) < 5e-5
    assert proposal.confidence_BK[0].tolist() == pytest.approx(confidence, abs=5e-5)


@torch.inference_mode()
def test_a_streams_drafts_do_not_depend_on_company_cuts_or_rejected_rows(bench: Bench) -> None:
    lengths = (1, 9, 30)
    taps = [some_taps(length, seed=length) for length in lengths]
    alone = []
    for length, own in zip(lengths, taps, strict=True):
        seat = bench.storage.claim(CONTEXT)
        bench.take_in(seat, own, 0)
        alone.append(bench.propose([(seat, length, length)]))
        bench.storage.release(seat)
    seats = [bench.storage.claim(CONTEXT) for _ in lengths]
    for seat, own, length in zip(seats, taps, lengths, strict=True):
        first = length // 3
        if first:
            bench.take_in(seat, own[:first], 0)
        bench.take_in(seat, own[first : first + 1], first, prompt=False)
        # Rows past the ones that count: a verified window that was cut back.
        bench.take_in(seat, torch.cat([own[first + 1 :], some_taps(5, seed=99)]), first + 1)
    blocks = list(zip(seats, lengths, lengths, strict=True))
    crowd = bench.propose(blocks)
    for who, wanted in enumerate(alone):
        assert torch.equal(crowd.tokens_BK[who], wanted.tokens_BK[0])
        assert torch.equal(crowd.logits_BKV[who], wanted.logits_BKV[0])
        assert torch.equal(crowd.confidence_BK[who], wanted.confidence_BK[0])
    swapped = bench.propose(blocks[::-1])
    assert torch.equal(swapped.logits_BKV.flip(0), crowd.logits_BKV)


@torch.inference_mode()
def test_the_taps_are_the_means_of_what_enters_the_tapped_layers(drafting: TorchEngine) -> None:
    model = drafting.model
    assert isinstance(model, Dsv41)
    entering = []
    attention = model.kinds.attention

    def looking(*args: object) -> object:
        entering.append(args[-1].x_RND)  # type: ignore[attr-defined]
        return attention(*args)

    model.kinds = model.kinds._replace(attention=looking)  # type: ignore[arg-type]
    seat = drafting.storage.claim(40)
    run = Run(some_tokens(40), seat.lane, 0)
    rows = batch.build([run], drafting.storage, prompt=True, tile=4, context=CONTEXT)
    model.prompt(rows)
    model.kinds = model.kinds._replace(attention=attention)
    drafting.storage.release(seat)
    assert len(entering) == 7
    assert model.taps is not None
    wanted = torch.cat([entering[layer].mean(1) for layer in (4, 5, 6)], -1)
    assert torch.allclose(model.taps, wanted, rtol=1e-6, atol=1e-6)


def test_equal_logits_draft_the_lowest_id() -> None:
    logits = torch.tensor([[0.0, 2.0, 2.0], [1.0, 1.0, 1.0]])
    assert highest(0, logits).tolist() == [1, 0]
