"""What the process has loaded from which the ranks of tests are forked. multiprocessing imports this module in it.

The modules of tests that use gangs import all of these, so no rank does it again. The first model that a process
compiles imports the pattern matcher. Garbage collections in ranks leave out what was loaded here: a single one would
visit millions of objects, and copy their pages.
"""

from __future__ import annotations

import gc
import importlib

MODULES = (
    *("torch", "torch._dynamo", "torch._inductor.pattern_matcher", "gangline.pytorch", "gangline.rank.entrypoint"),
    *("pytest", "tests.support.once", "tests.support.points_trial"),
    # The first report and the first checkpoint of a trial import these.
    *("tensorboardX", "torch.utils.serialization", "fsspec.implementations.local"),
)

gc.disable()
for _module in MODULES:
    importlib.import_module(_module)
gc.freeze()
gc.enable()
