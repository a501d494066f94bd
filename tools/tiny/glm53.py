"""The glm5_next line: its tokens, its plan and its model as the trainer drives it."""

import argparse
import random
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from tensorfold.tools.tiny.lines import Calls, Line, Losses
from tensorfold.tools.tiny.model import (
    Aside,
    Model,
    loss_of,
    official_tensors,
    start_weights,
)
from tensorfold.tools.tiny.shape import read_shape, tiny_config
from tensorfold.tools.tiny.tokens import Words
from tensorfold.tools.tiny.training import Plan, Stage

WORDS = Words(
    control=(
        "<|endoftext|>",
        "[MASK]",
        "[gMASK]",
        "<sop>",
        "<|system|>",
        "<|user|>",
        "<|assistant|>",
        "<|observation|>",
    ),
    markup=(
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "<tool_response>",
        "</tool_response>",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
    ),
    ends=("<|endoftext|>", "<|user|>", "<|observation|>"),
    assistant="<|assistant|>",
    others=("<|system|>", "<|user|>", "<|observation|>"),
    pad="<|endoftext|>",
)
ABOUT = """A tiny model of GLM-5.3-Flash's architecture, trained from nothing for this repository:
Kimi delta attention and sparse attention with a pooled index in turn, hyper-connections, routed
experts and a drafting (MTP) layer, with a tokenizer of its own."""


def losses_of(
    model: Model, loss: Any, ids: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor, Tensor, list[Aside]]:
    """(main, draft, ranking) losses and the layers' asides for ids [B, T + 2]."""
    num_T = ids.shape[1] - 2
    hidden, asides = model(ids[:, :num_T])
    head = model.lm_head.weight
    main = loss(hidden, head, ids[:, 1 : num_T + 1], weights[:, 1 : num_T + 1])
    drafted, aside = model.draft(ids[:, 1 : num_T + 1], hidden)
    draft = loss(drafted, head, ids[:, 2:], weights[:, 2:])
    asides = [*asides, aside]
    ranking = sum(a.ranking_loss for a in asides if a.ranking_loss is not None)
    return main, draft, ranking, asides


class Trainee:
    """A `lines.Trainee`."""

    def __init__(self, config: dict[str, Any], folder: Path) -> None:
        self.model = Model(read_shape(config))
        self.compiled_loss = loss_of

    def start(self, seed: int) -> None:
        start_weights(self.model, torch.Generator().manual_seed(seed))

    def learners(self, part: str) -> list[tuple[str, nn.Parameter]]:
        assert part == "all", part
        return list(self.model.named_parameters())

    def losses(self, ids: Tensor, weights: Tensor, part: str, *, compiled: bool) -> Losses:
        loss = self.compiled_loss if compiled else loss_of
        main, draft, ranking, asides = losses_of(self.model, loss, ids, weights)
        return Losses(main, draft, ranking, [aside.load_E for aside in asides], {})

    @torch.no_grad()
    def balance(self, losses: Losses, speed: float) -> None:
        for layer, load_E in zip(self.model.layers, losses.loads_E, strict=True):
            if load_E is not None:
                bias = layer.mlp.gate.e_score_correction_bias
                bias += speed * torch.sign(1 / len(bias) - load_E)

    def set_compiled(self, on: bool) -> None:
        torch._dynamo.config.recompile_limit = 64
        self.compiled_loss = torch.compile(loss_of, dynamic=False) if on else loss_of
        for layer in self.model.layers:
            if on:
                layer.compile(dynamic=False)
            else:
                layer._compiled_call_impl = None

    def official(self) -> dict[str, Tensor]:
        return official_tensors(self.model)

    def hidden(self, ids_BT: Tensor) -> Tensor:
        return self.model(ids_BT)[0]

    def logits(self, hidden: Tensor) -> Tensor:
        return self.model.lm_head(hidden)

    @torch.no_grad()
    def dropped(self, ids: list[int]) -> dict[int, float]:
        shape, rows = self.model.shape, len(ids)
        ids_BT = torch.tensor([ids], device=self.model.norm.weight.device)
        hidden, asides = self.model(ids_BT)
        drafted = self.model.draft(ids_BT, hidden)[1]
        out = {}
        for layer, aside in enumerate([*asides, drafted]):
            if aside.chosen_BTP is not None:
                read = int(aside.chosen_BTP[0, -1].sum()) * shape.pool + rows % shape.pool
                out[layer] = 1 - read / rows
        return out

    @torch.no_grad()
    def draft_agreement(self, ids: list[int]) -> tuple[int, int]:
        ids_BT = torch.tensor([ids], device=self.model.norm.weight.device)
        hidden = self.hidden(ids_BT)
        own = self.logits(hidden[0]).argmax(-1)
        drafted, _ = self.model.draft(ids_BT[:, 1:], hidden[:, :-1])
        guess = self.logits(drafted[0]).argmax(-1)
        return int((guess == own[1:]).sum()), len(ids) - 1


