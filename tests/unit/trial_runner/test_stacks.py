"""The parts of a dump of all threads that go into a failure's last lines."""

from __future__ import annotations

from services.trial_runner.stacks import Stacks

DUMP = """\
Thread 0x1 (most recent call first):
  File "link.py", line 258 in _serve
  File "threading.py", line 1002 in _bootstrap

Current thread 0x2 (most recent call first):
  File "model_def.py", line 29 in train_batch
  File "loop.py", line 129 in _train
  File "forkserver.py", line 241 in <module>"""


def test_the_main_thread_ends_where_it_stands() -> None:
    assert Stacks(tuple(DUMP.splitlines())).main_thread == (
        '  File "forkserver.py", line 241 in <module>',
        '  File "loop.py", line 129 in _train',
        '  File "model_def.py", line 29 in train_batch',
    )


def test_a_rank_without_a_dump_has_no_lines() -> None:
    assert Stacks(problem="it is stopped").main_thread == ()
