"""The peer: transformers' own class of the family, at the same sizes, in a process of its own.

    python -m tensorfold.tools.decode.peer --layers 4 --rows 2048,8192 --streams 1,8

Prints one JSON object, key by key as they are found, the last line being whole. Weights are random,
as the bench's own are; flash-linear-attention is used where it is installed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from tensorfold.core.errors import StartError
from tensorfold.tools import widths
from tensorfold.tools.arguments import Parser, exit_code, numbers, positive

REPS = 3
STEPS = 16
CONTEXT = 512


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser(prog="peer", description=__doc__)
    parser.add_argument("--layers", type=positive, default=4)
    parser.add_argument("--rows", type=numbers, default="2048,8192", help="rows of prompts")
    parser.add_argument("--streams", type=numbers, default="1,8", help="streams of a round")
    return exit_code("peer", lambda: run(parser.parse_args(arguments)))


def run(options: argparse.Namespace) -> int:
    if find_spec("transformers") is None:
        raise StartError("transformers is not installed: the peer cannot be measured")
    measure(options.layers, options.rows, options.streams)
    return 0


def built(layers: int) -> Any:
    """GLM-5.3-Flash of transformers on the GPU, in bfloat16."""
    import torch
    import transformers

    text = dict(widths.glm53(layers, dense=0)["text_config"])
    text |= {"indexer_types": ["full"] * layers, "pad_token_id": 0, "eos_token_id": [0]}
    vision = {
        "depth": 1,
        "hidden_size": 16,
        "num_heads": 2,
        "intermediate_size": 16,
        "out_hidden_size": text["hidden_size"],
        "projection_intermediate_size": 16,
        "image_size": 28,
        "patch_size": 14,
    }
    config = transformers.Glm5NextConfig(text_config=text, vision_config=vision)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("meta"):
        model = transformers.Glm5NextForConditionalGeneration(config).eval()
    model = model.to_empty(device="cuda")
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if not tensor.is_floating_point():
            continue
        if name.endswith("norm.weight"):
            tensor.data.fill_(1)
        else:
            tensor.data.normal_(0, tensor.shape[-1] ** -0.5 if tensor.dim() > 1 else 0.2)
    return model


def measure(layers: int, rows: Sequence[int], streams: Sequence[int]) -> None:
    import torch
    from transformers import DynamicCache, __version__

    found: dict[str, Any] = {
        "transformers": __version__,
        "flash_linear_attention": find_spec("fla") is not None,
    }
    model = built(layers)
    vocabulary = model.config.text_config.vocab_size

    def prompt(many: int, length: int) -> tuple[float, Any, Any]:
        ids = torch.randint(0, vocabulary, (many, length), device="cuda")
        cache = DynamicCache(config=model.config)
        torch.cuda.synchronize()
        began = time.perf_counter()
        out = model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        token = out.logits[:, -1:].argmax(-1)
        torch.cuda.synchronize()
        return time.perf_counter() - began, cache, token

    with torch.inference_mode():
        prompt(1, 256)
        for length in rows:
            prompt(1, length)
            seconds = min(prompt(1, length)[0] for _ in range(REPS))
            tell(found, f"prompt {length}", length / seconds)
        for many in streams:
            _, cache, token = prompt(many, CONTEXT)
            for step in range(4 + STEPS):
                if step == 4:
                    torch.cuda.synchronize()
                    began = time.perf_counter()
                out = model(input_ids=token, past_key_values=cache, use_cache=True)
                token = out.logits[:, -1:].argmax(-1)
            torch.cuda.synchronize()
            tell(found, f"round {many}", (time.perf_counter() - began) / STEPS)


def tell(found: dict[str, Any], name: str, value: float) -> None:
    """Rows of prompt a second, or seconds a round."""
    found[name] = value
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    sys.exit(main())
