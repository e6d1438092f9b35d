"""For all tests: property tests draw the same examples in every run, so that a failure is one of the change."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("same", derandomize=True, deadline=None)
settings.load_profile("same")