def plans(options: argparse.Namespace) -> list[Plan]:
    length, rows = 512, options.far_batch
    stages = (
        Stage(rows=options.batch // length, length=length, pieces=1, tokens=options.tokens,
              chat_share=0.65, long_share=0.1, compiled=True),
        Stage(rows=rows, length=options.far_rows, pieces=2, tokens=options.far_tokens,
              chat_share=0.6, long_share=0.6, compiled=False),
    )  # fmt: skip
    return [Plan(stages=stages, rate=options.rate, warm_steps=100, fall=0.4,
                 seconds=options.seconds, seed=options.seed)]  # fmt: skip


def parsed_calls(reply: str) -> Calls | None:
    """(name, raw arguments) of each call; None where the text is not in the calls' format."""
    out = []
    _, *parts = reply.split("<tool_call>")
    for part in parts:
        body, closed, after = part.partition("</tool_call>")
        name, *pairs = body.split("<arg_key>")
        if not closed or after.strip() or not name.strip():
            return None
        given = {}
        for pair in pairs:
            key, middle, rest = pair.partition("</arg_key><arg_value>")
            value, end, extra = rest.partition("</arg_value>")
            if not middle or not end or extra:
                return None
            given[key] = value
        out.append((name, given))
    return out


def config_of(
    tokenizer: Tokenizer, ids: dict[str, int], folder: Path, context: int
) -> dict[str, Any]:
    return tiny_config(
        vocab=tokenizer.get_vocab_size(),
        context=context,
        eos=[ids[token] for token in WORDS.ends],
        pad=ids[WORDS.pad],
    )


def dress(chat: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    return chat


def tail(chat: dict[str, Any]) -> str:
    return "<|observation|>" if chat["messages"][-1].get("tool_calls") else "<|user|>"


def shape_words(config: dict[str, Any]) -> str:
    text = config["text_config"]
    names = {"linear_attention": "KDA", "deepseek_sparse_attention": "DSA"}
    kinds = ", ".join(names[kind] for kind in text["layer_types"])
    return f"""Layers: {kinds}; hidden {text["hidden_size"]}, vocabulary {text["vocab_size"]:,};
{text["n_routed_experts"]} experts, {text["num_experts_per_tok"]} a token; the index keeps
{text["index_topk"]} keys; context {text["max_position_embeddings"]:,}."""


LINE = Line(
    name="glm53",
    words=WORDS,
    template="",
    config=config_of,
    trainee=Trainee,
    plans=plans,
    dress=dress,
    tail=tail,
    parsed_calls=parsed_calls,
    fp32=("hc_attn_base", "hc_attn_scale", "hc_ffn_base", "hc_ffn_scale", "A_log", "dt_bias",
          "e_score_correction_bias"),
    plain=("embed_tokens", "lm_head", "conv1d", "hc_", "mlp.gate.weight", "compress_ape"),
    draft_layer="layers.4.",
    drafts=0,
    bars={"questions": 40, "objects": 45, "calls": 45},
    title="glm5_next",
    about=ABOUT,
    shape=shape_words,
)  # fmt: skip
