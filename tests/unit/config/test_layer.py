"""Settings that an experiment inherits: how layers merge, which of them wins, and the checks of a template."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from gangline.config import named_home, parse_config, read_config
from gangline.config.layer.lookup import find_home, find_named
from gangline.config.layer.template_check import check_name, check_storage, defaults_layer, read_storage, read_template
from gangline.config.merge import describe_merged, merge
from gangline.domain.experiment import ConfigLayer, Inheritance, Project, ProjectDefaults, Template, Workspace
from gangline.domain.named_kind import TEMPLATE, WORKSPACE
from gangline.errors import GanglineError

MINIMAL = "entrypoint: python3 train.py\nsearcher: {name: single, metric: loss}\n"


def _layer(text: str, source: str = "template base") -> ConfigLayer:
    return ConfigLayer(source, json.dumps(yaml.safe_load(text)))


def _merged(low: str, high: str) -> Any:
    return merge([_layer(low)], yaml.safe_load(high) or {}).values


@pytest.mark.parametrize(
    ("template", "own", "result"),
    [
        pytest.param("a: 1", "b: 2", "{a: 1, b: 2}", id="different keys"),
        pytest.param("a: 1", "a: 2", "a: 2", id="a scalar: the experiment's wins"),
        pytest.param("a: {x: 1, y: 1}", "a: {y: 2, z: 2}", "a: {x: 1, y: 2, z: 2}", id="mappings merge"),
        pytest.param("a: {b: {x: 1}}", "a: {b: {y: 2}}", "a: {b: {x: 1, y: 2}}", id="mappings merge at any depth"),
        pytest.param("a: [1, 2]", "a: [2, 3]", "a: [1, 2, 2, 3]", id="lists: the template's first"),
        pytest.param("labels: [a, b]", "labels: [b, c]", "labels: [a, b, c]", id="a label occurs once"),
        pytest.param("a: 1", "a: null", "a: 1", id="null counts as absent"),
        pytest.param("a: null", "a: 1", "a: 1", id="also in the template"),
        pytest.param("a: {x: 1}", "a: {}", "a: {x: 1}", id="an empty mapping sets nothing"),
        pytest.param("a: {x: 1}", "a: 3", "a: 3", id="another type replaces"),
        pytest.param("a: [1]", "a: {x: 1}", "a: {x: 1}", id="also of a list"),
        pytest.param("entrypoint: [python3, a.py]", "entrypoint: [b]", "entrypoint: [b]", id="an entrypoint is whole"),
        pytest.param(
            "searcher: {max_length: {batches: 5}}",
            "searcher: {max_length: {epochs: 1}}",
            "searcher: {max_length: {epochs: 1}}",
            id="a length is whole",
        ),
        pytest.param(
            "hyperparameters: {lr: {type: double, minval: 0, maxval: 1}, b: 8}",
            "hyperparameters: {lr: 0.5}",
            "hyperparameters: {lr: 0.5, b: 8}",
            id="a hyperparameter is whole",
        ),
        pytest.param(
            "hyperparameters: {lr: {type: double, minval: 0, maxval: 1}}",
            "hyperparameters: {lr: {type: int, minval: 1, maxval: 2}}",
            "hyperparameters: {lr: {type: int, minval: 1, maxval: 2}}",
            id="of another type too",
        ),
        pytest.param(
            "hyperparameters: {sizes: [1, 2], net: {width: 3, depth: 1}}",
            "hyperparameters: {sizes: [4], net: {width: 5}}",
            "hyperparameters: {sizes: [4], net: {width: 5, depth: 1}}",
            id="lists of hyperparameters are whole, groups merge",
        ),
        pytest.param(
            "searcher: {name: random, metric: loss, max_trials: 9, smaller_is_better: false}",
            "searcher: {name: single}",
            "searcher: {name: single, metric: loss, smaller_is_better: false}",
            id="keys of another searcher are dropped",
        ),
        pytest.param(
            "checkpoint_storage: {type: s3, bucket: b, save_trial_best: 4}",
            "checkpoint_storage: {type: shared_fs, host_path: /x}",
            "checkpoint_storage: {type: shared_fs, host_path: /x, save_trial_best: 4}",
            id="keys of another storage are dropped",
        ),
        pytest.param(
            "checkpoint_storage: {type: s3, bucket: b}",
            "checkpoint_storage: {prefix: p}",
            "checkpoint_storage: {type: s3, bucket: b, prefix: p}",
            id="keys of the same storage stay",
        ),
        pytest.param(
            "environment: {environment_variables: [A=1]}",
            "environment: {environment_variables: {cuda: [B=2]}}",
            "environment: {environment_variables: {cpu: [A=1], cuda: [A=1, B=2], rocm: [A=1]}}",
            id="environment variables in both forms",
        ),
    ],
)
def test_two_layers_merge(template: str, own: str, result: str) -> None:
    assert _merged(template, own) == yaml.safe_load(result)


_SETTINGS: dict[str, Any] = {
    "workspace": ProjectDefaults("of-workspace", '{"save_trial_best": 2}'),
    "project": ProjectDefaults("of-project", '{"save_trial_best": 3}'),
    "template": "{resources: {resource_pool: of-template}, checkpoint_storage: {save_trial_best: 4}}",
    "own": "resources: {resource_pool: own}\ncheckpoint_storage: {save_trial_best: 5}\n",
}


@pytest.mark.parametrize(
    ("present", "pool", "save_trial_best"),
    [
        ((), "", 1),
        (("workspace",), "of-workspace", 2),
        (("project",), "of-project", 3),
        (("workspace", "project"), "of-project", 3),
        (("template",), "of-template", 4),
        (("workspace", "template"), "of-template", 4),
        (("workspace", "project", "template"), "of-template", 4),
        (("workspace", "own"), "own", 5),
        (("project", "own"), "own", 5),
        (("template", "own"), "own", 5),
        (("workspace", "project", "template", "own"), "own", 5),
    ],
)
def test_the_order_of_precedence(present: tuple[str, ...], pool: str, save_trial_best: int) -> None:
    """Workspace, project, template, the experiment's own YAML: each beats those before it."""
    layers = []
    for kind in ("workspace", "project", "template"):
        setting = _SETTINGS[kind] if kind in present else None
        if isinstance(setting, ProjectDefaults):
            layer = defaults_layer(f"{kind} x", setting)
            assert layer is not None
            layers.append(layer)
        elif setting is not None:
            layers.append(_layer(setting))
    own = str(_SETTINGS["own"]) if "own" in present else ""
    config, _ = parse_config(MINIMAL + own, Inheritance(layers=tuple(layers)))
    assert (config.resources.resource_pool, config.checkpoint_storage.save_trial_best) == (pool, save_trial_best)


