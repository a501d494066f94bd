"""The two halves of a layer of the deepseek_v41 trainer, each inside hyper-connections.

Legend: B sequences, T rows, N streams, D hidden width, C table columns, E experts. A half reads
the streams by the weights that the half before it made.
"""

import torch
from torch import Tensor, nn

from tensorfold.families.dsv41.config import Config
from tensorfold.tools.tiny.dsv41.attention import Attention, Memory, Turn
from tensorfold.tools.tiny.dsv41.parts import Engram, Moe, Norm
from tensorfold.tools.tiny.hyper import Hyper, collapse, write

# A `Memory` outside of compiled functions: not every version of the compiler can give one out.
Handed = tuple[Tensor, Tensor, Tensor | None, Tensor | None]


def hyper_of(config: Config) -> Hyper:
    return Hyper(
        streams=config.streams,
        hidden=config.hidden_size,
        sinkhorn=config.sinkhorn,
        hc_eps=config.hc_eps,
        eps=config.norm_eps,
    )


def begin(config: Config, embedded: Tensor) -> tuple[Tensor, Tensor]:
    """[.., D] to the first streams [.., N, D] and the weights by which they are read first."""
    streams = embedded[..., None, :].expand(*embedded.shape[:-1], config.streams, -1).contiguous()
    first = torch.arange(config.streams, device=embedded.device) == 0
    return streams, first.float().expand(streams.shape[:-1]).contiguous()


class AttentionHalf(nn.Module):
    """A layer's attention inside hyper-connections, and its Engram before it."""

    def __init__(self, config: Config, layer: int) -> None:
        super().__init__()
        own = config.engram
        self.engram = Engram(config, layer) if own and layer in own.layers else None
        self.hyper, self.norm = hyper_of(config), Norm(config.hidden_size, config.norm_eps)
        index = layer in config.index_sources
        self.attn = Attention(
            config,
            ratio=config.ratios[layer],
            source=layer in config.kv_sources,
            index=index,
            publishes=index and layer == config.candidate_source,
            restricted=index and layer > config.candidate_source,
        )

    def forward(
        self,
        streams_BTND: Tensor,
        pre_BTN: Tensor,
        turn: Turn,
        given: Handed | None,
        row_BTC: Tensor | None,
    ) -> tuple[Tensor, Tensor, Handed | None, Tensor | None, Tensor]:
        """Streams, the next reading weights, memory, the index's loss, and what a tap reads."""
        memory = None if given is None else Memory(given[0], given[1], given[2], given[3])
        if self.engram is not None:
            streams_BTND = self.engram(streams_BTND, row_BTC)
        with torch.autocast(streams_BTND.device.type, enabled=False):
            pre, post, mix = self.hyper.mixes(streams_BTND)
            x = self.norm(collapse(streams_BTND, pre_BTN))
        tap = streams_BTND.mean(-2)
        y, memory, ranking = self.attn(x, turn, memory)
        handed: Handed | None = None
        if memory is not None:
            handed = (
                memory.latent_BJC, memory.key_BJI, memory.chosen_BTJ, memory.allowed_BTJ
            )  # fmt: skip
        return write(y, streams_BTND, post, mix), pre, handed, ranking, tap


class MoeHalf(nn.Module):
    def __init__(self, config: Config, experts: int, top: int) -> None:
        super().__init__()
        self.hyper, self.norm = hyper_of(config), Norm(config.hidden_size, config.norm_eps)
        self.ffn = Moe(config, experts, top)

    def forward(self, streams_BTND: Tensor, pre_BTN: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with torch.autocast(streams_BTND.device.type, enabled=False):
            pre, post, mix = self.hyper.mixes(streams_BTND)
            x = self.norm(collapse(streams_BTND, pre_BTN))
        y, load = self.ffn(x)
        return write(y, streams_BTND, post, mix), pre, load
