"""Results shown to people and programs. Sentences are made here, from the facts and codes of the layers above.

- `view`: what is shown of a result: heading, facts, tables, charts, notes. No markup.
- `views/`: one module per subject; `draw` returns its view, `document` plain values for JSON.
- `terminal`: views as text of the width that there is; no number is cut.
- `html`: views as pages and in notebooks, by the templates in `templates/` and the style sheets in `css/`.
- `charts`: bars, line charts, heat maps and step timelines as inline SVG.
- `format`: numbers, times and sizes as text, and text made printable.
- `json`: plain values, schemas and the JSON text.
- `perfetto`: a run as a trace file for timeline viewers.
"""
