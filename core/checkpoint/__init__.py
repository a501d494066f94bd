"""Checkpoints: safetensors headers and shards, read with every check before a byte is mapped."""

from tensorfold.core.checkpoint.config import read_config
from tensorfold.core.checkpoint.digests import contents_of, identity
from tensorfold.core.checkpoint.folder import Checkpoint, open_checkpoint
from tensorfold.core.checkpoint.header import Shard, Stored

__all__ = [
    "Checkpoint",
    "Shard",
    "Stored",
    "contents_of",
    "identity",
    "open_checkpoint",
    "read_config",
]
