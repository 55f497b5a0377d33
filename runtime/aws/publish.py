"""A run's files into the results bucket, its figures into CloudWatch."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from runtime.aws.patience import ask
from runtime.contract.bench import REPORT
from runtime.contract.model import model_prefix
from runtime.contract.operations import DEPLOYMENT, NAMESPACE, Metric, run_prefix

_MOST_DATA = 100
"""In one PutMetricData, well below its 1,000."""
_TYPES = {".html": "text/html", ".json": "application/json", ".csv": "text/csv"}


def upload_run(s3: Any, bucket: str, run_id: str, folder: Path) -> str:
    """Upload every file of a run's folder; the report comes last. Returns its address.

    Raises:
        BadInput: AWS refuses, or does not answer.
    """
    prefix = run_prefix(run_id)
    files = sorted(
        (path for path in folder.rglob("*") if path.is_file()),
        key=lambda path: (path.parent == folder, path),
    )
    for path in files:
        key = prefix + path.relative_to(folder).as_posix()
        kind = {"ContentType": _TYPES.get(path.suffix, "text/plain")}

        def put(path: Path = path, key: str = key, kind: dict[str, str] = kind) -> None:
            s3.upload_file(str(path), bucket, key, ExtraArgs=kind)

        ask(f"{path.name} cannot be uploaded to {bucket}", "s3:PutObject", put)
    return f"s3://{bucket}/{prefix}{REPORT}"


def put_metrics(
    cloudwatch: Any,
    deployment: str,
    data: Sequence[tuple[Metric, dict[str, str], float]],
    now: datetime,
) -> None:
    """Put figures into CloudWatch, all with the same time.

    Raises:
        BadInput: AWS refuses, or does not answer.
    """
    told = [
        {
            "MetricName": metric.name,
            "Unit": metric.unit,
            "Value": value,
            "Timestamp": now,
            "Dimensions": [
                {"Name": name, "Value": each}
                for name, each in {DEPLOYMENT: deployment, **more}.items()
            ],
        }
        for metric, more, value in data
    ]
    for start in range(0, len(told), _MOST_DATA):
        some = told[start : start + _MOST_DATA]
        ask(
            "the run's figures cannot be put into CloudWatch",
            "cloudwatch:PutMetricData",
            lambda some=some: cloudwatch.put_metric_data(Namespace=NAMESPACE, MetricData=some),  # type: ignore[misc]
        )


def fetch_model_file(s3: Any, bucket: str, model: str, name: str, folder: Path) -> Path:
    """One small file of a staged model.

    Args:
        s3: boto3's client.
        bucket: of models.
        model: id and revision.
        name: below the model's folder.
        folder: where it goes.

    Raises:
        BadInput: it is not there, or may not be read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    key, at = model_prefix(model) + name, folder / name
    ask(
        f"{name} of {model} cannot be read",
        "s3:GetObject",
        lambda: s3.download_file(bucket, key, str(at)),
    )
    return at
