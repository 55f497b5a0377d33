"""Groups get the capacity that is wanted, and its price is told."""

from typing import Any

import pytest
from botocore.exceptions import ClientError

from runtime.errors import BadInput
from tests.aws.fleet import add_group, answering_too, desired, no_price, priced, run

pytestmark = pytest.mark.usefixtures("account")


def test_up_asks_for_the_maximum(groups: tuple[str, str]) -> None:
    """Without counts and tags every node of the deployment is wanted."""
    with answering_too(GetProducts=no_price):
        report, lines = run()
    assert desired() == dict(zip(groups, (2, 3), strict=True))
    assert report.reached is None
    assert report.failure() is None
    assert f"{groups[1]}: 3 wanted" in lines


def test_counts_and_tags_set_the_goal() -> None:
    """A count given wins over the group's tag, the tag over its maximum."""
    prefill, decode = add_group("prefill", count="1"), add_group("decode", count="1")
    with answering_too(GetProducts=no_price):
        run(decode=0)
    assert desired() == {prefill: 1, decode: 0}


@pytest.mark.parametrize(
    ("count_tag", "counts", "got"),
    [
        ("", {"prefill": 3, "decode": 9}, "--prefill = 3; --decode = 9"),
        ("many", {"decode": 1}, "turnback:count of ours-prefill-a = many"),
        ("3", {"decode": 1}, "turnback:count of ours-prefill-a = 3"),
    ],
)
def test_count_beyond_the_bounds_sets_nothing(
    count_tag: str, counts: dict[str, Any], got: str
) -> None:
    """Every wrong count is told at once, with the bounds; no group is changed."""
    prefill, decode = add_group("prefill", count=count_tag), add_group("decode")
    with answering_too() as called, pytest.raises(BadInput, match="0 to 2") as refusal:
        run(**counts)
    assert got in refusal.value.got
    assert "SetDesiredCapacity" not in called
    assert desired() == {prefill: 0, decode: 0}


def test_two_groups_of_a_role_are_not_guessed_between(groups: tuple[str, str]) -> None:
    """While an old and a new generation stand side by side, up refuses and names both."""
    other = add_group("decode", generation="b")
    with answering_too(), pytest.raises(BadInput, match="one group") as refusal:
        run()
    assert groups[1] in refusal.value.got
    assert other in refusal.value.got


def test_missing_role_is_refused() -> None:
    """Prefill without decode serves nobody."""
    add_group("prefill")
    with answering_too(), pytest.raises(BadInput, match="decode: no group"):
        run()


def test_other_groups_are_left_alone(groups: tuple[str, str]) -> None:
    """Another deployment's groups and routers keep their capacity."""
    theirs, router = add_group("decode", deployment="theirs"), add_group("router")
    with answering_too(GetProducts=no_price):
        run()
    assert {theirs: 0, router: 0}.items() <= desired().items()


def test_unknown_deployment_is_bad_input() -> None:
    """A name without groups is told with the region that was looked at."""
    with answering_too(), pytest.raises(BadInput, match="eu-central-1"):
        run()


def test_refusal_of_aws_is_bad_input(groups: tuple[str, str]) -> None:
    """What AWS does not allow is told with the permissions that are needed."""

    def refuse(_asked: dict[str, Any], _real: Any) -> Any:
        raise ClientError({"Error": {"Code": "AccessDenied"}}, "SetDesiredCapacity")

    with (
        answering_too(GetProducts=no_price, SetDesiredCapacity=refuse),
        pytest.raises(BadInput, match="autoscaling:SetDesiredCapacity"),
    ):
        run()


@pytest.mark.parametrize(
    ("rates", "usd"), [(["63.296"], 5 * 63.296), (["63.296", "70"], None), ([], None)]
)
def test_price_is_told_only_when_it_is_single(
    groups: tuple[str, str], rates: list[str], usd: float | None
) -> None:
    """Nodes times the listed rate; two rates or none make no price."""
    with answering_too(GetProducts=priced(*rates)):
        report, lines = run()
    assert report.usd_per_hour == (None if usd is None else pytest.approx(usd))
    assert any(("unknown" if usd is None else "316.48 USD per hour") in line for line in lines)


def test_unreachable_price_list_stops_nothing(groups: tuple[str, str]) -> None:
    """A network without a way to the price list still scales."""
    with answering_too(GetProducts=no_price):
        report, _ = run()
    assert report.usd_per_hour is None
    assert desired()[groups[0]] == 2


def test_capacity_block_has_no_hourly_price(groups: tuple[str, str]) -> None:
    """What is paid in advance is not multiplied with a list price."""

    def block(_asked: dict[str, Any], _real: Any) -> Any:
        data = {
            "InstanceType": "p5en.48xlarge",
            "InstanceMarketOptions": {"MarketType": "capacity-block"},
        }
        return {"LaunchTemplateVersions": [{"LaunchTemplateData": data}]}

    with answering_too(GetProducts=priced("63"), DescribeLaunchTemplateVersions=block):
        report, _ = run()
    assert report.usd_per_hour is None
