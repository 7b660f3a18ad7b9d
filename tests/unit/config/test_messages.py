"""Every error that a configuration can have, with its whole message: path, line, what was found, what is expected."""

from __future__ import annotations

import pytest

from gangline.config import parse_config
from gangline.errors import GanglineError

GOOD = """\
name: digits
entrypoint: model_def:DigitsTrial
hyperparameters:
  global_batch_size: 64
  lr: 1e-3
  optimizer:
    beta: {type: double, minval: 0, maxval: 1}
searcher:
  name: single
  metric: accuracy
  max_length: {epochs: 3}
resources:
  slots_per_trial: 4
"""

_FRACTION = "expected a whole number such as 64, found the number 32.5"
CASES = [
    (
        "resources:\n  slots_per_trial",
        "resources:\n  slot_per_trial",
        "config.unknown_key",
        "resources.slot_per_trial (line 13): unknown key; did you mean slots_per_trial?",
    ),
    (
        "name: digits",
        "entripoint: x",
        "config.unknown_key",
        "entripoint (line 1): unknown key; did you mean entrypoint?",
    ),
    (
        "resources:\n",
        "reproducibility:\n  zzz: 1\nresources:\n",
        "config.unknown_key",
        "reproducibility.zzz (line 13): unknown key; known here are experiment_seed",
    ),
    (
        "name: digits",
        "zzz: 1",
        "config.unknown_key",
        "zzz (line 1): unknown key; known here are async_checkpoints, bind_mounts, checkpoint_policy, "
        "checkpoint_storage, data, data_layer, debug, description, entrypoint, environment, hang_detection, "
        "hyperparameters and more",
    ),
    (
        "metric: accuracy",
        "metric: accuracy\n  max_trials: 5",
        "config.unknown_key",
        "searcher.max_trials (line 11): has no meaning for the searcher 'single'; remove it",
    ),
    (
        "slots_per_trial: 4",
        "slots_per_trial: two",
        "config.wrong_type",
        "resources.slots_per_trial (line 13): expected an integer, found the string 'two'",
    ),
    (
        "slots_per_trial: 4",
        "slots_per_trial: 2.5",
        "config.wrong_type",
        "resources.slots_per_trial (line 13): expected an integer, found the number 2.5",
    ),
    (
        "slots_per_trial: 4",
        "slots_per_trial: true",
        "config.wrong_type",
        "resources.slots_per_trial (line 13): expected an integer, found the boolean true",
    ),
    (
        "name: digits",
        "name: [digits]",
        "config.wrong_type",
        "name (line 1): expected a string, found a list",
    ),
    (
        "name: digits",
        "labels: vision",
        "config.wrong_type",
        "labels (line 1): expected a list, found the string 'vision'",
    ),
    (
        "name: digits",
        "labels: [a, 1]",
        "config.wrong_type",
        "labels[1] (line 1): expected a string, found the integer 1",
    ),
    (
        "{epochs: 3}",
        "soon",
        "config.wrong_type",
        "searcher.max_length (line 11): expected a mapping, found the string 'soon'",
    ),
    (
        "entrypoint: model_def:DigitsTrial",
        "entrypoint: 5",
        "config.wrong_type",
        "entrypoint (line 2): expected a string or a list of strings, found the integer 5",
    ),
    (
        "maxval: 1",
        "maxval: high",
        "config.wrong_type",
        "hyperparameters.optimizer.beta.maxval (line 7): expected a number, found the string 'high'",
    ),
    (
        "name: digits",
        "resources: {shm_size: huge}",
        "config.duplicate_key",
        "line 12: resources stands here a second time (first on line 1); keep one",
    ),
    (
        "slots_per_trial: 4",
        "shm_size: huge",
        "config.wrong_type",
        "resources.shm_size (line 13): expected a size in bytes, or one as 4GiB, found the string 'huge'",
    ),
    (
        "slots_per_trial: 4",
        "slots_per_trial: 0",
        "config.invalid_value",
        "resources.slots_per_trial (line 13): 0 slots are for a script, and this entrypoint runs in every slot; use "
        "at least 1",
    ),
    (
        "slots_per_trial: 4",
        "priority: 100",
        "config.invalid_value",
        "resources.priority (line 13): must be at most 99, found 100",
    ),
    (
        "name: single",
        "name: singel",
        "config.invalid_value",
        "searcher.name (line 9): must be one of single, random, grid, adaptive_asha, async_halving, tpe, optuna, "
        "custom, found the string 'singel'; did you mean single?",
    ),
    (
        "{epochs: 3}",
        "{epochs: 3, batches: 5}",
        "config.invalid_value",
        "searcher.max_length (line 11): expected one of batches, records and epochs, found batches and epochs",
    ),
    (
        "{epochs: 3}",
        "0",
        "config.invalid_value",
        "searcher.max_length.batches (line 11): must be at least 1, found 0",
    ),
    (
        "maxval: 1",
        "maxval: -1",
        "config.invalid_value",
        "hyperparameters.optimizer.beta.maxval (line 7): must be above minval 0, found -1",
    ),
    (
        "type: double",
        "type: duble",
        "config.invalid_value",
        "hyperparameters.optimizer.beta.type (line 7): must be one of const, int, double, log, categorical, "
        "found the string 'duble'",
    ),
    (
        "name: digits",
        "environment: {environment_variables: {DB_PASS: hidden}}",
        "config.wrong_type",
        "environment.environment_variables (line 1): expected a list of NAME=VALUE, found a mapping; write "
        '["DB_PASS=..."]',
    ),
    (
        "name: digits",
        "environment: {environment_variables: [PATH]}",
        "config.invalid_value",
        "environment.environment_variables[0] (line 1): expected NAME=VALUE, found 'PATH'",
    ),
    (
        "name: digits",
        "parallelism: {strategy: ddp, stages: 2}",
        "config.invalid_value",
        "parallelism.stages (line 1): belongs to pipeline, but the strategy is ddp",
    ),
    (
        "name: digits",
        "parallelism: {strategy: pipeline, schedule: 1F1}",
        "config.invalid_value",
        "parallelism.schedule (line 1): there is no schedule '1F1'; did you mean 1F1B? use GPipe, 1F1B, "
        "Interleaved1F1B, ZBVZeroBubble",
    ),
    (
        "name: digits",
        "parallelism: {strategy: ddp, activation_checkpointing: block}",
        "config.invalid_value",
        "parallelism.activation_checkpointing (line 1): there is no activation checkpointing 'block'; did you mean "
        "blocks? use none, blocks, full",
    ),
    (
        "name: digits",
        "parallelism: {strategy: pipeline, schedule: ZBVZeroBubble, activation_checkpointing: full}",
        "config.invalid_value",
        "parallelism.activation_checkpointing (line 1): ZBVZeroBubble computes the gradients of inputs and weights "
        "apart, which would recompute activations twice; use schedule: 1F1B",
    ),
    (
        "name: digits",
        "parallelism: {strategy: pipeline, replicas: zero3}",
        "config.invalid_value",
        "parallelism.replicas (line 1): there is no strategy of replicas 'zero3'; did you mean zero2? use ddp, zero2",
    ),
    (
        "name: digits",
        "parallelism: {strategy: pipeline, split: parameter}",
        "config.invalid_value",
        "parallelism.split (line 1): there is no split 'parameter'; did you mean parameters? use parameters, time, or "
        "a list of modules, as in [blocks.4, blocks.8]",
    ),
    (
        "name: digits",
        "parallelism: {strategy: pipeline, stages: 1}",
        "config.invalid_value",
        "parallelism.stages (line 1): a pipeline has at least 2 stages; use ddp for 1",
    ),
    (
        "name: digits",
        "parallelism: {strategy: pipeline, stages: 3}",
        "config.invalid_value",
        "parallelism (line 1): pipeline trains each replica on 3 slots, but resources.slots_per_trial is 4, no "
        "multiple of that; use 6 slots, or stages: 2",
    ),
    (
        "name: digits",
        "parallelism: {strategy: pipeline, microbatches: 2}",
        "config.invalid_value",
        "parallelism (line 1): 1F1B needs at least as many microbatches as stages, but there are 2 for 4 stages; use "
        "4 for the 64 records of a replica's batch, or schedule: GPipe",
    ),
    (
        "name: digits",
        "parallelism: {strategy: pipeline, stages: 2, split: [a, b]}",
        "config.invalid_value",
        "parallelism.split (line 1): split names 2 modules, but 2 stages with 1F1B are 2 parts; name the module "
        "with which the second part begins",
    ),
    (
        "name: digits",
        "parallelism: none",
        "config.invalid_value",
        "parallelism (line 1): none trains on one slot, but resources.slots_per_trial is 4; use ddp",
    ),
    (
        "entrypoint: model_def:DigitsTrial",
        "entrypoint: ''",
        "config.invalid_value",
        "entrypoint (line 2): is empty; name a trial as in model_def:MyTrial, or a command",
    ),
    (
        "name: digits",
        "profiling: {begin_on_batch: 5, end_after_batch: 2}",
        "config.invalid_value",
        "profiling.end_after_batch (line 1): must be at least begin_on_batch 5, found 2",
    ),
    (
        "entrypoint: model_def:DigitsTrial\n",
        "",
        "config.missing_key",
        "entrypoint: required, but missing",
    ),
    (
        "  metric: accuracy\n",
        "",
        "config.missing_key",
        "searcher.metric (line 8): required, but missing",
    ),
    (
        "  max_length: {epochs: 3}\n",
        "",
        "config.missing_key",
        "searcher.max_length (line 8): required for a trial class, but missing",
    ),
    (
        "name: single",
        "name: random",
        "config.missing_key",
        "searcher.max_trials (line 8): required by the searcher 'random', but missing",
    ),
    (
        "global_batch_size: 64",
        "global_batch_size: 3",
        "config.batch_too_small",
        "hyperparameters.global_batch_size (line 4): 3 is smaller than the 4 slots of resources.slots_per_trial; "
        "use at least 4, or fewer slots",
    ),
    *(
        (
            "global_batch_size: 64",
            f"global_batch_size: {written}",
            "config.wrong_type",
            f"hyperparameters.global_batch_size{place} (line 4): {text}",
        )
        for written, place, text in (
            ("'16'", "", "expected a whole number such as 64, found the string '16'"),
            ("16.5", "", "expected a whole number such as 64, found the number 16.5"),
            ("16.0", "", "expected a whole number such as 64, found the number 16.0"),
            ("true", "", "expected a whole number such as 64, found the boolean true"),
            ("null", "", "expected a whole number such as 64, found nothing"),
            ("[16, 32]", "", "expected a whole number such as 64, found a list"),
            ("{small: 16}", "", "expected a whole number such as 64, found a mapping"),
            ("{type: const, val: '16'}", ".val", "expected a whole number such as 64, found the string '16'"),
            ("{type: categorical, vals: [64, 32.5]}", ".vals[1]", _FRACTION),
            *(
                (
                    f"{{type: {range_type}, minval: 1, maxval: 6}}",
                    ".type",
                    f"a range of type {range_type} draws fractions, but records are counted; use type: int",
                )
                for range_type in ("double", "log")
            ),
        )
    ),
    (
        "global_batch_size: 64",
        "global_batch_size: {type: categorical, vals: [64, 2]}",
        "config.batch_too_small",
        "hyperparameters.global_batch_size (line 4): 2 is smaller than the 4 slots of resources.slots_per_trial; "
        "use at least 4, or fewer slots",
    ),
    (
        "metric: accuracy",
        "metric: accuracy\n  source_trial_id: 7.1",
        "config.wrong_type",
        'searcher.source_trial_id (line 11): expected the id of a trial in quotation marks, as "7.1", found the number '
        "7.1",
    ),
    (
        "metric: accuracy",
        "metric: accuracy\n  source_trial_id: 7",
        "config.wrong_type",
        'searcher.source_trial_id (line 11): expected the id of a trial, as "7.1" or 700001, found the integer 7',
    ),
    (
        "metric: accuracy",
        "metric: accuracy\n  source_trial_id: '7.1'\n  source_checkpoint_uuid: abc",
        "config.invalid_value",
        "searcher.source_checkpoint_uuid (line 12): names a second source; keep this one or source_trial_id",
    ),
    (
        "name: single",
        "name: grid",
        "config.missing_key",
        "hyperparameters.optimizer.beta.count (line 7): required by the searcher 'grid', but missing",
    ),
    (
        "maxval: 1}\nsearcher:\n  name: single",
        "maxval: 1, count: 30000}\nsearcher:\n  name: grid",
        "config.invalid_value",
        "hyperparameters (line 3): has 30000 points, and a search has at most 10000 trials; lower a count",
    ),
    (
        "  slots_per_trial: 4",
        "  slots_per_trial: 4\n  max_slots: 3",
        "config.invalid_value",
        "resources.max_slots (line 14): 3 is below the 4 slots of one trial, so none could ever start; use at least 4",
    ),
    (
        "name: digits",
        "parallelism: zero4",
        "config.invalid_value",
        "parallelism (line 1): must be one of auto, none, ddp, zero1, zero2, zero3, hsdp, pipeline, "
        "found the string 'zero4'; did you mean zero3?",
    ),
    (
        "slots_per_trial: 4",
        "slots_per_trial: 1\nparallelism: zero2",
        "config.invalid_value",
        "parallelism (line 14): zero2 divides the state of a trial over its slots, but resources.slots_per_trial is 1; "
        "use none, or at least 2 slots",
    ),
    (
        "slots_per_trial: 4",
        "slots_per_trial: 5\nparallelism: hsdp",
        "config.invalid_value",
        "parallelism (line 14): hsdp needs an even number of slots, at least 4, because it makes equal copies of a "
        "divided trial, but resources.slots_per_trial is 5; use zero3, or 6 slots",
    ),
    (
        "name: digits",
        "parallelism: {strategy: ddp, blocks: [Block]}",
        "config.invalid_value",
        "parallelism.blocks (line 1): belongs to zero2, zero3 and hsdp, but the strategy is ddp",
    ),
    (
        "name: digits",
        "log_policies:\n  - pattern: fine\n  - name: bad\n    pattern: '(unclosed'",
        "config.invalid_value",
        "log_policies[1].pattern (line 4): '(unclosed' is no pattern of RE2: missing ): (unclosed; write it as "
        "https://github.com/google/re2/wiki/Syntax says, without lookaround and backreferences",
    ),
    (
        "name: digits",
        "log_policies: [{pattern: 'out of (?!host).*memory'}]",
        "config.invalid_value",
        "log_policies[0].pattern (line 1): 'out of (?!host).*memory' is no pattern of RE2: invalid perl operator: (?!; "
        "write it as https://github.com/google/re2/wiki/Syntax says, without lookaround and backreferences",
    ),
    (
        "name: digits",
        "log_policies: [{pattern: x, action: {type: send_mail}}]",
        "config.invalid_value",
        "log_policies[0].action (line 1): must be cancel_retries or exclude_node, found 'send_mail'",
    ),
    (
        "name: digits",
        "log_policies: [{pattern: x, action: {type: exclude_node, launch_error: true}}]",
        "config.invalid_value",
        "log_policies[0].action (line 1): expected only type, as in action: {type: cancel_retries}",
    ),
    (
        "name: digits",
        "hang_detection: {seconds: 0}",
        "config.invalid_value",
        "hang_detection.seconds (line 1): must be above 0, found 0",
    ),
    (
        "name: digits",
        "hang_detection: {factor: 0.5}",
        "config.invalid_value",
        "hang_detection.factor (line 1): must be at least 1, found 0.5",
    ),
    (
        "name: digits",
        "hang_detection: {start_seconds: -1}",
        "config.invalid_value",
        "hang_detection.start_seconds (line 1): must be above 0, found -1",
    ),
    (
        "name: digits",
        "hang_detection: {rest_seconds: 0}",
        "config.invalid_value",
        "hang_detection.rest_seconds (line 1): must be above 0, found 0",
    ),
    (
        "name: digits",
        "name: one\nname: two",
        "config.duplicate_key",
        "line 2: name stands here a second time (first on line 1); keep one",
    ),
    (
        "name: digits",
        "name: [digits",
        "config.syntax",
        "line 2, column 11: this is no valid YAML: a comma or the closing ] is missing",
    ),
    (
        "slots_per_trial: 4",
        "slots_per_trial: x\n  weight: y",
        "config.wrong_type",
        "resources.slots_per_trial (line 13): expected an integer, found the string 'x' (and 1 more to correct)",
    ),
]


