"""Hypothesis profiles: `HYPOTHESIS_PROFILE=noshrink pytest ...` reports a failing case as it was found, at once."""

from __future__ import annotations

import os

from hypothesis import Phase, settings

settings.register_profile("noshrink", phases=[Phase.explicit, Phase.reuse, Phase.generate])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
