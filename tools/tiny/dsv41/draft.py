"""The DSpark drafter, differentiable: blocks of drafts after chosen anchors (spec dsv41 2.9).

Legend: B sequences, T rows, A anchors a sequence, R = B * A blocks, K rows of a block, W context
rows, D hidden width, C head width, V vocabulary, P rotary pairs. An anchor is the position of a
block's first row; it sees the W rows before it.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tensorfold.families.dsv41.config import Config
from tensorfold.tools.tiny.dsv41.attention import FAR, Attention
from tensorfold.tools.tiny.dsv41.halves import MoeHalf, begin, hyper_of
from tensorfold.tools.tiny.dsv41.parts import Norm, linear, turns
from tensorfold.tools.tiny.hyper import collapse, write


class Stage(nn.Module):
    """One stage's attention half; its experts are a `MoeHalf`."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.scale = config.head_size**-0.5
        self.hyper, self.norm = hyper_of(config), Norm(config.hidden_size, config.norm_eps)
        self.attn = Attention(config, ratio=0)

    def forward(
        self,
        streams_RKND: Tensor,
        pre_RKN: Tensor,
        context_RWC: Tensor,
        open_RW: Tensor,
        cos_RKP: Tensor,
        sin_RKP: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Every row sees the open context rows and all rows of its block."""
        with torch.autocast(streams_RKND.device.type, enabled=False):
            pre, post, mix = self.hyper.mixes(streams_RKND)
            x = self.norm(collapse(streams_RKND, pre_RKN))
        _, q = self.attn.queries(x, cos_RKP, sin_RKP)
        own = self.attn.rows(x, cos_RKP, sin_RKP)
        key = torch.cat([context_RWC.to(own.dtype), own], 1)
        logits = (q * self.scale).flatten(1, 2) @ key.transpose(1, 2)
        logits = logits.unflatten(1, q.shape[1:3]).float()
        seen = F.pad(open_RW, (0, own.shape[1]), value=True)
        logits = torch.where(seen[:, None, None], logits, FAR)
        total = torch.logaddexp(logits.logsumexp(-1), self.attn.attn_sink.float())
        share = (logits - total[..., None]).exp()
        out = (share.flatten(1, 2) @ key).unflatten(1, q.shape[1:3])
        y = self.attn.output(out, cos_RKP, sin_RKP)
        return write(y, streams_RKND, post, mix), pre


class Drafted(NamedTuple):
    """Logits [R, K, V] and raw confidence [R, K], each given the block's tokens before it."""

    logits_RKV: Tensor
    confidence_RK: Tensor


class Dspark(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        own = config.drafting
        assert own is not None
        self.config, self.own = config, own
        hidden = config.hidden_size
        self.main_proj = linear(len(own.taps) * hidden, hidden)
        self.main_norm = Norm(hidden, config.norm_eps)
        self.stages = nn.ModuleList([Stage(config) for _ in range(own.stages)])
        self.experts = nn.ModuleList(
            [MoeHalf(config, own.experts, own.experts_per_token) for _ in range(own.stages)]
        )
        self.norm = Norm(hidden, config.norm_eps)
        self.markov_embed = nn.Embedding(config.vocab_size, own.rank)
        self.markov_head = linear(own.rank, config.vocab_size)
        self.confidence = linear(hidden + own.rank, 1)

    def hidden(
        self, taps_BTE: Tensor, embedded_RKD: Tensor, anchor_BA: Tensor, rate_P: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        """A block's rows after the stages [R, K, D], before the norm, and the experts' loads.

        embedded_RKD: the pending token's and the noise's embedding.
        """
        num_T, wide = taps_BTE.shape[1], self.config.window
        main = self.main_norm(self.main_proj(taps_BTE))
        cos_TP, sin_TP = turns(torch.arange(num_T, device=main.device), rate_P)
        anchor_R1 = anchor_BA.flatten()[:, None]
        place_RK = anchor_R1 + torch.arange(self.own.block, device=main.device)
        cos_RKP, sin_RKP = turns(place_RK, rate_P)
        before_RW = anchor_R1 + torch.arange(-wide, 0, device=main.device)
        open_RW = before_RW >= 0
        sequence = torch.arange(anchor_BA.shape[0], device=main.device)
        sequence_R1 = sequence.repeat_interleave(anchor_BA.shape[1])[:, None]
        from_RW = sequence_R1 * num_T + before_RW.clamp(min=0)
        streams, pre = begin(self.config, embedded_RKD)
        loads = []
        for stage, experts in zip(self.stages, self.experts, strict=True):
            row_BTC = stage.attn.rows(main, cos_TP, sin_TP)
            context = row_BTC.flatten(0, 1).index_select(0, from_RW.flatten())
            context_RWC = context.view(*from_RW.shape, -1)
            streams, pre = stage(streams, pre, context_RWC, open_RW, cos_RKP, sin_RKP)
            streams, pre, load = experts(streams, pre)
            loads.append(load)
        return collapse(streams, pre), loads

    def forward(self, hidden_RKD: Tensor, before_RK: Tensor, head_VD: Tensor) -> Drafted:
        """before_RK: the token before each draft, the pending one first."""
        word = self.markov_embed(before_RK)
        logits = F.linear(self.norm(hidden_RKD), head_VD).float() + self.markov_head(word).float()
        joined = torch.cat([hidden_RKD.detach(), word.detach().to(hidden_RKD.dtype)], -1)
        return Drafted(logits, self.confidence(joined)[..., 0].float())
