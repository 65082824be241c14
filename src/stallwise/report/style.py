"""How the page looks: light, dark and on paper. No file from elsewhere, no script."""

# Everything is scoped under .stallwise, so that a notebook around it keeps its own looks. Colours of the parts stay
# apart for colour-blind eyes (after Okabe and Ito) and at least 3:1 from the paper; text at least 4.5:1.
STYLE = """
.stallwise { --ink: #16191d; --dim: #555e6a; --line: #e0e4ea; --paper: #ffffff; --raised: #f5f7f9; --track: #eceff3;
  --warn: #8a4b00; --compute: #00835f; --copy: #2386bd; --interconnect: #b0568b; --network: #005a94; --prep: #b27700;
  --fetch: #c24e00; --rate: #66717f; --forward: #2386bd; --backward: #00567f; --skew: #66717f;
  color-scheme: light dark; color: var(--ink); background: var(--paper); max-width: 54rem; margin: 0 auto;
  padding: 2rem 2.25rem 2.5rem; box-sizing: border-box; font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto,
  "Helvetica Neue", "Liberation Sans", Arial, sans-serif; font-variant-numeric: tabular-nums; }
@media (prefers-color-scheme: dark) { .stallwise { --ink: #e7eaef; --dim: #a2acb9; --line: #2d343d; --paper: #15191e;
  --raised: #1c2127; --track: #232930; --warn: #ffb454; --compute: #22b58a; --copy: #56b4e9; --interconnect: #d98abb;
  --network: #4d9de0; --prep: #e9a820; --fetch: #f0793a; --rate: #8d99a8; --forward: #7cc4ee; --backward: #2f8fc7;
  --skew: #8d99a8; } }
.stallwise *, .stallwise *::before { box-sizing: border-box; }
.stallwise h1 { font-size: 1.75em; line-height: 1.2; letter-spacing: -.01em; margin: 0; overflow-wrap: anywhere; }
.stallwise h2 { font-size: 1.15em; line-height: 1.3; margin: 2em 0 .3em; padding-top: .9em;
  border-top: 1px solid var(--line); }
.stallwise p { margin: .35rem 0; max-width: 46rem; }
.stallwise .dim, .stallwise caption, .stallwise small { color: var(--dim); }
.stallwise small { display: block; font-size: .8em; font-weight: 400; line-height: 1.35; }
.stallwise .partial { border-left: 4px solid var(--warn); background: var(--raised); color: var(--warn);
  padding: .5rem .9rem; margin: .9rem 0 0; }
.stallwise nav { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; margin: .7rem 0 0; font-size: .87em;
  line-height: 25px; }
.stallwise nav a { display: inline-block; min-height: 25px; }
.stallwise nav a { color: var(--dim); text-underline-offset: .2em; }
.stallwise nav a:hover { color: var(--ink); }
.stallwise a:focus-visible, .stallwise [tabindex]:focus-visible { outline: 2px solid var(--network);
  outline-offset: 3px; border-radius: 2px; }
.stallwise .tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(10.5rem, 1fr)); gap: .75rem;
  margin: 1.2rem 0 0; padding: 0; }
.stallwise .tile { background: var(--raised); border: 1px solid var(--line); border-radius: 8px; padding: .7rem .9rem; }
.stallwise .tile dt { color: var(--dim); font-size: .8em; }
.stallwise .tile dd { margin: 0; color: var(--dim); font-size: .85em; overflow-wrap: anywhere; }
.stallwise .tile dd strong { display: block; color: var(--ink); font-size: 1.5em; line-height: 1.25; font-weight: 650;
  letter-spacing: -.01em; }
.stallwise .verdict { border-left: 4px solid var(--rate); background: var(--raised); border-radius: 0 8px 8px 0;
  padding: .7rem 1rem; margin: .75rem 0 0; }
.stallwise .verdict p { margin: .15rem 0; }
.stallwise .swatch { display: inline-block; width: .7em; height: .7em; border-radius: 2px; margin-right: .5em;
  background: var(--rate); }
.stallwise .scroll { overflow-x: auto; }
.stallwise table { border-collapse: collapse; width: 100%; margin: .5rem 0 0; }
.stallwise caption { text-align: left; padding: .1rem 0 .4rem; font-size: .87em; }
.stallwise tbody th small { max-width: 18em; }
.stallwise th, .stallwise td { text-align: left; padding: .38rem .9rem .38rem 0; border-bottom: 1px solid var(--line);
  vertical-align: middle; }
.stallwise th:last-child, .stallwise td:last-child { padding-right: 0; }
.stallwise tbody tr:last-child > *, .stallwise tfoot tr:last-child > * { border-bottom: 0; }
.stallwise thead th { color: var(--dim); font-weight: 400; font-size: .82em; padding-top: 0; white-space: nowrap; }
.stallwise tbody th { font-weight: 600; line-height: 1.3; white-space: nowrap; }
.stallwise tbody th.name, .stallwise tbody th small { white-space: normal; overflow-wrap: anywhere; }
.stallwise tfoot th, .stallwise tfoot td { font-weight: 600; border-top: 1px solid var(--dim); }
.stallwise .n { text-align: right; white-space: nowrap; }
.stallwise .aside { color: var(--dim); font-weight: 400; font-size: .87em; }
.stallwise .words { color: var(--dim); overflow-wrap: anywhere; }
.stallwise .chart { width: 36%; min-width: 7rem; }
.stallwise .code { font: .92em ui-monospace, "SF Mono", Menlo, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
.stallwise .path { display: flex; flex-wrap: wrap; gap: .75rem 2rem; list-style: none; margin: .7rem 0 0; padding: 0; }
.stallwise .path li { position: relative; flex: 1 1 9.5rem; background: var(--raised); border: 1px solid var(--line);
  border-radius: 8px; padding: .6rem .8rem .7rem; }
.stallwise .path li + li::before { content: "→"; position: absolute; left: -1.62rem; top: 50%; color: var(--dim);
  transform: translateY(-50%); font-size: 1.2em; }
.stallwise .path li.narrowest { border-color: var(--ink); box-shadow: inset 0 0 0 1px var(--ink); }
.stallwise .path li.job { background: none; border: 1px dashed var(--dim); }
.stallwise .path strong { display: block; font-size: 1.25em; line-height: 1.3; }
.stallwise .path .bar { margin: .3rem 0 .2rem; }
.stallwise .pairs { display: grid; grid-template-columns: repeat(auto-fit, minmax(19rem, 1fr)); gap: 0 2.5rem; }
.stallwise ul { margin: .4rem 0; padding-left: 1.2rem; }
.stallwise svg { display: block; width: 100%; overflow: visible; }
.stallwise svg.picture { height: auto; margin: .6rem 0 0; }
.stallwise svg text { fill: var(--dim); font-size: 13px; }
.stallwise svg .track { fill: var(--track); }
.stallwise svg .whisker { stroke: var(--ink); stroke-width: 1.5; }
.stallwise svg .limit { stroke: var(--ink); stroke-width: 1; stroke-dasharray: 3 3; }
.stallwise svg .axis { stroke: var(--dim); stroke-width: 1; }
.stallwise svg .even { fill: var(--forward); }
.stallwise svg .odd { fill: var(--backward); }
@media (max-width: 40rem) { .stallwise { padding: 1.1rem 1rem 2rem; }
  .stallwise tbody th small, .stallwise .wide { display: none; }
  .stallwise th, .stallwise td { padding-right: .6rem; }
  .stallwise .chart { width: 28%; min-width: 4rem; }
  .stallwise caption span { display: block; max-width: calc(100vw - 2rem); }
  .stallwise .path { flex-direction: column; gap: 1.7rem; } .stallwise .path li { flex: none; }
  .stallwise .path li + li::before { content: "↓"; left: 50%; top: -.87rem; transform: translate(-50%, -50%); } }
@media print { .stallwise { --ink: #000; --dim: #444; --line: #ccc; --paper: #fff; --raised: #fff; --track: #eee;
  --warn: #000; --compute: #00835f; --copy: #2386bd; --interconnect: #b0568b; --network: #005a94; --prep: #b27700;
  --fetch: #c24e00; --rate: #66717f; --forward: #2386bd; --backward: #00567f; --skew: #66717f; max-width: none;
  padding: 0; font-size: 8pt; line-height: 1.3; print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  .stallwise nav { display: none; } .stallwise table { margin-top: .2rem; }
  .stallwise h1 { font-size: 16pt; } .stallwise h2 { font-size: 10pt; margin-top: .75em; padding-top: .35em; }
  .stallwise th, .stallwise td { padding-top: .12rem; padding-bottom: .12rem; }
  .stallwise tbody th small { display: none; } .stallwise svg.picture { width: 60%; }
  .stallwise .tiles { margin-top: .6rem; gap: .5rem; grid-template-columns: repeat(4, 1fr); }
  .stallwise .tile { padding: .35rem .6rem; }
  .stallwise .verdict { padding: .3rem .8rem; } .stallwise .path li { padding: .3rem .6rem .4rem; }
  .stallwise .path { flex-wrap: nowrap; } .stallwise .path li { flex: 1 1 0; }
  .stallwise .pairs { grid-template-columns: 1fr 1fr; }
  .stallwise h2 { break-after: avoid; }
  .stallwise .tile, .stallwise .verdict, .stallwise .path, .stallwise svg, .stallwise tr { break-inside: avoid; } }
"""
# For each kind of bar and swatch its colour.
KINDS = ("compute", "copy", "interconnect", "network", "prep", "fetch", "rate", "forward", "backward", "skew")
STYLE += "".join(
    f".stallwise svg .{kind} {{ fill: var(--{kind}); }}\n"
    f".stallwise .swatch.{kind} {{ background: var(--{kind}); }}\n"
    f".stallwise .verdict.{kind} {{ border-color: var(--{kind}); }}\n"
    for kind in KINDS
)

BODY_STYLE = """
body { margin: 0; background: #ffffff; }
@media (prefers-color-scheme: dark) { body { background: #15191e; } }
@media print { body { background: #fff; } @page { size: A4; margin: 14mm 14mm 12mm; } }
"""
