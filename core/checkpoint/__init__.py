"""Checkpoints: safetensors headers and shards, read with every check before a byte is mapped."""

from tensorfold.core.checkpoint.config import read_config

__all__ = ["read_config"]
