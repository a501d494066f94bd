"""The deepseek_v41 line: its tokens, its plans and its model as the trainer drives it."""

import argparse
import random
import re
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from tensorfold.families.dsv41 import config as configs
from tensorfold.families.dsv41.chat import CHAT
from tensorfold.tools.tiny.dsv41.draft import Drafted
from tensorfold.tools.tiny.dsv41.model import Model, Ran, official_tensors, start_weights
from tensorfold.tools.tiny.dsv41.shape import tiny_config
from tensorfold.tools.tiny.lines import Calls, Line, Losses
from tensorfold.tools.tiny.tokens import Words
from tensorfold.tools.tiny.training import Plan, Stage

BEGIN, END = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
WORDS = Words(
    control=(BEGIN, END, "<｜▁pad▁｜>", "<｜System｜>", "<｜User｜>", "<｜Assistant｜>"),
    markup=("<think>", "</think>", "｜DSML｜", "<tool_result>", "</tool_result>"),
    ends=(END,),
    assistant="<｜Assistant｜>",
    others=(BEGIN, "<｜System｜>", "<｜User｜>"),
    pad="<｜▁pad▁｜>",
    begin=BEGIN,
)
# The token of the real release that stands for a draft not yet known.
NOISE = "<｜System｜>"
ANCHORS = 64  # blocks drafted in a row of 512
DECAY = 0.8  # of a draft's weight in the loss, with every draft before it
CONFIDENCE_WEIGHT = 0.1
OFF_SHARE = 0.5  # of chats without reasoning, those in which it is switched off
ABOUT = """A tiny model of DeepSeek-V4.1-Flash's architecture, trained from nothing for this
repository: windowed attention with compressed rows at ratios of 2 and 1, an index with candidate
blocks, n-gram tables (Engram), hyper-connections with their delay, routed experts and a DSpark
drafter, with a tokenizer of its own."""


def loss_of(hidden_BTD: Tensor, head_VD: Tensor, target_BT: Tensor, weight_BT: Tensor) -> Tensor:
    """The weighted mean cross-entropy of the next tokens, in nats."""
    logits = F.linear(hidden_BTD, head_VD).float()
    each = F.cross_entropy(logits.flatten(0, 1), target_BT.flatten(), reduction="none")
    return (each * weight_BT.flatten()).sum() / weight_BT.sum()


class Wanted(NamedTuple):
    """Of blocks: the tokens before each draft, the model's own choices, and how a draft counts:
    where all before it are the model's own, and there less for every one of them."""

    before_RK: Tensor
    own_RK: Tensor
    counts_RK: Tensor
    weight_RK: Tensor


def wanted(
    ids_BT: Tensor, own_BT: Tensor, weights_BT: Tensor, anchor_BA: Tensor, block: int
) -> Wanted:
    """own_BT are the model's choices of the token after each."""
    place = anchor_BA[..., None] + torch.arange(block, device=ids_BT.device)
    flat = place.flatten(1)
    shape = (-1, block)
    before = ids_BT.gather(1, flat).view(shape)
    own = own_BT.gather(1, flat).view(shape)
    follows = ids_BT.gather(1, flat + 1).view(shape) == own
    counts = F.pad(follows[:, :-1].float().cumprod(-1), (1, 0), value=1.0)
    decay = DECAY ** torch.arange(block, device=ids_BT.device)
    weight = weights_BT.gather(1, flat + 1).view(shape) * counts * decay
    return Wanted(before, own, counts, weight)


def draft_loss(drafted: Drafted, want: Wanted) -> tuple[Tensor, Tensor, Tensor]:
    """The drafts' loss and their confidence's, in nats, and the mean of accepted drafts a block."""
    logits = drafted.logits_RKV
    each = F.cross_entropy(logits.flatten(0, 1), want.own_RK.flatten(), reduction="none")
    main = (each.view_as(want.weight_RK) * want.weight_RK).sum() / want.weight_RK.sum()
    right = (logits.argmax(-1) == want.own_RK).float()
    sure = F.binary_cross_entropy_with_logits(drafted.confidence_RK, right, reduction="none")
    sure = (sure * want.counts_RK).sum() / want.counts_RK.sum()
    accepted = (right * want.counts_RK).cumprod(-1).sum(-1)
    reply = want.weight_RK[:, 0] >= 1
    return main, sure, (accepted * reply).sum() / reply.sum().clamp(min=1)


