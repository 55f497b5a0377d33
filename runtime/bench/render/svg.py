"""matplotlib -> SVG that takes its colours from the page. The only file that saves figures."""

import io
import re
from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING, Any

from runtime.bench.render.palette import INK, LINE, MUTED, TONES, variables

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Draw = Callable[["Figure"], None]

WIDE_PX, NARROW_PX = 760, 340
FONT_PX = 12.5
FONTS = "system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif"
_PX_PER_INCH = 72
"""An SVG of matplotlib has 72 units an inch."""


def inline_svg(draw: Draw, *, name: str, label: str, width_px: int, height_px: int) -> str:
    """A chart as an element of a page.

    Args:
        draw: fills the figure, with the stand-ins of the tones as colours.
        name: a word of its own on the page; the chart's ids begin with it.
        label: what the chart shows, for those who do not see it.

    Returns:
        `<svg>`, as wide as there is room but not wider than drawn. The same for the
        same input.
    """
    body = _adapt(_saved(draw, width_px, height_px), name)
    return (
        f'<svg class="chart" role="img" aria-label="{escape(label)}" '
        f'viewBox="0 0 {width_px} {height_px}" style="max-width:{width_px}px">{body}</svg>\n'
    )


def standalone_svg(draw: Draw, *, name: str, label: str, width_px: int, height_px: int) -> str:
    """A chart as a file; light or dark as the reader's system is, on a ground of its own."""
    body = _adapt(_saved(draw, width_px, height_px), name)
    style = (
        f":root{{{variables(is_dark=False)}}}"
        f"@media (prefers-color-scheme:dark){{:root{{{variables(is_dark=True)}}}}}"
        f"text{{font-family:{FONTS}}}"
    )
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'role="img" aria-label="{escape(label)}" width="{width_px}" height="{height_px}" '
        f'viewBox="0 0 {width_px} {height_px}"><title>{escape(label)}</title>'
        f'<style>{style}</style><rect width="100%" height="100%" style="fill:var(--page)"/>'
        f"{body}</svg>\n"
    )


def _saved(draw: Draw, width_px: int, height_px: int) -> str:
    # Late: takes a second, and a command that draws nothing does without.
    from matplotlib import rc_context, rcdefaults, rcParams
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with rc_context():
        rcdefaults()  # a user's own matplotlibrc counts for nothing
        rcParams.update(_SETTINGS)
        size = (width_px / _PX_PER_INCH, height_px / _PX_PER_INCH)
        figure = Figure(figsize=size, dpi=_PX_PER_INCH, layout="constrained")
        FigureCanvasSVG(figure)
        draw(figure)
        file = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(file, format="svg", metadata=nothing, transparent=True)
    return file.getvalue()


def _adapt(text: str, name: str) -> str:
    """The inside of matplotlib's SVG: tones for stand-ins, the page's font, ids of its own."""
    body = text[text.index("<defs>") : text.rindex("</svg>")]
    for tone in TONES:
        body = body.replace(tone.stand_in, f"var(--{tone.name})")
    # The page's own font; DejaVu, which the layout was made for, is wider than most.
    body = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", body)
    body = re.sub(r"font-family: [^;\"]*;?", "", body)
    used = set(re.findall(r"url\(#([^)]+)\)|href=\"#([^\"]+)\"", body))
    kept = {one or other for one, other in used}

    def own_id(found: re.Match[str]) -> str:
        return f' id="{name}-{found[1]}"' if found[1] in kept else ""

    body = re.sub(r' id="([^"]+)"', own_id, body)
    body = body.replace("url(#", f"url(#{name}-").replace('href="#', f'href="#{name}-')
    return re.sub(r"\s*<!--.*?-->|\n\s*", lambda gap: "" if "<!" in gap[0] else "\n", body)


_SETTINGS: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "turnback",
    "font.size": FONT_PX,
    "axes.titlesize": FONT_PX,
    "axes.labelsize": FONT_PX,
    "xtick.labelsize": FONT_PX - 0.5,
    "ytick.labelsize": FONT_PX - 0.5,
    "legend.fontsize": FONT_PX - 0.5,
    "text.color": INK.stand_in,
    "axes.labelcolor": INK.stand_in,
    "axes.edgecolor": MUTED.stand_in,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": LINE.stand_in,
    "grid.linewidth": 0.8,
    "hatch.linewidth": 0.7,
    "legend.frameon": False,
    "legend.handlelength": 2.2,
    "legend.borderpad": 0.2,
    "legend.columnspacing": 1.2,
    "patch.edgecolor": INK.stand_in,
    "xtick.color": MUTED.stand_in,
    "xtick.labelcolor": INK.stand_in,
    "ytick.color": MUTED.stand_in,
    "ytick.labelcolor": INK.stand_in,
    "axes.titlelocation": "left",
    "figure.constrained_layout.w_pad": 0.09,
    "figure.constrained_layout.h_pad": 0.06,
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "path.simplify": True,
    "text.usetex": False,
    "text.parse_math": False,
    "axes.formatter.use_mathtext": False,
    "lines.markeredgecolor": "auto",
}
