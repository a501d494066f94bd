"""Families: the mathematics of one model line each, found through its plugin."""
