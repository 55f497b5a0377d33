"""What instances cost, asked of AWS's Price List. No price stands in this kit."""

import json
from typing import Any

_HOURS = "Hrs"


def on_demand_usd_per_hour(pricing: Any, instance_type: str, region: str) -> float | None:
    """The list price of one running Linux instance.

    Args:
        pricing: boto3's client of the Price List API.
        instance_type: EC2's name.
        region: AWS's name.

    Returns:
        USD per hour; None where the list has no single price for it.

    Raises:
        BotoCoreError, ClientError: AWS does not answer.
    """
    wanted = {
        "instanceType": instance_type,
        "regionCode": region,
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
        "marketoption": "OnDemand",
    }
    reply = pricing.get_products(
        ServiceCode="AmazonEC2",
        Filters=[
            {"Type": "TERM_MATCH", "Field": field, "Value": value}
            for field, value in wanted.items()
        ],
        MaxResults=20,
    )
    rates = {rate for product in reply["PriceList"] for rate in _hourly_rates(json.loads(product))}
    rates.discard(0.0)  # terms that charge nothing belong to other offers
    return rates.pop() if len(rates) == 1 else None


def _hourly_rates(product: dict[str, Any]) -> list[float]:
    """On-demand rates of one product of the list."""
    return [
        float(dimension["pricePerUnit"]["USD"])
        for term in product.get("terms", {}).get("OnDemand", {}).values()
        for dimension in term["priceDimensions"].values()
        if dimension.get("unit") == _HOURS and "USD" in dimension["pricePerUnit"]
    ]
