"""The page's style sheet: system fonts, light and dark by the reader's preference."""

from __future__ import annotations

CSS = """
:root{--bg:#fff;--fg:#1b1f24;--dim:#667080;--line:#e3e7ec;--card:#f6f8fa;--c0:#2563eb;--c1:#d97706;
--c2:#059669;--c3:#9333ea;--good:#15803d;--bad:#b91c1c;--warn:#a21caf}
@media (prefers-color-scheme:dark){:root{--bg:#0f1318;--fg:#e6e9ee;--dim:#93a0b0;--line:#29313b;
--card:#171d25;--c0:#6ea8fe;--c1:#f5b35c;--c2:#4ade9f;--c3:#c792ff;--good:#4ade80;--bad:#f87171;
--warn:#e879f9}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--fg);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1080px;margin:0 auto;padding:24px 20px 64px}
h1{font-size:24px;margin:0}h2{font-size:17px;margin:36px 0 10px}
header p{margin:6px 0;color:var(--dim)}
.chip{display:inline-block;border:1px solid var(--line);border-radius:12px;padding:1px 10px;
margin:0 6px 4px 0;font-size:13px}
.warn{color:var(--warn);border-color:currentColor}
.dim{color:var(--dim);font-size:13px}
.alarm{border-left:3px solid var(--bad);padding:4px 10px;margin:8px 0;background:var(--card)}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:10px;
margin:18px 0 6px}
.cards div{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 12px}
.cards b,.cards span{display:block;color:var(--dim);font-size:12px;font-weight:500}
.cards strong{font-size:21px;font-weight:600}
.figures{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(420px,100%),1fr));gap:18px;
margin-top:12px}
figure{margin:0;min-width:0}figcaption{font-weight:600;font-size:14px;margin-bottom:2px}
svg{width:100%;height:auto;display:block}
svg text{fill:var(--dim);font-size:11px}svg text.label{fill:var(--fg)}
.grid{stroke:var(--line);fill:none}
.s0,.s1,.s2,.s3{fill:none;stroke-width:1.8;stroke-linejoin:round}
.s0{stroke:var(--c0)}.s1{stroke:var(--c1)}.s2{stroke:var(--c2)}.s3{stroke:var(--c3)}
.b0{fill:var(--c0)}
.legend{margin:2px 0 0;min-height:18px;font-size:12px;color:var(--dim)}
.key{margin-right:14px}.key i{display:inline-block;width:14px;height:3px;margin-right:5px;
vertical-align:middle}
.k0{background:var(--c0)}.k1{background:var(--c1)}.k2{background:var(--c2)}.k3{background:var(--c3)}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:14px;
margin-bottom:8px}
th{color:var(--dim);font-weight:500;text-align:right;font-size:12px}
td{text-align:right;border-top:1px solid var(--line)}
th,td{padding:4px 10px;white-space:nowrap}
th:first-child,td:first-child,td.dim,.wide{text-align:left}td.dim{white-space:normal}
section:last-of-type td{text-align:left;white-space:normal;overflow-wrap:anywhere}
.wide{width:24%}.bar{display:block;height:10px;border-radius:2px;min-width:2px;background:var(--dim)}
.bar.good{background:var(--good)}.bar.bad{background:var(--bad)}
td.good{color:var(--good)}td.bad{color:var(--bad)}
"""
