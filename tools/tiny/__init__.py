"""The trainer of the bundled models: a differentiable model, its corpus and its judge."""
