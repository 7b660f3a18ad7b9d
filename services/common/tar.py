"""The standard library's tarfile. Python has its extraction filters since 3.11.4; before that their backport stands in,
as on Debian 12."""

from __future__ import annotations

import tarfile
from typing import TYPE_CHECKING

if not TYPE_CHECKING and not hasattr(tarfile, "data_filter"):
    from backports import tarfile

__all__ = ["tarfile"]
