"""Draws the README's chart from a report.

.venv/bin/python -m benchmarks.chart out/demo/report.json docs/img/demo-ttft.svg
"""

import argparse
import sys
from pathlib import Path

from runtime.bench.render.files import write_turn_chart
from runtime.bench.report import read_report
from runtime.errors import BadInput


def main() -> int:
    """TTFT by turn of the main pass; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chart", description=__doc__)
    parser.add_argument("report", type=Path)
    parser.add_argument("svg", type=Path)
    args = parser.parse_args()
    try:
        write_turn_chart(read_report(args.report), args.svg)
    except (BadInput, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
