"""How property tests search: the same examples each time, so that a test never fails for a change that is none.

`HYPOTHESIS_PROFILE=search` (make test-long) looks at new ones each time.
"""

from __future__ import annotations

import os

try:
    from hypothesis import settings
except ImportError:  # an environment of the Slurm client alone
    pass
else:
    settings.register_profile("steady", derandomize=True, deadline=None)
    settings.register_profile("search", deadline=None, print_blob=True)
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))
