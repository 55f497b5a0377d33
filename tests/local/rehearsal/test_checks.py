"""What the emulator leaves out, loses or empties ends the rehearsal."""

import base64
from typing import Any

import pytest

from runtime.errors import StartFailed
from runtime.local.rehearsal.checks import (
    SKIPPED,
    changed_resources,
    check_launch_template,
    check_no_empty_values,
    check_skipped,
    empty_values,
    unlike,
)

Templates = dict[str, dict[str, Any]]
MADE = {"net/Vpc": "AWS::EC2::VPC", "net/Logs": "AWS::S3::Bucket"}
TYPES = MADE | {f"net/{index}": kind for index, kind in enumerate(sorted(SKIPPED))}


def test_the_known_types_may_be_left_out() -> None:
    """The account as it was seen."""
    check_skipped(TYPES, MADE)


@pytest.mark.parametrize("lost", [*MADE])
def test_any_other_resource_that_is_not_there_is_told(lost: str) -> None:
    """Also one of a type of which others are there."""
    types = TYPES | {"net/Other": MADE[lost]}
    with pytest.raises(StartFailed, match="not in the emulated account") as failure:
        check_skipped(types, MADE)
    assert "net/Other" in failure.value.got


@pytest.mark.parametrize("kind", sorted(SKIPPED))
def test_a_type_that_the_emulator_learned_is_told(kind: str) -> None:
    """The list must not say less is shown than is."""
    made = MADE | {logical: each for logical, each in TYPES.items() if each == kind}
    with pytest.raises(StartFailed, match="less than was known") as failure:
        check_skipped(TYPES, made)
    assert kind in failure.value.got


@pytest.mark.parametrize(
    "value", [None, "", "None", "arn:None:x", {"a": [{"b": ""}]}, ["--keys", "None"], "a undefined"]
)
def test_a_reference_to_nothing_is_found(value: Any) -> None:
    """At any depth, as a value of its own or inside a text."""
    assert len([*empty_values(value, "at")]) == 1
    with pytest.raises(StartFailed, match="refer to nothing"):
        check_no_empty_values({"spec": value})


@pytest.mark.parametrize("value", ["Nonesuch", 0, False, [], {}, {"a": ["b", 0]}, "annulled"])
def test_other_values_are_values(value: Any) -> None:
    """0, false and words that hold these letters."""
    assert [*empty_values(value, "at")] == []


LAUNCH: dict[str, Any] = {
    "ImageId": "ami-1",
    "Placement": {"GroupName": {"Ref": "Placement"}},
    "NetworkInterfaces": [{"Groups": [{"Fn::ImportValue": "x"}], "DeviceIndex": 0}],
}
FOUND: dict[str, Any] = {
    "ImageId": "ami-1",
    "Placement": {"GroupName": "a-group"},
    "NetworkInterfaces": [{"Groups": ["sg-1"], "DeviceIndex": 0}],
}


def test_a_launch_template_is_its_templates() -> None:
    """References stand for any value."""
    check_launch_template("name", LAUNCH, FOUND)


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"ImageId": "ami-2"}, "ImageId"),
        ({"Placement": None}, "Placement"),
        ({"Placement": {"GroupName": ""}}, "GroupName"),
        ({"Placement": {"GroupName": "turnback-None"}}, "GroupName"),
        ({"NetworkInterfaces": []}, "NetworkInterfaces"),
        ({"NetworkInterfaces": [{"Groups": ["sg-1"], "DeviceIndex": 1}]}, "DeviceIndex"),
        ({"NetworkInterfaces": [{"Groups": [None], "DeviceIndex": 0}]}, "Groups"),
        ({"KeyName": "a-key"}, "KeyName"),
    ],
)
def test_a_launch_template_that_differs_is_told(changes: dict[str, Any], where: str) -> None:
    """A literal, a lost part, an empty reference, a part that nobody asked for."""
    (part,) = unlike(LAUNCH, FOUND | changes, "LaunchTemplateData")
    assert where in part
    with pytest.raises(StartFailed, match="is not what its stack's template says"):
        check_launch_template("name", LAUNCH, FOUND | changes)


SCRIPT: Any = {"Fn::Join": ["", ["echo >/dev/null\nURI='", {"Ref": "Uri"}, "'\nset -eu\n"]]}


def user_data(text: str) -> dict[str, str]:
    return {"UserData": base64.b64encode(text.encode()).decode()}


@pytest.mark.parametrize(
    "wanted", [SCRIPT, {"Ref": "Script"}, "echo >/dev/null\nURI='s3'\nset -eu\n"]
)
def test_user_data_is_compared_as_text(wanted: Any) -> None:
    """References stand for any value; a literal may hold a word that a reference may not."""
    text = "echo >/dev/null\nURI='s3'\nset -eu\n"
    found = user_data(text if "Ref" not in wanted else "set -eu >/dev/null")
    check_launch_template("name", {"UserData": {"Fn::Base64": wanted}}, found)


@pytest.mark.parametrize(
    "found",
    [
        user_data("echo >/dev/null\nURI='None'\nset -eu\n"),
        user_data("echo >/dev/null\nURI=''\nset -eu\n"),
        user_data("echo >/dev/null\nURI='s3'\n"),
        user_data(""),
        {"UserData": "not base64"},
        {},
    ],
)
def test_user_data_that_refers_to_nothing_is_told(found: dict[str, str]) -> None:
    """Behind its base64: an empty reference, a lost line, another text, none."""
    with pytest.raises(StartFailed, match="is not what its stack's template says") as failure:
        check_launch_template("name", {"UserData": {"Fn::Base64": SCRIPT}}, found)
    assert "UserData" in failure.value.got


def test_changed_added_and_removed_resources_are_told_apart_from_equal_ones() -> None:
    """By logical id, with the type."""
    before: Templates = {
        "A": {"Type": "T1"},
        "B": {"Type": "T2", "Properties": {"v": 1}},
        "C": {"Type": "T3"},
    }
    after: Templates = {
        "A": {"Type": "T1"},
        "B": {"Type": "T2", "Properties": {"v": 2}},
        "D": {"Type": "T4"},
    }
    assert changed_resources(before, after) == {"B": "T2", "C": "T3", "D": "T4"}
