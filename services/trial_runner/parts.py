"""Builds the parts of one trial runner, and gives each part what it calls.

`runner.py` runs them. Nothing here waits or decides.
"""

from __future__ import annotations

from functools import partial

from gangline.domain.peer_name import GATEWAY, SCHEDULER
from gangline.errors import GanglineError
from gangline.v1 import runner_pb2
from services.common.state_folder import SharedFolder
from services.trial_runner.announcement import Announcement
from services.trial_runner.attempt_events import AttemptEvents
from services.trial_runner.attempt_lease import AttemptLease
from services.trial_runner.delivery.delivery import Delivery
from services.trial_runner.delivery.recorder import Recorder
from services.trial_runner.delivery.relay import Relay
from services.trial_runner.delivery.running_report import RunningReport
from services.trial_runner.delivery.spool_folder import SpoolFolder
from services.trial_runner.fusion_records import FusionRelay
from services.trial_runner.gang.gang_links import GangLinks
from services.trial_runner.gang.gang_plan import Place, find_place, settled_of
from services.trial_runner.gang.link_tls import LinkTls
from services.trial_runner.hang_end import HangEnd
from services.trial_runner.last_report import LastReport
from services.trial_runner.output import Output
from services.trial_runner.preparation import Preparation
from services.trial_runner.rank_messages import RankLines, RankMessages
from services.trial_runner.ranks.confinement import Confinement
from services.trial_runner.ranks.log_policy import LogPolicyMatcher
from services.trial_runner.ranks.log_pump import LogPump
from services.trial_runner.ranks.nursery_client import NurseryProcess
from services.trial_runner.ranks.rank_link import RankLinkServer
from services.trial_runner.trial_facts import TrialFacts
from services.trial_runner.watchdog.beats import Beats, RemoteBeats
from services.trial_runner.watchdog.watchdog import Watchdog


class AttemptParts:
    """The parts of one attempt. Made on the event loop."""

    def __init__(
        self, folder: SharedFolder, spec: runner_pb2.RunnerSpec, rank_forkserver: str, forked: NurseryProcess | None
    ) -> None:
        """forked: a nursery for ranks that need no warm process. Raises OSError."""
        self.spec = spec
        self.folder = folder
        self.place = place = find_place(spec)
        link_tls = _load_tls(folder, place)
        settled = settled_of(spec)
        grace_seconds = float(settled.preemption_timeout)
        link = RankLinkServer(folder.ranks_path.absolute())
        self.spool_folder = SpoolFolder(spec, place.agent_id, folder.state.spools)
        self.recorder = recorder = Recorder(self.spool_folder.spool, place.agent_id)
        self.events = events = AttemptEvents(folder, place, grace_seconds, link, recorder)

        accounts = str(folder.accounts_path.absolute())
        self.confinement = Confinement(allocation_id=folder.allocation_id, agent_id=place.agent_id, accounts=accounts)
        self.delivery = Delivery(
            spec,
            folder.state,
            self.spool_folder,
            recorder,
            on_trace=link.trace,
            on_over=events.on_over,
            find_fault=partial(self.confinement.find_theft, spec),
        )
        reporter = self.delivery.reporter
        self.lease = AttemptLease(
            spec,
            place.agent_id,
            on_over=events.on_over,
            on_stop=events.on_stop_order,
            on_cut=events.on_cut,
            dialer=folder.state.dialer(SCHEDULER),
        )
        self.running = RunningReport(spec, place.agent_id, folder, reporter)
        self.announcement = Announcement(self.running, reporter, recorder, self.lease, events.pids)

        self.beats = Beats(folder, place)
        remote = RemoteBeats(place)
        self.hang_end = HangEnd(place, self.beats, recorder, events)
        self.gang = GangLinks(
            spec.token,
            place.node_rank,
            place.agent_ids,
            on_failure=events.on_peer_failure,
            on_beats=remote.on_beats,
            on_hang=self.hang_end.on_hang,
            tls=link_tls,
        )
        self.watchdog = Watchdog(
            place, settled.hang_detection, self.beats, remote, self.gang, on_hang=self.hang_end.on_hang
        )

        self.output = Output(spec, place, folder, recorder)
        self.messages = RankMessages(
            link,
            Relay(spec.trial, recorder, reporter, self.running.on_first_step),
            FusionRelay(spec, folder.state, reporter, link.send),
            TrialFacts(spec, folder.state, reporter, recorder, link.send),
            self.output,
            self.running,
            self.announcement,
            events,
        )
        self.log_policy = LogPolicyMatcher(settled.log_policies, recorder.warn)
        self.pump = LogPump(RankLines(place, recorder, self.log_policy).on_lines)
        self.preparation = Preparation(
            spec, place, folder, self.beats.paths, self.confinement, rank_forkserver, self.gang, recorder.note, forked
        )
        self.last_report = LastReport(folder, self.messages.relay, reporter, self.lease)


def _load_tls(folder: SharedFolder, place: Place) -> LinkTls | None:
    """Reads the files of TLS once, before threads use them. Returns the TLS of the gang's links; None without, and for
    a gang of one. Raises OSError if the files cannot be used."""
    try:
        is_secure = [folder.state.dialer(role).is_secure for role in (SCHEDULER, GATEWAY)]
        named = folder.state.load_tls() if all(is_secure) and place.num_nodes > 1 else None
        return LinkTls(*named, place.agent_ids) if named is not None else None
    except GanglineError as error:
        raise OSError(error.message) from error