def test_one_default_leaves_the_other_to_the_weaker_layer() -> None:
    layers = [
        defaults_layer("workspace w", ProjectDefaults("big", '{"save_trial_best": 2}')),
        defaults_layer("project p", ProjectDefaults("", '{"save_trial_latest": 7}')),
    ]
    config, _ = parse_config(MINIMAL, Inheritance(layers=tuple(layer for layer in layers if layer)))
    storage = config.checkpoint_storage
    assert (config.resources.resource_pool, storage.save_trial_best, storage.save_trial_latest) == ("big", 2, 7)
    assert defaults_layer("project p", ProjectDefaults(template="base")) is None


def test_a_template_completes_an_experiment_that_names_little() -> None:
    base = _layer("searcher: {name: single, metric: loss}\nname: shared\n")
    config, warnings = parse_config("entrypoint: python3 train.py\n", Inheritance(layers=(base,)))
    assert (config.name, config.searcher.metric, warnings) == ("shared", "loss", [])
    again, _ = read_config({"entrypoint": "python3 train.py"}, Inheritance(layers=(base,)))
    assert again == config


def test_the_project_is_written_into_the_configuration() -> None:
    config, _ = parse_config(MINIMAL, Inheritance("lab", "vision", 7))
    assert (config.workspace, config.project) == ("lab", "vision")
    config, _ = parse_config(MINIMAL, Inheritance())
    assert (config.workspace, config.project) == ("", "")


@pytest.mark.parametrize(
    ("template", "own", "message"),
    [
        (
            "resources: {priority: 3}",
            "resources: {weight: 2, prioriti: 3}",
            "resources.prioriti (line 3): unknown key; did you mean priority?",
        ),
        (
            "resources: {priority: 200}",
            "resources: {weight: 2}",
            "resources.priority (template base): must be at most 99, found 200",
        ),
        (
            "labels: [a, b]",
            "labels:\n- c\n- 3",
            "labels[3] (line 5): expected a string, found the integer 3",
        ),
        (
            "labels: [a, 2]",
            "labels: [c]",
            "labels[1] (template base): expected a string, found the integer 2",
        ),
    ],
)
def test_a_mistake_is_found_where_it_was_written(template: str, own: str, message: str) -> None:
    with pytest.raises(GanglineError) as raised:
        parse_config(MINIMAL + own, Inheritance(layers=(_layer(template),)))
    assert raised.value.message == message


