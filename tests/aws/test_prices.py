"""Prices out of the Price List."""

import json

import pytest

from runtime.aws.prices import on_demand_usd_per_hour
from tests.aws.stubs import Answer, answering, product


@pytest.mark.parametrize(
    ("products", "usd"),
    [
        ([product("63.296")], 63.296),
        ([product("63.296"), product("63.296"), product("0.0000000000")], 63.296),
        ([product("63.296"), product("64")], None),
        ([product("0")], None),
        ([product("63.296", unit="Quantity")], None),
        ([json.dumps({"terms": {"Reserved": {}}})], None),
        ([json.dumps({})], None),
        ([], None),
    ],
)
def test_only_a_single_hourly_rate_is_a_price(products: list[str], usd: float | None) -> None:
    """Two rates, none, or none per hour: unknown."""
    with answering("pricing", Answer("get_products", {"PriceList": products})) as pricing:
        assert on_demand_usd_per_hour(pricing, "p5en.48xlarge", "us-west-2") == usd


def test_asked_for_plain_linux_on_demand() -> None:
    """Without the filters the list holds dozens of rates per type."""
    fields = {
        "instanceType": "p5en.48xlarge",
        "regionCode": "us-west-2",
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
        "marketoption": "OnDemand",
    }
    filters = [{"Type": "TERM_MATCH", "Field": key, "Value": fields[key]} for key in fields]
    asked = {"ServiceCode": "AmazonEC2", "Filters": filters, "MaxResults": 20}
    answer = Answer("get_products", {"PriceList": [product("1")]}, asked)
    with answering("pricing", answer) as pricing:
        assert on_demand_usd_per_hour(pricing, "p5en.48xlarge", "us-west-2") == 1
