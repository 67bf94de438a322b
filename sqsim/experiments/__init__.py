"""Many runs: studies, sweeps, intervals, plans."""
