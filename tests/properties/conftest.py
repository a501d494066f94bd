"""Many examples: 2,000 of each property in every run, and as many as are asked by hand.

    pytest tests/properties --hypothesis-profile by-hand --hypothesis-seed 7

runs 10,000 of each, drawn from that seed.
"""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "by-hand",
    max_examples=10_000,
    deadline=None,
    database=None,
    derandomize=False,
    suppress_health_check=list(HealthCheck),
)
