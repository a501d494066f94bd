"""Checkpoints: safetensors headers and shards, read with every check before a byte is mapped."""
