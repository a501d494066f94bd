"""The fake backend: a whole engine with no torch and no family."""
