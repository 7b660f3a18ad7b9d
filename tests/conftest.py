"""How long hypothesis may take, and which examples it tries."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

# How fast an example runs says how busy the machine is, and nothing of the code. The build machine tries the same
# examples each time, so that a change breaks it and not chance; everywhere else new ones are tried.
settings.register_profile(
    "gangline", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize="CI" in os.environ
)
settings.load_profile("gangline")
# For `make mutants`: the first example that fails is enough, and a second run with the same seed has the same result.
settings.register_profile(
    "mutants",
    settings.get_profile("gangline"),
    phases=(Phase.explicit, Phase.generate),
    derandomize=True,
    database=None,
)
