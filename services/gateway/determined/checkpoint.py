"""Checkpoints in Determined's form, and their files as one archive."""

from __future__ import annotations

import math
import tarfile
import zlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from gangline.domain.experiment import METADATA_FILE, Checkpoint
from gangline.domain.id import experiment_id_of, number_of, trial_id_of
from gangline.domain.settled.reading import settle_values
from gangline.domain.state import CheckpointState
from gangline.domain.view import ExperimentView
from gangline.errors import GanglineError, invalid
from services.gateway.determined.call import Call, Routes, page_of, start_instant
from services.gateway.determined.values import Json, checkpoint_state_name, load, metrics_json, with_storage
from services.gateway.mirror.ingest_record import Scope
from services.gateway.usecase.bundle import UserCases

# Most reports of a trial that are read at once.
MAX_REPORTS = 10_000


async def list_of_experiment(call: Call) -> Json:
    return await _list(call, call.number("id"))


async def list_of_trial(call: Call) -> Json:
    trial_id = trial_id_of(call.number("id"))
    return await _list(call, experiment_id_of(trial_id), trial_id)


async def _list(call: Call, experiment_id: int, trial_id: str = "") -> Json:
    """Lists checkpoints, of one trial where it is given. The client finds the best ones by sorting: by the searcher's
    metric, in its own direction unless the caller gives one."""
    states = call.query.getlist("states")
    wanted = [
        each
        for each in await call.cases.checkpoints.list(experiment_id)
        if trial_id in ("", each.trial_id) and (not states or checkpoint_state_name(each.state) in states)
    ]
    origin = await _origin(call, experiment_id)
    config = _config_of(origin)
    validations = {each: await _validations(call, each) for each in {each.trial_id for each in wanted}}
    described = [describe(each, origin, config, validations[each.trial_id]) for each in wanted]
    metric = call.query.get("sortByMetric", "")
    is_best_first = call.query.get("sortByAttr") == "SORT_BY_SEARCHER_METRIC"
    is_descending = call.query.get("orderBy") == "ORDER_BY_DESC"
    if metric or is_best_first:
        known = [each for each in described if _value(each, metric) is not None]
        others = [each for each in described if _value(each, metric) is None]
        if is_best_first and not call.query.get("orderBy") and known:
            settled = settle_values(known[0]["training"].get("experimentConfig"))
            is_descending = not settled.searcher.smaller_is_better
        known.sort(key=lambda each: float(_value(each, metric) or 0.0), reverse=is_descending)
        described = known + others
    elif call.query.get("sortByAttr") == "SORT_BY_BATCH_NUMBER":
        described.sort(key=lambda each: int(each["metadata"]["steps_completed"]), reverse=is_descending)
    elif is_descending:
        described.reverse()
    shown, pagination = page_of(described, call)
    return {"checkpoints": shown, "pagination": pagination}


def _value(described: Json, metric: str) -> float | None:
    """Returns the metric, or the searcher's; None for one that is not there or is no number."""
    training = described["training"]
    value = training["validationMetrics"]["avgMetrics"].get(metric) if metric else training.get("searcherMetric")
    return value if isinstance(value, float | int) else None


async def find(call: Call) -> Json:
    checkpoint = call.cases.checkpoints.find(call.path["uuid"])
    origin = await _origin(call, checkpoint.experiment_id)
    validations = await _validations(call, checkpoint.trial_id)
    return {"checkpoint": describe(checkpoint, origin, _config_of(origin), validations)}


async def delete(call: Call) -> Json:
    """Deletes all of the checkpoints or none."""
    await call.cases.checkpoints.delete(_uuids(call))
    return {}


async def remove_files(call: Call) -> Json:
    """Deletes whole checkpoints, of which every file is named; single files of one cannot be deleted. Without patterns
    Determined only counts the files again, which changes nothing here."""
    patterns = call.body.get("checkpointGlobs")
    if not patterns:
        for checkpoint_id in _uuids(call):
            call.cases.checkpoints.find(checkpoint_id)
        return {}
    if patterns not in (["**"], ["**/*"]):
        raise invalid(
            "request.lacking", "a checkpoint is deleted as a whole, not by file; use: det checkpoint delete UUID"
        )
    return await delete(call)


def _uuids(call: Call) -> list[str]:
    uuids = call.body.get("checkpointUuids")
    if isinstance(uuids, list) and all(isinstance(each, str) for each in uuids):
        return uuids
    raise invalid("request.invalid", "checkpointUuids is no list of ids")


async def _origin(call: Call, experiment_id: int) -> ExperimentView | None:
    """Returns the experiment of checkpoints; None where they outlive it for a moment, because they were moved aside."""
    try:
        return await call.cases.experiments.view(experiment_id)
    except GanglineError:
        return None


@dataclass(frozen=True, slots=True)
class _Config:
    """The configuration of an experiment, read once for all of its checkpoints."""

    document: Json
    searcher_metric: str