def test_each_setting_is_described_with_its_source() -> None:
    layers = [_layer("labels: [a]\nresources: {priority: 3}", "project p"), _layer("labels: [b]", "template t")]
    assert describe_merged(merge(layers, {})) == [
        'labels: ["a", "b"]  (project p, template t)',
        "resources.priority: 3  (project p)",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "resources: {priority: 3}",
        "searcher: {max_length: 100}",
        "searcher: {name: random, max_trials: 3}",
        "hyperparameters: {global_batch_size: 2}\nresources: {slots_per_trial: 4}",
        "entrypoint: model_def:T",
        "data: {day: 2026-01-02}",
    ],
)
def test_a_template_may_be_incomplete(text: str) -> None:
    assert json.loads(read_template(text)).keys() == yaml.safe_load(text).keys()


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("", "config.wrong_type", "the template: is empty; write settings as in an experiment's YAML"),
        ("{}", "config.wrong_type", "the template: is empty; write settings as in an experiment's YAML"),
        (
            "- a",
            "config.wrong_type",
            "the template: expected a mapping such as resources: ..., found a list; write settings as in an "
            "experiment's YAML",
        ),
        (
            "name: x\nresourcs: {priority: 3}",
            "config.unknown_key",
            "the template: resourcs (line 2): unknown key; did you mean resources?",
        ),
        (
            "resources:\n  priority: 0",
            "config.invalid_value",
            "the template: resources.priority (line 2): must be at least 1, found 0",
        ),
        (
            "entrypoint: 3",
            "config.wrong_type",
            "the template: entrypoint (line 1): expected a string or a list of strings, found the integer 3",
        ),
        (
            "project: p",
            "config.unknown_key",
            "the template: project (line 1): the project chooses the template, so a template cannot choose it; remove "
            "the key",
        ),
        ("a: [", "config.syntax", None),
    ],
)
def test_a_template_is_checked(text: str, code: str, message: str | None) -> None:
    with pytest.raises(GanglineError) as raised:
        read_template(text)
    assert raised.value.code == code
    assert message in (None, raised.value.message)


def test_a_default_storage_is_checked_as_the_section() -> None:
    assert read_storage("save_trial_best: 3") == '{"save_trial_best": 3}'
    assert [read_storage(text) for text in (" ", "null", "{}")] == ["", "", ""]
    check_storage("")
    with pytest.raises(GanglineError, match=r"checkpoint_storage\.save_trial_bst: unknown key; did you mean"):
        read_storage("save_trial_bst: 3")
    with pytest.raises(GanglineError, match="is no JSON document"):
        check_storage("{")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "the name '' of the project is empty, or begins or ends with a space; give another one"),
        (" x", "the name ' x' of the project is empty, or begins or ends with a space; give another one"),
        ("a/b", "the name 'a/b' of the project has a slash, which would divide it in the paths of the HTTP API; "
         "give one without"),
    ],
)  # fmt: skip
def test_a_name_is_checked(name: str, message: str) -> None:
    with pytest.raises(GanglineError) as raised:
        check_name("project", name)
    assert (raised.value.code, raised.value.message) == ("project.name", message)
    check_name("project", "Vision 2")
    for bad in ("x" * 81, "a\nb"):
        with pytest.raises(GanglineError, match=r"^the name [^\n]*$"):
            check_name("project", bad)


_WORKSPACES = [Workspace(1, "Uncategorized"), Workspace(2, "lab"), Workspace(3, "Prod")]
_PROJECTS = [Project(1, 1, "Uncategorized"), Project(2, 2, "vision"), Project(3, 3, "vision")]


@pytest.mark.parametrize(
    ("workspace", "project", "message"),
    [
        ("lab", "visoin", "there is no project 'visoin' in workspace 'lab'; did you mean 'vision'? if not, create it "
         "with: gangline project create lab visoin"),
        ("lba", "vision", "there is no workspace 'lba'; did you mean 'lab'? if not, create it with: gangline workspace "
         "create lba"),
        ("prod", "vision", "there is no workspace 'prod'; did you mean 'Prod'? if not, create it with: gangline "
         "workspace create prod"),
        ("x y", "vision", "there is no workspace 'x y'; create it with: gangline workspace create 'x y'"),
        ("lab", "", "the configuration names the workspace 'lab', but no project; name both or none"),
        ("", "vision", "the configuration names the project 'vision', but no workspace; name both or none"),
    ],
)  # fmt: skip
def test_an_unknown_name_is_refused_with_the_nearest_and_the_command(
    workspace: str, project: str, message: str
) -> None:
    with pytest.raises(GanglineError) as raised:
        find_home(workspace, project, _WORKSPACES, _PROJECTS)
    assert raised.value.message == message


def test_a_project_is_found_in_its_own_workspace() -> None:
    for projects in (_PROJECTS, _PROJECTS[::-1]):
        assert find_home("Prod", "vision", _WORKSPACES, projects)[1].id == 3
        assert find_home("lab", "vision", _WORKSPACES, projects)[1].id == 2
    assert [record.id for record in find_home("", "", [], [])] == [1, 1]
    # A gateway that runs before the first leader of this version knows the default by itself.
    assert find_home("Uncategorized", "Uncategorized", [], [])[1].id == 1
    assert find_named(WORKSPACE, "lab", _WORKSPACES).id == 2
    with pytest.raises(GanglineError, match="there is no template 'bas'; did you mean 'base'"):
        find_named(TEMPLATE, "bas", [Template("base")])


def test_the_home_is_read_from_text_and_from_values() -> None:
    assert named_home("workspace: lab\nproject: vision\n") == ("lab", "vision")
    assert named_home({"workspace": "lab", "project": 3}) == ("lab", "")
    assert named_home("") == ("", "")
