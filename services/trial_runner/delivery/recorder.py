"""Turns log lines, metrics and progress, which are only recorded, into records of the spool.

Owns the making of records and the signal that there are new ones. The log pump, the rank group and the runner call it;
the ingest stream waits on it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import structlog

from gangline.domain.state import LogLevel
from gangline.v1 import ingest_pb2, types_pb2
from services.trial_runner.delivery import metrics
from services.trial_runner.delivery.line_grader import LineGrader
from services.trial_runner.delivery.spool import Spool

_NUMBERS = {level: types_pb2.LogLevel.Value(f"LOG_LEVEL_{level}") for level in LogLevel}

# The longest time that a report of a rank waits for a runner that does not run meanwhile, such as a suspended one.
_LONGEST_WAIT_SECONDS = 3600.0

log = structlog.get_logger(__name__)


class Recorder:
    """Writes records to the spool. has_news: set after each record; the reader of the spool clears it before it
    reads. has_lines: whether the trial's log has any line of this machine."""

    def __init__(self, spool: Spool, agent_id: str) -> None:
        self._spool = spool
        self._agent_id = agent_id
        self._graders: dict[tuple[int, str], LineGrader] = {}
        self.has_news = asyncio.Event()
        self.has_lines = False
        # How many dropped and refused records of the spool the trial's log has reported.
        self._told = (0, 0)

    def record_lines(self, rank: int, stream: str, lines: Sequence[str]) -> None:
        """Records lines of one stream of a rank, "stdout" or "stderr", with the level of each."""
        grader = self._graders.get((rank, stream))
        if grader is None:
            grader = self._graders[rank, stream] = LineGrader(stream)
        self._record(rank, stream, lines, grader.grade(lines))

    def note(self, text: str, level: LogLevel = LogLevel.INFO) -> None:
        """Records a line of the runner itself, for users who follow the experiment's log."""
        log.info(text)
        self._record(None, "runner", [text], [level])

    def warn(self, text: str) -> None:
        """Records a warning of the runner itself."""
        self.note(text, LogLevel.WARNING)

    def record_stacks(self, rank: int, place: str, problem: str, lines: Sequence[str]) -> None:
        """Records the stacks of a rank that made no progress. place: a part of a sentence. problem: why there are no
        lines; empty otherwise."""
        where = f"rank {rank} on {self._agent_id}"
        self.note(f"{where} stood still{place}", LogLevel.ERROR)
        self.note(f"no stacks of {where}: {problem}" if problem else f"the stacks of {where}:", LogLevel.ERROR)
        self._record(rank, "runner", lines, [LogLevel.ERROR] * len(lines))

    def record_metrics(self, point: ingest_pb2.MetricsPoint, at: float = 0.0) -> None:
        """Records a report as it is; the gateway judges its content. at: when it was made."""
        self._append([ingest_pb2.IngestRecord(at=_admit_time(at), metrics=point)])

    def record_progress(
        self, batches_completed: int, batches_total: int, samples_per_second: float, at: float = 0.0
    ) -> None:
        point = ingest_pb2.ProgressPoint(
            batches_completed=batches_completed, batches_total=batches_total, samples_per_second=samples_per_second
        )
        self._append([ingest_pb2.IngestRecord(at=_admit_time(at), progress=point)])

    def tell_dropped(self) -> None:
        """Records how many records were lost since the last time. Records that the disk refuses are reported once it
        accepts writes."""
        dropped, refused = self._spool.num_dropped - self._told[0], self._spool.num_refused - self._told[1]
        if not dropped:
            return
        parts = [f"the disk of agent {self._agent_id} refused {refused}"] if refused else []
        parts += [f"{dropped - refused} older ones made room in a full spool"] if dropped > refused else []
        text = f"{dropped} records of this trial's log and metrics are lost: {' and '.join(parts)}"
        line = ingest_pb2.LogLine(
            agent_id=self._agent_id, stream="runner", text=text, level=types_pb2.LOG_LEVEL_WARNING
        )
        before = self._spool.num_dropped, self._spool.num_refused
        self._spool.append([ingest_pb2.IngestRecord(at=time.time(), log=line)])
        if self._spool.num_refused == before[1]:
            self._told = before
        else:
            # The refused note itself does not count as a loss.
            self._told = (self._told[0] + 1, self._told[1] + 1)

    def _record(self, rank: int | None, stream: str, lines: Sequence[str], levels: Sequence[LogLevel]) -> None:
        at, agent_id = time.time(), self._agent_id
        self.has_lines = self.has_lines or bool(lines)
        self._append(
            [
                ingest_pb2.IngestRecord(
                    at=at,
                    log=ingest_pb2.LogLine(
                        rank=rank, agent_id=agent_id, stream=stream, text=line, level=_NUMBERS[level]
                    ),
                )
                for line, level in zip(lines, levels, strict=True)
            ]
        )

    def _append(self, records: list[ingest_pb2.IngestRecord]) -> None:
        dropped = self._spool.append(records)
        if dropped:
            log.warning("records were lost: the spool is full or the disk refuses", dropped=dropped)
            metrics.records_dropped.inc(dropped)
        self.tell_dropped()
        metrics.spool_waiting.set(self._spool.num_waiting)
        self.has_news.set()


def _admit_time(at: float) -> float:
    """Returns the time at which a rank says that it made a report, if that can be true; else that of now. The report
    may have waited for this runner."""
    now = time.time()
    return at if now - _LONGEST_WAIT_SECONDS <= at <= now else now