def _config_of(origin: ExperimentView | None) -> _Config:
    document = load(origin.experiment.config_json) if origin is not None else {}
    # Only the section that counts here.
    return _Config(document, settle_values(document, "searcher").searcher.metric)


def describe(
    checkpoint: Checkpoint,
    origin: ExperimentView | None,
    config: _Config,
    validations: Mapping[int, Mapping[str, float]],
) -> Json:
    """Returns v1Checkpoint. origin: its experiment. validations: of its trial, by their batches."""
    metadata = {"steps_completed": checkpoint.batches_completed, **load(checkpoint.metadata_json)}
    return {
        "uuid": checkpoint.id,
        "taskId": checkpoint.trial_id,
        "allocationId": None,
        "reportTime": start_instant(checkpoint.created_at),
        "resources": describe_resources(checkpoint),
        "metadata": metadata,
        "state": checkpoint_state_name(checkpoint.state),
        "training": _training(checkpoint, origin, config, dict(validations.get(checkpoint.batches_completed, {}))),
    }


def _training(
    checkpoint: Checkpoint, origin: ExperimentView | None, config: _Config, metrics: dict[str, float]
) -> Json:
    """Returns where the checkpoint comes from. metrics: of the validation at the same number of batches."""
    trials = (
        [view.trial for view in origin.trials if view.trial.id == checkpoint.trial_id] if origin is not None else []
    )
    if origin is None or not trials:
        return {"validationMetrics": {"avgMetrics": {}}}
    searcher_metric = metrics.get(config.searcher_metric, math.nan)
    if checkpoint.is_past_length:
        # Trials are compared at equal length.
        searcher_metric = math.nan
    folder = checkpoint.url.removeprefix("file://").rpartition("/")[0] if checkpoint.url.startswith("file://") else ""
    return {
        "trialId": number_of(checkpoint.trial_id),
        "experimentId": checkpoint.experiment_id,
        "experimentConfig": with_storage(config.document, folder),
        "hparams": load(trials[0].hyperparameters_json),
        "trainingMetrics": {"avgMetrics": {}},
        "validationMetrics": {"avgMetrics": metrics_json(metrics)},
        **({"searcherMetric": searcher_metric} if math.isfinite(searcher_metric) else {}),
    }


async def _validations(call: Call, trial_id: str) -> dict[int, dict[str, float]]:
    """Returns the trial's validations by their batches; the newest one counts. An imported checkpoint has no trial."""
    if not trial_id:
        return {}
    scope = Scope(experiment_id_of(trial_id), trial_id, "validation")
    page = await call.cases.records.metrics_page(scope, 0, MAX_REPORTS, has_values=False)
    return {row.point.batches_completed: dict(row.point.metrics) for row in page.rows}


def describe_resources(checkpoint: Checkpoint) -> dict[str, str]:
    """Returns the sizes of the files; a folder is written with a slash."""
    if checkpoint.state is CheckpointState.DELETING:
        return {}
    return {path: str(num_bytes) for path, num_bytes in checkpoint.file_bytes.items()}


async def archive(cases: UserCases, checkpoint_id: str) -> AsyncIterator[bytes]:
    """Yields the files of a checkpoint as a gzipped tar. The metadata of Determined's form is its `metadata.json`."""
    checkpoint = cases.checkpoints.find(checkpoint_id)
    packer = zlib.compressobj(level=1, wbits=31)
    for path in (*sorted(checkpoint.file_bytes), METADATA_FILE):
        size = checkpoint.file_bytes.get(path)
        chunks = cases.checkpoints.read_file(checkpoint_id, path)
        # The size of the manifest is on no record.
        whole = b"" if size is not None else b"".join([chunk async for chunk in chunks])
        member = tarfile.TarInfo(path)
        member.size = len(whole) if size is None else size
        member.mtime = int(checkpoint.created_at)
        yield packer.compress(member.tobuf(tarfile.PAX_FORMAT))
        if whole:
            yield packer.compress(whole)
        num_bytes = len(whole)
        if size is not None:
            async for chunk in chunks:
                num_bytes += len(chunk)
                yield packer.compress(chunk)
        if num_bytes != member.size:
            # The answer has begun, so it can only break off: the client sees an archive without an end.
            raise invalid("checkpoint.damaged", f"{path} of {checkpoint_id} has {num_bytes} bytes, not {member.size}")
        yield packer.compress(b"\0" * (-num_bytes % tarfile.BLOCKSIZE))
    yield packer.compress(b"\0" * (2 * tarfile.BLOCKSIZE))
    yield packer.flush()


ROUTES: Routes = (
    ("GET", "/api/v1/experiments/{id}/checkpoints", list_of_experiment),
    ("GET", "/api/v1/trials/{id}/checkpoints", list_of_trial),
    ("GET", "/api/v1/checkpoints/{uuid}", find),
    ("DELETE", "/api/v1/checkpoints", delete),
    ("POST", "/api/v1/checkpoints/rm", remove_files),
)