class Trainee:
    """A `lines.Trainee`."""

    def __init__(self, config: dict[str, Any], folder: Path) -> None:
        self.model = Model(configs.read(config), folder)
        self.compiled: list[Any] = [loss_of, draft_loss]

    def start(self, seed: int) -> None:
        start_weights(self.model, torch.Generator().manual_seed(seed))

    def learners(self, part: str) -> list[tuple[str, nn.Parameter]]:
        return [
            (name, weight)
            for name, weight in self.model.named_parameters()
            if part == "all" or name.startswith("drafter.") == (part == "drafts")
        ]

    def losses(self, ids: Tensor, weights: Tensor, part: str, *, compiled: bool) -> Losses:
        """`part` "drafts" trains on the choices of the model as it stands."""
        model, main_loss, block_loss = self.model, loss_of, draft_loss
        if compiled:
            main_loss, block_loss = self.compiled
        model.train()
        num_T = ids.shape[1] - 2
        ran = model(ids[:, :num_T])
        head = model.head.weight
        main = draft = ran.hidden_BTD.new_zeros(())
        loads: list[Tensor | None] = list(ran.loads) if part != "drafts" else []
        notes = {}
        if part != "drafts":
            main = main_loss(ran.hidden_BTD, head, ids[:, 1 : num_T + 1], weights[:, 1 : num_T + 1])
        if part != "main":
            want, drafted, found = self.blocks(ran, ids, weights)
            draft, sure, accepted = block_loss(drafted, want)
            draft = draft + CONFIDENCE_WEIGHT * sure
            notes = {"sure": sure.detach(), "accepted": accepted.detach()}
            loads = [*(loads or [None] * model.config.layers), *found]
        else:
            loads += [None] * len(model.drafter.experts)
        return Losses(main, draft, ran.ranking, loads, notes)

    def blocks(
        self, ran: Ran, ids: Tensor, weights: Tensor
    ) -> tuple[Wanted, Drafted, list[Tensor]]:
        """Blocks at anchors drawn by the weight of the token that their first draft stands for."""
        model, num_T = self.model, ran.hidden_BTD.shape[1]
        assert model.drafter is not None
        head, block = model.head.weight.detach(), model.drafter.own.block
        with torch.no_grad():
            own = torch.cat([F.linear(rows, head).argmax(-1) for rows in ran.hidden_BTD.split(32)])
            drawn = weights[:, 2 : num_T - block + 2].float()
            anchor = 1 + torch.multinomial(drawn, min(ANCHORS * num_T // 512, drawn.shape[1]))
        want = wanted(ids[:, : num_T + 1], own, weights, anchor, block)
        hidden, loads = model.blocks(ids, ran.taps_BTE.detach(), anchor)
        return want, model.drafter(hidden, want.before_RK, head), loads

    @torch.no_grad()
    def balance(self, losses: Losses, speed: float) -> None:
        halves = [*self.model.experts, *self.model.drafter.experts]
        for half, load_E in zip(halves, losses.loads_E, strict=True):
            if load_E is not None:
                half.ffn.gate.bias += speed * torch.sign(1 / len(load_E) - load_E)

    def set_compiled(self, on: bool) -> None:
        torch._dynamo.config.recompile_limit = 64
        if on:
            self.compiled = [torch.compile(f, dynamic=False) for f in (loss_of, draft_loss)]
        model = self.model
        halves = [*model.attentions, *model.experts, *model.drafter.stages, *model.drafter.experts]
        for half in halves:
            if on:
                half.compile(dynamic=False)
            else:
                half._compiled_call_impl = None

    def official(self) -> dict[str, Tensor]:
        return official_tensors(self.model)

    def hidden(self, ids_BT: Tensor) -> Tensor:
        self.model.eval()
        return self.model(ids_BT).hidden_BTD

    def logits(self, hidden: Tensor) -> Tensor:
        return self.model.head(hidden)

    @torch.no_grad()
    def dropped(self, ids: list[int]) -> dict[int, float]:
        self.model.eval()
        ran = self.model(torch.tensor([ids], device=self.model.norm.weight.device))
        found = {}
        for layer, memory in ran.memories.items():
            assert memory.chosen_BTJ is not None
            read = int(memory.chosen_BTJ[0, -1].sum())
            found[layer] = 1 - read / (len(ids) // self.model.config.ratios[layer])
        return found

    def draft_agreement(self, ids: list[int]) -> None:
        """Blocks are judged beside replies."""


def plans(options: argparse.Namespace) -> list[Plan]:
    """The main model, at rows of 512 and then longer ones; then the drafter, on what it says."""
    near = options.batch // 512
    far = options.far_rows
    main = (
        Stage(rows=near, length=512, pieces=1, tokens=options.tokens, chat_share=0.65,
              long_share=0.1, compiled=True),
        Stage(rows=max(1, 2 * far * options.far_batch // 2048), length=min(2048, far), pieces=2,
              tokens=options.far_tokens // 2, chat_share=0.6, long_share=0.5, compiled=False,
              averaging=0.97),
        Stage(rows=options.far_batch, length=far, pieces=2, tokens=options.far_tokens // 2,
              chat_share=0.6, long_share=0.6, compiled=False, averaging=0.97),
    )  # fmt: skip
    drafts = (
        Stage(rows=near, length=512, pieces=1, tokens=options.tokens, chat_share=0.85,
              long_share=0.1, compiled=True),
    )  # fmt: skip
    seconds = options.seconds * (1 - options.draft_share)
    return [
        Plan(stages=main, rate=options.rate, warm_steps=100, fall=0.4, seconds=seconds,
             seed=options.seed, part="main"),
        Plan(stages=drafts, rate=options.rate, warm_steps=50, fall=0.5,
             seconds=options.seconds - seconds, seed=options.seed + 1, part="drafts"),
    ]  # fmt: skip


def parsed_calls(reply: str) -> Calls | None:
    """(name, raw arguments) of each call; None where the text is not in the calls' format."""
    _, opened, block = reply.partition("<｜DSML｜ calls>\n")
    body, closed, after = block.partition("</｜DSML｜ calls>")
    if not opened:
        return []
    if not closed or after.strip():
        return None
    found = []
    head = r'<｜DSML｜ invoke name="([^"\n]+)">\n'
    opens = r'<｜DSML｜ parameter name="([^"\n]+)" string="(?:true|false)">'
    pair = rf"{opens}(.*?)</｜DSML｜ parameter>\n"
    call = re.compile(rf"{head}((?:{pair})*)</｜DSML｜ invoke>\n", re.DOTALL)
    at = 0
    while match := call.match(body, at):
        found.append((match[1], dict(re.findall(pair, match[2], re.DOTALL))))
        at = match.end()
    return found if at == len(body) else None


def config_of(
    tokenizer: Tokenizer, ids: dict[str, int], folder: Path, context: int
) -> dict[str, Any]:
    return tiny_config(
        vocab=tokenizer.get_vocab_size(),
        context=context,
        begin=ids[BEGIN],
        end=ids[END],
        pad=ids[WORDS.pad],
        noise=ids[NOISE],
        folder=folder,
    )


def dress(chat: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """Some chats without reasoning are held with reasoning switched off."""
    thinks = any(message.get("reasoning_content") for message in chat["messages"])
    if thinks or draw.random() >= OFF_SHARE:
        return chat
    rest = {key: value for key, value in chat.items() if key != "reasoning_effort"}
    return {**rest, "enable_thinking": False}


def tail(chat: dict[str, Any]) -> str:
    return ""


def shape_words(config: dict[str, Any]) -> str:
    text = config["text_config"]
    layers, tables = text["num_hidden_layers"], text["engram_num_embeddings"]
    ratios = ", ".join(map(str, text["compress_ratios"][:layers]))
    engram = " and ".join(map(str, text["engram_layer_ids"]))
    blocks, size = text["candidate_topk_blocks"], text["candidate_block_size"]
    return f"""Layers of ratios {ratios} with a window of {text["sliding_window"]}; Engram before
layers {engram}, in tables of {" and ".join(f"{rows:,}" for rows in tables)} rows; hidden
{text["hidden_size"]}, vocabulary {text["vocab_size"]:,}; {text["n_routed_experts"]} experts,
{text["num_experts_per_tok"]} a token; an index keeps {text["index_topk"]} rows, the last one out of
{blocks} candidate blocks of {size}; blocks of {text["dspark_block_size"]} drafts; context
{text["max_position_embeddings"]:,}."""


LINE = Line(
    name="dsv41",
    words=WORDS,
    template=CHAT.template,
    config=config_of,
    trainee=Trainee,
    plans=plans,
    dress=dress,
    tail=tail,
    parsed_calls=parsed_calls,
    fp32=("hc_attn_fn", "hc_attn_base", "hc_attn_scale", "hc_ffn_fn", "hc_ffn_base", "hc_ffn_scale",
          "attn_sink", "gate.bias"),
    plain=("embed", "head.weight", "hyper.", "ffn.gate.weight", "q_weight", "k_weight",
           "confidence"),
    draft_layer="drafter.",
    drafts=5,
    bars={"questions": 38, "objects": 38, "calls": 38},
    title="deepseek_v41",
    about=ABOUT,
    shape=shape_words,
)  # fmt: skip
