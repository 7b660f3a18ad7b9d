"""Builds the parts of one trial runner, and gives each part what it calls.

`runner.py` runs them. Nothing here waits or decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from gangline.domain.failure import hang_rule_of, log_rules_of
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
from services.trial_runner.fusion_records import FusionRecords
from services.trial_runner.gang.gang_links import GangLinks
from services.trial_runner.gang.gang_plan import Place, find_place, load_config
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

# Grace of a preemption for which the experiment sets no `preemption_timeout`.
DEFAULT_GRACE_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts that the steps of one attempt use."""

    spec: runner_pb2.RunnerSpec
    place: Place
    folder: SharedFolder
    events: AttemptEvents
    confinement: Confinement
    recorder: Recorder
    spool_folder: SpoolFolder
    delivery: Delivery
    running: RunningReport
    announcement: Announcement
    lease: AttemptLease
    gang: GangLinks
    beats: Beats
    watchdog: Watchdog
    hang_end: HangEnd
    messages: RankMessages
    log_policy: LogPolicyMatcher
    pump: LogPump
    output: Output
    preparation: Preparation
    last_report: LastReport


def make_parts(
    folder: SharedFolder, spec: runner_pb2.RunnerSpec, rank_forkserver: str, forked: NurseryProcess | None
) -> Parts:
    """Called on the event loop. forked: a nursery for ranks that need no warm process. Raises OSError."""
    place = find_place(spec)
    config = load_config(spec)
    link = RankLinkServer(folder.ranks_path.absolute())
    spool_folder = SpoolFolder(spec, place.agent_id, folder.state.spools)
    recorder = Recorder(spool_folder.spool, place.agent_id)
    grace_seconds = float(config.get("preemption_timeout") or DEFAULT_GRACE_SECONDS)
    events = AttemptEvents(folder, place, grace_seconds, link, recorder)

    accounts = str(folder.accounts_path.absolute())
    confinement = Confinement(allocation_id=folder.allocation_id, agent_id=place.agent_id, accounts=accounts)
    delivery = Delivery(
        spec,
        folder.state,
        spool_folder,
        recorder,
        on_trace=link.trace,
        on_over=events.on_over,
        find_fault=partial(confinement.find_theft, spec),
    )
    reporter = delivery.reporter
    lease = AttemptLease(
        spec, place.agent_id, on_over=events.on_over, on_stop=events.on_stop_order, on_cut=events.on_cut
    )
    running = RunningReport(spec, place.agent_id, folder, reporter)
    announcement = Announcement(running, reporter, recorder, lease, events.pids)

    beats, remote = Beats(folder, place), RemoteBeats(place)
    hang_end = HangEnd(place, beats, recorder, events)
    gang = GangLinks(
        spec.token,
        place.node_rank,
        place.agent_ids,
        on_failure=events.on_peer_failure,
        on_beats=remote.on_beats,
        on_hang=hang_end.on_hang,
    )
    watchdog = Watchdog(place, hang_rule_of(config), beats, remote, gang, on_hang=hang_end.on_hang)

    relay = Relay(spec.trial, recorder, reporter, running.on_first_step)
    fusion = FusionRecords(spec, reporter, link.send)
    trial_facts = TrialFacts(spec, reporter, recorder, link.send)
    output = Output(spec, place, folder, recorder)
    log_policy = LogPolicyMatcher(log_rules_of(config), recorder.warn)
    return Parts(
        spec=spec,
        place=place,
        folder=folder,
        events=events,
        confinement=confinement,
        recorder=recorder,
        spool_folder=spool_folder,
        delivery=delivery,
        running=running,
        announcement=announcement,
        lease=lease,
        gang=gang,
        beats=beats,
        watchdog=watchdog,
        hang_end=hang_end,
        messages=RankMessages(link, relay, fusion, trial_facts, output, running, announcement, events),
        log_policy=log_policy,
        pump=LogPump(RankLines(place, recorder, log_policy).on_lines),
        output=output,
        preparation=Preparation(
            spec, place, folder, beats.paths, confinement, rank_forkserver, gang, recorder.note, forked
        ),
        last_report=LastReport(folder, relay, reporter, lease),
    )
