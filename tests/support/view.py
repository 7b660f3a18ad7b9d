"""Messages of the gateway, made in one line, for tests of the client and the command line."""

from __future__ import annotations

import json

from gangline.v1 import gateway_pb2 as pb
from gangline.v1 import ingest_pb2, types_pb2


def make_experiment(state: str = "RUNNING", outcome: str = "", **fields: object) -> types_pb2.Experiment:
    """Number 1, digits, created at 1000 s."""
    values: dict[str, object] = {"id": 1, "name": "digits", "owner": "admin", "created_at": 1000.0, "config_json": "{}"}
    experiment = types_pb2.Experiment(**(values | fields))  # type: ignore[arg-type]  # names are checked by protobuf
    experiment.state = types_pb2.State.Value(f"STATE_{state}")
    if outcome:
        experiment.outcome = types_pb2.Outcome.Value(f"OUTCOME_{outcome}")
    return experiment


def make_trial(state: str = "RUNNING", outcome: str = "", **fields: object) -> types_pb2.Trial:
    values: dict[str, object] = {"id": "1.1", "experiment_id": 1, "number": 1}
    trial = types_pb2.Trial(**(values | fields))  # type: ignore[arg-type]  # names are checked by protobuf
    trial.state = types_pb2.State.Value(f"STATE_{state}")
    if outcome:
        trial.outcome = types_pb2.Outcome.Value(f"OUTCOME_{outcome}")
    return trial


def make_allocation(*members: tuple[str, int]) -> types_pb2.Allocation:
    """members: agent id and the number of its slots."""
    return types_pb2.Allocation(
        id="1.1.1",
        trial_id="1.1",
        experiment_id=1,
        attempt=1,
        state=types_pb2.STATE_RUNNING,
        created_at=1000.0,
        members=[
            types_pb2.Member(agent_id=agent, node_rank=rank, slot_ids=[f"{agent}/{slot}" for slot in range(count)])
            for rank, (agent, count) in enumerate(members)
        ],
    )


def make_lifecycle() -> list[pb.ExperimentView]:
    """An experiment that waits, trains over two agents, and completes."""
    waiting = pb.TrialView(
        trial=make_trial("QUEUED"),
        reason=types_pb2.Reason(
            code=types_pb2.REASON_CODE_NO_CAPACITY,
            message="needs 4 slots; 2 are free",
            would_start_if="2 more slots became free",
        ),
    )
    running = pb.TrialView(
        trial=make_trial(),
        allocation=make_allocation(("a1", 2), ("a2", 2)),
        progress=ingest_pb2.ProgressPoint(batches_completed=50, batches_total=200, samples_per_second=1234.5),
        training=ingest_pb2.MetricsPoint(group="training", batches_completed=50, metrics={"loss": 0.5, "acc": 0.9}),
    )
    ended = pb.TrialView(
        trial=make_trial("TERMINAL", "COMPLETED", latest_checkpoint_id="c0ffee", batches_completed=200),
        validation=ingest_pb2.MetricsPoint(group="validation", batches_completed=200, metrics={"accuracy": 0.972}),
        checkpoint_batches=200,
    )
    return [
        pb.ExperimentView(experiment=make_experiment("QUEUED"), trials=[waiting]),
        pb.ExperimentView(experiment=make_experiment(), trials=[running]),
        pb.ExperimentView(experiment=make_experiment("TERMINAL", "COMPLETED", ended_at=1012.5), trials=[ended]),
    ]


def make_search(num_trials: int, now: float = 2000.0) -> pb.ExperimentView:
    """A random search of as many trials, which has run for five minutes: 12 have completed, one has failed, four run
    at a third of their length with a pace of 1 s a batch, and the others wait."""
    config = {"searcher": {"name": "random", "metric": "accuracy", "smaller_is_better": False}}
    trials = []
    for number in range(1, num_trials + 1):
        state, outcome = ("RUNNING", "") if number <= 17 else ("QUEUED", "")
        if number <= 13:
            state, outcome = "TERMINAL", "COMPLETED" if number <= 12 else "FAILED"
        net = {"depth": number, "name": f"a long value {number}"}
        point = {"learning_rate": number / 1000, "net": net, "batch": 64}
        trial = make_trial(
            state, outcome, id=f"1.{number}", number=number, hyperparameters_json=json.dumps(point),
            seconds_per_batch=1.0 if state != "QUEUED" else 0.0,
            batches_completed={"COMPLETED": 300, "FAILED": 10}.get(outcome, 0),
        )  # fmt: skip
        if outcome == "COMPLETED":
            trial.best_validation = 0.5 + number / 100
        view = pb.TrialView(trial=trial)
        if state == "RUNNING":
            view.progress.CopyFrom(ingest_pb2.ProgressPoint(batches_completed=100, batches_total=300))
        elif state == "QUEUED":
            view.reason.code = types_pb2.REASON_CODE_NO_CAPACITY
            view.reason.message = f"needs 4 slots; the largest set of idle agents has {number} of the slots that fit it"
            view.reason.would_start_if = "one of the running trials of the same experiment ended before"
        trials.append(view)
    experiment = make_experiment(config_json=json.dumps(config), created_at=now - 300)
    search = types_pb2.Search(experiment_id=1, num_wanted=num_trials, num_planned=num_trials)
    return pb.ExperimentView(experiment=experiment, trials=trials, search=search)


def make_log(number: int, text: str, rank: int | None = 0, level: str = "INFO") -> pb.StoredLog:
    line = ingest_pb2.LogLine(
        rank=rank,
        agent_id="a1",
        stream="stdout" if rank is not None else "runner",
        text=text,
        level=types_pb2.LogLevel.Value(f"LOG_LEVEL_{level}"),
    )
    return pb.StoredLog(id=number, trial_id="1.1", at=1000.0 + number, line=line)


def make_agent_view() -> pb.AgentView:
    agent = types_pb2.Agent(
        id="a1",
        pool="default",
        state=types_pb2.AGENT_STATE_ALIVE,
        slots=[types_pb2.Slot(id=f"a1/{slot}", kind=types_pb2.SLOT_KIND_CPU, is_healthy=True) for slot in range(2)],
        hostname="host",
        version="0.1.0",
        registered_at=1000.0,
    )
    return pb.AgentView(agent=agent, allocation_id_by_slot_id={"a1/0": "1.1.1"})


def make_checkpoint(name: str, trial: str = "1.1", batches: int = 100, **metrics: float) -> types_pb2.Checkpoint:
    """metrics: of its validation; none for one that was not validated."""
    return types_pb2.Checkpoint(
        id=name,
        trial_id=trial,
        experiment_id=int(trial.partition(".")[0]),
        batches_completed=batches,
        url=f"file:///storage/{name}",
        file_bytes={"model.pt": 10},
        metadata_json=json.dumps({"steps_completed": batches, **({"validation_metrics": metrics} if metrics else {})}),
        created_at=1000.0 + batches,
        state=types_pb2.CHECKPOINT_STATE_COMPLETED,
    )
