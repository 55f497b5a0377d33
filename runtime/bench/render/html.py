"""report.html: one page that needs nothing beside it. Pure."""

from collections.abc import Iterable, Iterator
from html import escape

from runtime.bench.render import tables
from runtime.bench.render.css import CSS
from runtime.bench.render.data import Json, passes
from runtime.bench.render.figures import Figure, figures
from runtime.bench.render.svg import NARROW_PX, WIDE_PX, inline_svg
from runtime.bench.render.tables import Table
from runtime.bench.render.words import notices, verdicts

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""The page asks for nothing, and could not."""


def page(report: Json) -> str:
    """The report as HTML; the same for the same report.

    Everything that a server or a user said is escaped.
    """
    told = passes(report)
    title = f"turnback benchmark: {report['workload']['name']}"
    body = [
        f"<header><h1>{escape(title)}</h1>{_what_ran(report)}</header>",
        _notices(report),
        *(_pass(one, at, is_only=len(told) == 1) for at, one in enumerate(told)),
        _published(report),
        _setup(report),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f"<title>{escape(title)}</title>\n<style>{CSS}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + "\n</main>\n</body>\n</html>\n"
    )


def _what_ran(report: Json) -> str:
    known = report["environment"]
    versions = [f"{name} {known[name]}" for name in ("kit", "vllm", "nixl") if known.get(name)]
    parts = [
        f"workload {report['pass']['workload']}",
        f"engine {known.get('engine', 'not told')}",
        *versions,
        f"begun {report['created_utc']}",
    ]
    return f"<p class=muted>{escape(' · '.join(parts))}</p>"


def _notices(report: Json) -> str:
    told = notices(report)
    if not told:
        return ""
    items = "".join(f"<li>{escape(line)}</li>" for line in told)
    return (
        '<section class="notice" aria-label="Problems"><h2>Read this first</h2>'
        f"<ul>{items}</ul></section>"
    )


def _pass(one: Json, at: int, *, is_only: bool) -> str:
    about, played = one["pass"], one["pass"]["bench"]
    rate = played["arrivals_per_s"]
    load = f"clients: {played['clients']}" if rate is None else f"arrivals: {rate:g} a second"
    flags = [
        f"prefix caching on prefill {'on' if about['prefill_prefix_caching'] else 'off'}",
        f"bidirectional KV transfer {'on' if about['is_feature_on'] else 'off on both servers'}",
        f"{load}, repeats: {played['repeats']}",
    ]
    heading = "Result" if is_only else f"Pass {about['name']}"
    found = "".join(f"<li>{escape(line)}</li>" for line in verdicts(one))
    return "\n".join(
        [
            f'<section id="pass-{at}"><h2>{escape(heading)}</h2>',
            f"<p class=muted>{escape(' · '.join(flags))}</p>",
            f'<ul class="verdicts">{found}</ul>',
            *(_figure(figure, f"p{at}-{figure.name}") for figure in figures(one)),
            *_details(one),
            "</section>",
        ]
    )


def _figure(figure: Figure, name: str) -> str:
    parts = [f"<h3>{escape(figure.title)}</h3>"]
    if figure.draw is None:
        parts.append(f"<p>{escape(figure.instead)}</p>")
    else:
        parts.append(f"<p>{escape(figure.says)}</p>")
        label = f"{figure.title}. {figure.says} The table below has the figures."
        sizes = zip(("wide", "narrow"), (WIDE_PX, NARROW_PX), figure.height_px, strict=True)
        for form, width_px, height_px in sizes:
            svg = inline_svg(
                figure.draw,
                name=f"{name}-{form}",
                label=label,
                width_px=width_px,
                height_px=height_px,
            )
            parts.append(f"<div class={form}>{svg}</div>")
    if figure.table is not None and figure.table.rows:
        parts.append(_folded("The figures as a table", figure.title, figure.table))
    return "\n".join(parts)


def _details(one: Json) -> Iterator[str]:
    yield "<h3>All figures</h3>"
    yield _folded("Per turn", "Per turn", tables.turns(one))
    yield _folded("Prefill and throughput", "Prefill and throughput", tables.costs(one))
    if one["engine"] is None:
        yield "<p>The engines' counters were not read.</p>"
    else:
        yield _folded("Engine counters", "Engine counters", tables.engine(one))
    for name, table in (
        ("Answers that differ, the first 20", tables.differences(one)),
        ("Failures", tables.failures(one)),
    ):
        if table.rows:
            yield _folded(name, name, table, is_open=True)
    yield _folded("How it was played", "Settings", tables.settings(one["pass"]["bench"]))


def _published(report: Json) -> str:
    told = report["published"]
    if told is None:
        return ""
    items = "".join(f"<li>{escape(line)}</li>" for line in told["differences"])
    return (
        f"<section><h2>Beside the published figures</h2><p>{escape(told['profile'])}: mean TTFT "
        "over all turns, turn 1 too, as published. Times of two set-ups do not compare; "
        f"ratios do, with these differences:</p><ul>{items}</ul>"
        f"{_table('Published figures and ours', tables.published(told))}"
        f"<p>{escape(tables.published_pull(told))}</p></section>"
    )


def _setup(report: Json) -> str:
    return (
        "<section><h2>Set-up</h2>"
        + _folded("Environment", "Environment", tables.settings(report["environment"]))
        + _folded("Profile", "Profile", tables.settings(report["workload"]))
        + "</section>"
    )


def _folded(summary: str, label: str, table: Table, *, is_open: bool = False) -> str:
    state = " open" if is_open else ""
    return f"<details{state}><summary>{escape(summary)}</summary>{_table(label, table)}</details>"


def _table(label: str, table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.head)
    rows = "".join(_row(row) for row in table.rows)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _row(cells: Iterable[str]) -> str:
    first, *others = cells
    rest = "".join(f"<td>{escape(cell)}</td>" for cell in others)
    return f'<tr><th scope="row">{escape(first)}</th>{rest}</tr>'
