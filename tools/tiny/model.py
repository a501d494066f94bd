"""The differentiable glm5_next text model, its MTP layer, and its official tensor names.

Legend: B sequences, T rows, N streams, D hidden width, V vocabulary.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tensorfold.tools.tiny.dsa import Dsa
from tensorfold.tools.tiny.experts import Mlp, Moe
from tensorfold.tools.tiny.hyper import Hyper, start_streams, write
from tensorfold.tools.tiny.kda import Kda, Taps
from tensorfold.tools.tiny.shape import Shape

PREFIX = "model.language_model."


class Aside(NamedTuple):
    """What a layer tells besides its output; None where its kind has no such part."""

    ranking_loss: Tensor | None
    load_E: Tensor | None
    chosen_BTP: Tensor | None


class Layer(nn.Module):
    def __init__(self, shape: Shape, index: int) -> None:
        super().__init__()
        self.linear, self.dense = shape.linear[index], shape.dense[index]
        self.input_layernorm = nn.RMSNorm(shape.hidden, eps=shape.eps)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden, eps=shape.eps)
        sizes = {"streams": shape.streams, "hidden": shape.hidden, "sinkhorn": shape.sinkhorn}
        hypers = (Hyper(**sizes, hc_eps=shape.hc_eps, eps=shape.eps) for _ in range(2))
        self.hc_attn, self.hc_ffn = hypers
        self.self_attn = Kda(shape) if self.linear else Dsa(shape)
        self.mlp = Mlp(shape.hidden, shape.inner, shape.limit) if self.dense else Moe(shape)

    def forward(self, streams_BTND: Tensor) -> tuple[Tensor, Aside]:
        with torch.autocast(streams_BTND.device.type, enabled=False):
            x, post, mix = self.hc_attn.read(streams_BTND)
        x = self.input_layernorm(x)
        ranking = load = chosen = None
        if self.linear:
            y = self.self_attn(x)
        else:
            y, ranking, chosen = self.self_attn(x)
        streams_BTND = write(y, streams_BTND, post, mix)
        with torch.autocast(streams_BTND.device.type, enabled=False):
            x, post, mix = self.hc_ffn.read(streams_BTND)
        x = self.post_attention_layernorm(x)
        if self.dense:
            y = self.mlp(x)
        else:
            y, load = self.mlp(x)
        return write(y, streams_BTND, post, mix), Aside(ranking, load, chosen)


class SharedHead(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(shape.hidden, eps=shape.eps)


class Mtp(nn.Module):
    """The layer that drafts: from row i's hidden and token i + 1, what predicts token i + 2."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        hidden, eps = shape.hidden, shape.eps
        self.enorm, self.hnorm = nn.RMSNorm(hidden, eps=eps), nn.RMSNorm(hidden, eps=eps)
        self.eh_proj = nn.Linear(2 * hidden, hidden, bias=False)
        self.input_layernorm = nn.RMSNorm(hidden, eps=eps)
        self.post_attention_layernorm = nn.RMSNorm(hidden, eps=eps)
        self.self_attn = Dsa(shape)
        self.mlp = Moe(shape)
        self.shared_head = SharedHead(shape)

    def forward(self, next_BTD: Tensor, hidden_BTD: Tensor) -> tuple[Tensor, Aside]:
        x = self.eh_proj(torch.cat([self.enorm(next_BTD), self.hnorm(hidden_BTD)], -1))
        y, ranking, chosen = self.self_attn(self.input_layernorm(x))
        x = x.float() + y
        y, load = self.mlp(self.post_attention_layernorm(x))
        return self.shared_head.norm(x + y), Aside(ranking, load, chosen)


