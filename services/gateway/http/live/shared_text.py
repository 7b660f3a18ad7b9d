"""Texts in JSON that several streams send: each is made once, whatever the number of its readers.

A key names the content and its version, so an entry never becomes wrong. The oldest entries are dropped.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable

MAX_ENTRIES = 10_000
MAX_BYTES = 32 << 20


class SharedTexts:
    def __init__(self, max_entries: int = MAX_ENTRIES, max_bytes: int = MAX_BYTES) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._texts: OrderedDict[Hashable, str] = OrderedDict()
        self.num_made = 0

    def get(self, key: Hashable, make: Callable[[], str]) -> str:
        text = self._texts.get(key)
        if text is not None:
            return text
        text = self._texts[key] = make()
        self.num_made += 1
        self._num_bytes += len(text)
        while len(self._texts) > 1 and (len(self._texts) > self._max_entries or self._num_bytes > self._max_bytes):
            self._num_bytes -= len(self._texts.popitem(last=False)[1])
        return text
