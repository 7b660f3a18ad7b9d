"""The descriptions of fields in the OpenAPI document: comments behind the fields of models and of records."""

from __future__ import annotations

from gangline.domain import allocation, experiment, view
from services.gateway.http import description, model, project, queue_model
from services.gateway.http.answer import Answer
from services.gateway.http.description import Described, comments_of


def describe(shown: type[Described]) -> dict[str, str]:
    properties = shown.model_json_schema(mode="serialization")["properties"]
    return {name: text for name, field in properties.items() if (text := field.get("description"))}


def test_a_record_gives_its_comments_under_the_names_of_the_answer() -> None:
    texts = describe(model.Trial)
    assert texts["totalBatchesProcessed"] == "Batches trained so far"
    assert texts["id"] == '"<experiment id>.<number>", such as "7.1"'
    # On lines above the field.
    above = "Priority of its experiment, else of its pool. null if it holds slots"
    assert describe(model.Task)["priority"].startswith(above)
    assert "seed" in texts
    assert "state" not in texts


def test_a_property_gives_the_first_sentence_of_its_docstring() -> None:
    assert describe(model.Experiment)["projectId"] == "The id of its project"


def test_a_dotted_source_gives_the_comment_inside_of_the_record() -> None:
    texts = describe(project.Project)
    assert texts["defaultTemplate"] == comments_of(experiment.ProjectDefaults)["template"].capitalize()
    assert texts["immutable"] == "Whether it belongs to the cluster, so that nothing changes it"


def test_the_own_comment_of_a_model_precedes_that_of_its_record() -> None:
    assert comments_of(view.ClusterView)["etcd"] == "None from gateways of older versions"
    assert describe(model.ClusterView)["etcd"] == "Health as this gateway sees it"
    assert describe(queue_model.ResourcePatch)["whenFree"] == "With maxSlots: no trial is stopped"


def test_values_are_named_as_they_are_in_json() -> None:
    ended, exited = comments_of(experiment.Trial), comments_of(allocation.ExitReport)
    assert (ended["ended_at"], exited["rank"]) == (
        "0 until it has ended",
        "global rank that failed first on this member; None if none did",
    )
    texts = describe(model.Trial)
    assert (texts["endTime"], texts["metadata"]) == (
        "null until it has ended",
        "JSON object that its program has set; null if it has set none",
    )
    assert describe(model.Checkpoint)["metadata"] == "Metadata that its program gave; {} without any"
    assert texts["warning"].endswith("; empty for none")
    assert describe(model.ExitReport)["rank"].endswith("; null if none did")
    assert describe(model.Allocation)["fullSlots"].endswith("; 0 if it has all of them")
    assert describe(model.CreateExperiment)["activate"] == "false creates it PAUSED"


def test_a_description_of_the_field_itself_stays_and_suppressions_are_no_comments() -> None:
    assert describe(queue_model.QueueUpdate)["jobId"] == "The experiment's id; a number, or the same as text."
    assert (
        describe(model.Problem)["requestId"]
        == "Id to send again if the effect is unknown, so that nothing is done twice"
    )


def test_an_answer_has_the_docstring_of_its_record_unless_it_has_its_own() -> None:
    assert model.TrialView.__doc__ == view.TrialView.__doc__
    assert model.Exclusion.__doc__ == "Names an agent that the trial avoids for a while."
    # A dataclass without a docstring has its signature there.
    assert str(allocation.Member.__doc__).startswith("Member(")
    assert model.Member.__doc__ is None


def test_classes_without_source_have_no_comments() -> None:
    assert comments_of(Answer.__mro__[-2]) == {}
    assert comments_of(type("Made", (), {})) == {}


def test_answers_need_no_source() -> None:
    """It is read for schemas alone, and once."""
    description.comments_of.cache_clear()
    model.Member.model_validate(allocation.Member("a1", 0)).model_dump_json()
    assert description.comments_of.cache_info().currsize == 0
    describe(model.Member)
    assert description.comments_of.cache_info().currsize
