"""How many examples a property gets."""

from hypothesis import HealthCheck, settings

EXAMPLES = 2000

CHOSEN = (
    settings.get_profile("by-hand")
    if settings.get_current_profile_name() == "by-hand"
    else settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
)
