"""PURE: the matches of a trial's log policies in the lines that its ranks print.

Owns the patterns and the first line that each has matched. A pattern has one hit on each machine, because further ones
add nothing. The scheduler decides what follows from a hit, when the attempt has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from gangline.domain.allocation import LogHit
from gangline.domain.failure import LogRule
from gangline.pattern import BadPattern, compile_pattern

# In characters. The time of a search grows with the line and with the counts in the pattern, as in .{0,900}. The runner
# does nothing else meanwhile.
MAX_SEARCHED_LENGTH = 8000
# In characters. Hits travel with the exit into etcd.
MAX_HIT_LENGTH = 300


class LogPolicyMatcher:
    """Searches the printed lines for the patterns. note: called with a sentence for the trial's log.

    left_out: one sentence for each policy whose pattern only Python can match, which an earlier version's submit
    accepted.
    """

    def __init__(self, rules: Iterable[LogRule], note: Callable[[str], None]) -> None:
        self._note = note
        self._waiting: list[tuple[LogRule, Callable[[str], bool]]] = []
        self.hits: list[LogHit] = []
        self.left_out: list[str] = []
        for rule in rules:
            if not rule.pattern:
                continue
            try:
                self._waiting.append((rule, compile_pattern(rule.pattern)))
            except BadPattern as error:
                advice = "submit the experiment again with one that is"
                self.left_out.append(f"log policy {rule.label!r} is not applied: {error}; {advice}")

    def search(self, rank: int, lines: Sequence[str]) -> None:
        """Searches lines that a rank printed."""
        if not self._waiting:
            return
        for line in lines:
            self._search_line(rank, line[:MAX_SEARCHED_LENGTH])

    def _search_line(self, rank: int, line: str) -> None:
        matches = [entry for entry in self._waiting if entry[1](line)]
        for entry in matches:
            rule = entry[0]
            self._waiting.remove(entry)
            self.hits.append(LogHit(rule.label, rule.action, rank, line[:MAX_HIT_LENGTH]))
            action = f" ({rule.action.value.lower()})" if rule.action else ""
            self._note(f"log policy {rule.label!r}{action} matches a line of rank {rank}: {line[:MAX_HIT_LENGTH]}")