class Model(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab, shape.hidden)
        layers: list[nn.Module] = [Layer(shape, index) for index in range(len(shape.linear))]
        self.layers = nn.ModuleList([*layers, Mtp(shape)])
        self.norm = nn.RMSNorm(shape.hidden, eps=shape.eps)
        self.lm_head = nn.Linear(shape.hidden, shape.vocab, bias=False)

    def forward(self, ids_BT: Tensor) -> tuple[Tensor, list[Aside]]:
        """Final-normed hidden rows [B, T, D]; logits are `lm_head` of them."""
        embedded = self.embed_tokens(ids_BT).float()
        streams = embedded[:, :, None].expand(-1, -1, self.shape.streams, -1).contiguous()
        asides = []
        for layer in self.layers[:-1]:
            streams, aside = layer(streams)
            asides.append(aside)
        return self.norm(streams.mean(2)), asides

    def draft(self, next_BT: Tensor, hidden_BTD: Tensor) -> tuple[Tensor, Aside]:
        """MTP rows [B, T, D] from tokens i + 1 and final-normed hidden rows i.

        Row 0's token counts as a zero embedding.
        """
        embedded = self.embed_tokens(next_BT).float()
        embedded = F.pad(embedded[:, 1:], (0, 0, 1, 0))
        return self.layers[-1](embedded, hidden_BTD)


def loss_of(hidden_BTD: Tensor, head_VD: Tensor, target_BT: Tensor, weight_BT: Tensor) -> Tensor:
    """The weighted mean cross-entropy of the next tokens, in nats."""
    logits = F.linear(hidden_BTD, head_VD).float()
    each = F.cross_entropy(logits.flatten(0, 1), target_BT.flatten(), reduction="none")
    return (each * weight_BT.flatten()).sum() / weight_BT.sum()


def start_weights(model: Model, generator: torch.Generator) -> None:
    """First weights: scaled normal matrices, half-layers' outputs small, streams told apart."""

    def normal(weight: Tensor, std: float) -> None:
        weight.copy_(torch.randn(weight.shape, generator=generator) * std)

    shape = model.shape
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            last = name.rsplit(".", 1)[-1]
            if name.endswith("k_norm.bias") or last in ("A_log", "index_kpool_compress_ape"):
                weight.zero_()
            elif "norm" in name:
                weight.fill_(1.0)
            elif "embed_tokens" in name:
                normal(weight, 0.5)
            elif "lm_head" in name:
                normal(weight, 0.5 / math.sqrt(shape.hidden))
            elif last == "dt_bias":
                # Channels forget over 2 to 1,000 rows, evenly on a logarithmic scale.
                span = torch.rand(weight.shape, generator=generator)
                share = 1 / (-shape.bound * torch.exp(span * math.log(500.0) + math.log(2.0)))
                weight.copy_(torch.logit(share))
            elif last in ("fn", "base", "scale"):
                continue
            elif weight.dim() >= 2 and "conv1d" not in name:
                small = 0.3 if "o_proj" in name or "down" in name else 1.0
                normal(weight, small / math.sqrt(weight.shape[-1]))
        for index, layer in enumerate(model.layers[:-1]):
            for half, hyper in enumerate((layer.hc_attn, layer.hc_ffn)):
                start_streams(hyper, 2 * index + half, shape.streams)
                normal(hyper.fn, 1 / math.sqrt(hyper.fn.shape[-1]))
            if layer.linear:
                for taps in (m for m in layer.modules() if isinstance(m, Taps)):
                    normal(taps.weight, 0.1)
                    taps.weight[:, :, -1] += 1.0


def official_tensors(model: Model) -> dict[str, Tensor]:
    """Every tensor under its official name; experts one by one."""
    out = {}
    for name, value in model.state_dict().items():
        name = name.replace("hc_attn.", "hc_attn_").replace("hc_ffn.", "hc_ffn_")
        name = name if name.startswith("lm_head") else PREFIX + name
        before, found, part = name.partition(".mlp.experts.")
        if found:
            for index, expert in enumerate(value):
                out[f"{before}.mlp.experts.{index}.{part}_proj.weight"] = expert
        else:
            out[name] = value
    return out


def load_official(model: Model, tensors: dict[str, Tensor]) -> None:
    """Copy official tensors in; a missing, left-over or misshapen one is a ValueError."""
    targets = official_tensors(model)
    if targets.keys() != tensors.keys():
        odd = sorted(targets.keys() ^ tensors.keys())
        raise ValueError(f"{len(odd)} tensors missing or left over, first {odd[0]}")
    with torch.no_grad():
        for name, target in targets.items():
            if target.shape != tensors[name].shape:
                raise ValueError(f"{name} is {tuple(tensors[name].shape)}, not {target.shape}")
            target.copy_(tensors[name])
