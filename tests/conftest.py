"""For all tests: property tests draw the same examples in every run, so that a failure is one of the change.

How long drawing takes says something of the machine alone.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("same")