@pytest.mark.parametrize(("old", "new", "code", "message"), CASES, ids=[case[3][:50] for case in CASES])
def test_error_names_place_and_remedy(old: str, new: str, code: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(GanglineError) as caught:
        parse_config(GOOD.replace(old, new, 1))
    assert (caught.value.code, caught.value.message) == (code, message)


@pytest.mark.parametrize(
    ("text", "description"),
    [("- a\n", "a list"), ("digits", "the string 'digits'")],
    ids=["list", "word"],
)
def test_text_that_is_no_mapping(text: str, description: str) -> None:
    with pytest.raises(GanglineError) as caught:
        parse_config(text)
    assert caught.value.code == "config.wrong_type"
    assert caught.value.message == f"the configuration: expected a mapping such as name: ..., found {description}"


def test_good_one_has_no_warnings() -> None:
    assert parse_config(GOOD)[1] == []


def test_dropped_remainder_is_a_warning_with_old_new_and_slots() -> None:
    _, warnings = parse_config(GOOD.replace("64", "66"))
    assert warnings == [
        "hyperparameters.global_batch_size: 66 is no multiple of 4 slots; training uses 64 (16 on each slot)"
    ]


def test_fields_without_effect_are_accepted_with_a_warning() -> None:
    _, warnings = parse_config(GOOD + "  shm_size: 4GiB\nenvironment: {ports: {x: 1}}\nslurm: {gpu_type: a}\n")
    assert warnings == [
        "environment.ports: accepted, but has no effect here (a trial uses the network and the devices of its machine)",
        "slurm: accepted, but has no effect here (Gangline schedules by itself)",
        "resources.shm_size: accepted, but has no effect without environment.image",
    ]
    assert parse_config(GOOD + "  shm_size: 4GiB\nenvironment: {image: det/base}\n")[1] == []


def test_what_is_kept_of_checkpoints_has_an_effect() -> None:
    numbers = "save_experiment_best: 2, save_trial_best: 3, save_trial_latest: 0"
    config, warnings = parse_config(GOOD + f"checkpoint_storage: {{{numbers}}}\n")
    assert warnings == []
    storage = config.checkpoint_storage
    assert (storage.save_experiment_best, storage.save_trial_best, storage.save_trial_latest) == (2, 3, 0)


@pytest.mark.parametrize("text", ["", "# only a comment\n", "null\n"])
def test_empty_text_names_the_least_keys(text: str) -> None:
    with pytest.raises(GanglineError) as caught:
        parse_config(text)
    assert caught.value.message == "the configuration is empty; it needs at least entrypoint and searcher"


def test_options_of_a_launcher_without_effect_are_named() -> None:
    line = "python3 -m determined.launch.torch_distributed --rdzv_conf timeout=60 --max-restarts=2 -- python3 train.py"
    _, warnings = parse_config(GOOD.replace("model_def:DigitsTrial", line))
    assert warnings == [
        "entrypoint: --rdzv_conf=timeout=60, --max-restarts=2: accepted, but without effect here (the trial runner "
        "starts one rank in each slot and connects them)"
    ]


def test_a_launcher_that_gangline_does_not_have_is_refused() -> None:
    with pytest.raises(GanglineError) as caught:
        parse_config(GOOD.replace("model_def:DigitsTrial", "python3 -m determined.launch.horovod --trial m:T"))
    assert caught.value.message == (
        "entrypoint (line 2): runs determined.launch.horovod: Horovod is not part of Gangline; use "
        "determined.launch.torch_distributed with determined.pytorch, whose gradients are averaged by DDP"
    )


def test_a_script_may_have_no_slot() -> None:
    text = GOOD.replace("model_def:DigitsTrial", "python3 train.py").replace("slots_per_trial: 4", "slots_per_trial: 0")
    config, warnings = parse_config(text)
    assert (config.resources.slots_per_trial, warnings) == (0, [])
