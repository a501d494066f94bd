"""Backends: devices, their engines and op tables, each found through its plugin."""
