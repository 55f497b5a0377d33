"""summary.md: the verdicts and the table per turn, for a commit or a ticket. Pure."""

import re
from collections.abc import Iterator

from runtime.bench.render import tables
from runtime.bench.render.data import Json, is_sweep, passes
from runtime.bench.render.tables import Table
from runtime.bench.render.words import notices, verdicts


def summary(report: Json) -> str:
    """The report as Markdown; what a server or a user said cannot be markup."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Json) -> Iterator[str]:
    yield f"# turnback benchmark: {_text(report['workload']['name'])}"
    engine = _text(str(report["environment"].get("engine", "not told")))
    yield f"\nWorkload {_text(report['pass']['workload'])}, engine {engine}, "
    yield f"begun {_text(report['created_utc'])}."
    if told := notices(report):
        yield "\n**Read this first**\n"
        yield from (f"- {_text(line)}" for line in told)
    for one in passes(report):
        caching = "on" if one["pass"]["prefill_prefix_caching"] else "off"
        feature = "on" if one["pass"]["is_feature_on"] else "off on both servers"
        yield f"\n## Pass {_text(one['pass']['name'])}"
        yield f"\nPrefix caching on prefill {caching}, bidirectional KV transfer {feature}.\n"
        yield from (f"- {_text(line)}" for line in verdicts(one))
        yield from _table(tables.turns(one))
        if one["pass"]["is_feature_on"]:
            yield from _table(tables.speedup(one))
        if is_sweep(one):
            yield from _table(tables.ttft_by_length(one))
    if (beside := report["published"]) is not None:
        yield "\n## Beside the published figures\n"
        yield from (f"- {_text(line)}" for line in beside["differences"])
        yield from _table(tables.published(beside))
        yield f"\n{_text(tables.published_pull(beside))}"


def _table(table: Table) -> Iterator[str]:
    yield ""
    yield _row(table.head)
    yield _row(("---", *("---:" for _ in table.head[1:])), is_text=False)
    yield from map(_row, table.rows)


def _row(cells: tuple[str, ...], *, is_text: bool = True) -> str:
    return f"| {' | '.join(_text(cell) if is_text else cell for cell in cells)} |"


def _text(text: str) -> str:
    """One line without markup."""
    return re.sub(r"([\\`*_<>\[\]|#~])", r"\\\1", " ".join(text.split()))
