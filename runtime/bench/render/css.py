"""The page's style: light or dark as the reader's system is, wide or narrow."""

from runtime.bench.render.palette import variables
from runtime.bench.render.svg import FONTS

CSS = f"""
:root{{color-scheme:light dark;{variables(is_dark=False)}--notice:#8a3b00;--ground:#fff4e5}}
@media (prefers-color-scheme:dark){{
:root{{{variables(is_dark=True)}--notice:#ffc37a;--ground:#2b2114}}}}
*{{box-sizing:border-box}}
html{{-webkit-text-size-adjust:100%}}
body{{margin:0;background:var(--page);color:var(--ink);font:16px/1.5 {FONTS}}}
main{{max-width:800px;margin:0 auto;padding:24px 20px 64px}}
h1{{font-size:1.7rem;line-height:1.2;margin:0 0 4px}}
h2{{font-size:1.3rem;margin:44px 0 6px;padding-top:14px;border-top:1px solid var(--line)}}
h3{{font-size:1.05rem;margin:30px 0 2px}}
p{{margin:4px 0 10px}}
ul{{margin:8px 0;padding-left:1.2em}}
li{{margin:3px 0}}
h1,h2,h3,p,li,summary{{overflow-wrap:anywhere}}
.muted{{color:var(--muted);font-size:.9rem}}
.verdicts li:first-child{{font-weight:650;font-size:1.08rem}}
.notice{{margin:20px 0;padding:10px 16px;background:var(--ground);color:var(--notice);
border-left:5px solid var(--notice)}}
.notice h2{{border:0;margin:0;padding:0;font-size:1.05rem}}
.chart{{display:block;width:100%;height:auto;font-family:inherit}}
.narrow{{display:none}}
@media (max-width:640px){{
main{{padding:16px 14px 48px}}.wide{{display:none}}.narrow{{display:block}}
.narrow .chart{{max-width:none!important}}}}
details{{margin:6px 0}}
summary{{cursor:pointer;color:var(--muted);font-size:.92rem;padding:5px 0}}
.scroll{{overflow-x:auto;max-width:100%}}
.scroll:focus-visible,summary:focus-visible{{outline:2px solid var(--bidirectional)}}
table{{border-collapse:collapse;font-size:.85rem;font-variant-numeric:tabular-nums}}
th,td{{padding:4px 10px;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}}
th:first-child,td:nth-child(2){{text-align:left}}
td{{max-width:60ch;overflow-wrap:anywhere}}
thead th{{color:var(--muted);font-weight:600;white-space:normal;vertical-align:bottom}}
tbody th{{font-weight:600}}
@media print{{.scroll{{overflow:visible}}h3{{break-after:avoid}}}}
""".strip()
