"""Ops: one file an op, with its schema, shape function, reference and cases."""
