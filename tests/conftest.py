"""Hypothesis profiles: `HYPOTHESIS_PROFILE=noshrink pytest ...` reports a failing case as it was found, at once."""

from __future__ import annotations

import os

from hypothesis import Phase, settings

# No deadline: a machine may be busy, and no test measures time.
settings.register_profile("steady", deadline=None)
settings.register_profile("noshrink", deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))
