"""The Engram token map: which ids count as the same word (spec dsv41, 2.2).

A checkpoint ships it as a list, or it is made from the tokenizer.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor

from tensorfold.core.errors import StartError
from tensorfold.families.dsv41.config import Config

SHIPPED = "engram_token_map.json"
TOKENIZER = "tokenizer.json"
MOST_BYTES = 64 << 20
# Keeps a text of one space from being stripped away.
SPACE = "\ue000"


def token_map(config: Config, folder: Path) -> Tensor:
    """The map [vocabulary], int64. Raises `StartError` where it does not fit the config."""
    assert config.engram is not None
    shipped, tokenizer = folder / SHIPPED, folder / TOKENIZER
    if shipped.is_file():
        path, found = shipped, read_list(shipped)
    elif tokenizer.is_file():
        path, found = tokenizer, from_tokenizer(tokenizer)
    else:
        raise StartError(f"{folder} holds neither {SHIPPED} nor {TOKENIZER}: Engram needs one")
    wanted = config.engram.compressed
    if len(found) > config.vocab_size:
        raise StartError(f"{path} maps {len(found)} ids of a vocabulary of {config.vocab_size}")
    if set(found) != set(range(wanted)):
        raise StartError(
            f"{path} maps ids to {len(set(found))} words, and the config says {wanted}"
        )
    if config.engram.pad_id >= len(found):
        raise StartError(f"{path} does not map the pad id {config.engram.pad_id}")
    # Ids that no text has are padding of the vocabulary.
    found += [found[config.engram.pad_id]] * (config.vocab_size - len(found))
    return torch.tensor(found, dtype=torch.int64)


def read_list(path: Path) -> list[int]:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise StartError(f"{path} is more than {MOST_BYTES} bytes")
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise StartError(f"{path} cannot be read: {error}") from None
    if not isinstance(found, list) or not all(type(entry) is int for entry in found):
        raise StartError(f"{path} is no list of whole numbers")
    return found


def from_tokenizer(path: Path) -> list[int]:
    """Ids whose texts are the same once normalised get one number, in order of appearance."""
    from tokenizers import Regex, Tokenizer, normalizers

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises nothing narrower
        raise StartError(f"{path} is no tokenizer: {error}") from None
    normalise = normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.NFD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"[ \t\r\n]+"), " "),
            normalizers.Replace(Regex(r"^ $"), SPACE),
            normalizers.Strip(),
            normalizers.Replace(SPACE, " "),
        ]
    )
    numbers: dict[str, int] = {}
    found = []
    for token in range(tokenizer.get_vocab_size(with_added_tokens=True)):
        text = tokenizer.decode([token], skip_special_tokens=False)
        if "\ufffd" in text:
            key = tokenizer.id_to_token(token) or text
        else:
            key = normalise.normalize_str(text) or text
        found.append(numbers.setdefault(key, len(numbers)))
    return found
