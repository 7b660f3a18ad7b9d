"""PURE: the environment of a process whose forks become ranks, so that their memory lies in huge pages.

glibc asks the kernel for huge pages where GLIBC_TUNABLES says so when a process starts; its forks do the same. A step
on the CPU then takes a few percent less, because the processor looks up fewer addresses (benchmarks.overhead). The
ranks' own environment stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping

KEY = "GLIBC_TUNABLES"
# Of glibc 2.35 and newer; an older one ignores it, as other C libraries do.
HUGE_PAGES = "glibc.malloc.hugetlb=1"


def with_huge_pages(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment with the tunable, unless whoever starts the agent has set tunables."""
    return {KEY: HUGE_PAGES, **environment}
