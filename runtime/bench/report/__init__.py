"""A benchmark's passes -> its report; docs/benchmark.md explains every figure."""

from runtime.bench.report.build import Passed, build_report
from runtime.bench.report.file import SCHEMA_VERSION, read_report, write_report
from runtime.bench.report.tokens import split_pull

__all__ = [
    "SCHEMA_VERSION",
    "Passed",
    "build_report",
    "read_report",
    "split_pull",
    "write_report",
]
