# SPDX-License-Identifier: Apache-2.0
"""Hypothesis profiles: `HYPOTHESIS_PROFILE=noshrink pytest ...` reports a failing case as it was found, at once.

And signals as they are in a terminal: tests interrupt commands, which inherit what the tests' starter ignores (nohup SIGHUP, a
shell without job control SIGINT in the background).
"""

from __future__ import annotations

import os
import signal

from hypothesis import Phase, settings

# No deadline: a machine may be busy, and no test measures time.
settings.register_profile("steady", deadline=None)
settings.register_profile("noshrink", deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
