"""Huge pages are asked for, unless whoever starts the agent has set tunables."""

from __future__ import annotations

from services.common.huge_pages import HUGE_PAGES, KEY, with_huge_pages


def test_environment_keeps_what_it_has() -> None:
    assert with_huge_pages({"PATH": "/bin"}) == {"PATH": "/bin", KEY: HUGE_PAGES}
    own = {KEY: "glibc.malloc.hugetlb=0"}
    assert with_huge_pages(own) == own
