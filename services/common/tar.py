"""The standard library's tarfile, with extraction filters. Python has these since 3.11.4; with older versions, as on
Debian 12, their backport is used."""

from __future__ import annotations

import tarfile
from typing import TYPE_CHECKING

if not TYPE_CHECKING and not hasattr(tarfile, "data_filter"):
    from backports import tarfile

__all__ = ["tarfile"]
