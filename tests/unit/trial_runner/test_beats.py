"""The beats of this machine's ranks, and those that the other members send to node rank 0."""

from __future__ import annotations

import os
from pathlib import Path

from gangline.domain.beat import Collectives, Phase, Reading
from gangline.launch.beat_file import BATCHES, PID, map_cells
from services.common.state_folder import SharedFolder
from services.trial_runner.gang.gang_plan import Place
from services.trial_runner.watchdog.beats import Beats, RemoteBeats, to_details, to_rows

HEAD = Place("a1", 0, ("a1", "a2", "a3"), first_rank=0, local_world_size=1, world_size=3)


def test_the_workers_of_a_script_count_while_they_live(tmp_path: Path) -> None:
    place = Place("a1", 0, ("a1",), first_rank=2, local_world_size=2, world_size=4, runs_once=True)
    beats = Beats(SharedFolder(tmp_path), place)
    assert [*beats.living_files([2])] == [2], "the script itself, before its first worker"
    assert beats.living_files([]) == {}
    for rank, pid in ((2, 2**22 + 1), (3, os.getpid())):
        map_cells(beats.files[rank].path)[PID] = pid
    assert [*beats.living_files([2])] == [3], "the other one has ended"
    map_cells(beats.files[3].path)[BATCHES] = 8
    assert (beats.batches_of(3), beats.batches_of(9)) == (8, None)


def test_node_rank_0_knows_each_rank_by_the_newest_rows_of_its_member() -> None:
    remote = RemoteBeats(HEAD)
    own = {0: Reading(7, 0, Phase.WATCHED, 10)}
    sent = {1: Reading(5, 2, Phase.STARTING, 11, life=3, collectives=Collectives(4, 5, 6), is_stopped=True)}
    remote.on_beats(1, to_rows({1: Reading(4, 1, Phase.WATCHED, 11)}), ())
    remote.on_beats(1, to_rows(sent), to_details(sent))
    remote.on_beats(2, to_rows({2: Reading(6, 0, Phase.WATCHED, 12)}), ())
    assert remote.with_own(own) == {**own, **sent, 2: Reading(6, 0, Phase.WATCHED, 12)}
    assert [remote.agent_of(rank) for rank in (0, 1, 2)] == ["a1", "a2", "a3"]


def test_an_earlier_version_is_sent_no_phase_that_it_does_not_know() -> None:
    ((*_, phase, _pid),) = to_rows({1: Reading(0, 0, Phase.STARTING, 11)})
    assert phase == Phase.RESTING
