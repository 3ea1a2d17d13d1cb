"""A page: headings, pictures, tables and provenance in one HTML file that needs nothing else."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

_STYLE = """
:root { --ink: #1c2733; --soft: #5b6b7b; --line: #dde3e9; --accent: #0072b2; }
* { box-sizing: border-box; }
body { margin: 0; background: #f5f7f9; color: var(--ink); font: 16px/1.5 system-ui, "Segoe UI", "DejaVu Sans", Arial, sans-serif; }
main { max-width: 1160px; margin: 0 auto; padding: 32px 24px 48px; }
h1 { font-size: 32px; line-height: 1.2; margin: 0 0 4px; letter-spacing: -0.01em; }
h2 { font-size: 20px; margin: 0 0 4px; }
p { margin: 0 0 12px; max-width: 75ch; }
.lead { color: var(--soft); font-size: 18px; margin-bottom: 24px; }
section { background: #fff; border: 1px solid var(--line); border-radius: 10px; padding: 20px 24px; margin: 0 0 20px; }
section p { color: var(--soft); }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(200px, 1fr)); gap: 16px; margin: 0 0 20px; }
.card { background: #fff; border: 1px solid var(--line); border-radius: 10px; padding: 16px 20px; }
.card b { display: block; font-size: 32px; line-height: 1.2; color: var(--accent); font-variant-numeric: tabular-nums; }
.card span { color: var(--soft); font-size: 14px; }
figure { margin: 0; overflow-x: auto; }
figure svg { display: block; width: 100%; min-width: 720px; height: auto; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 5px 8px; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--soft); font-weight: 600; }
th.text, td.text { text-align: left; }
tr.first td { border-top: 2px solid var(--line); }
td.bad { color: #b00020; font-weight: 700; }
td.text { white-space: normal; }
td.text:last-child { overflow-wrap: anywhere; min-width: 9em; }
.note { border-top: 1px solid var(--line); padding: 14px 0; break-inside: avoid; }
.note h3 { font-size: 16px; margin: 0 0 4px; }
.note p { color: var(--ink); }
.badge { font-size: 12px; font-weight: 700; text-transform: uppercase; border-radius: 6px; padding: 2px 8px;
  margin-right: 8px; color: #fff; }
.badge.error { background: #b00020; } .badge.warning { background: #9a5b00; } .badge.info { background: #3b6ea5; }
.note pre { background: #f5f7f9; border-radius: 6px; padding: 8px 12px; margin: 0 0 12px; overflow-x: auto;
  font: 12px/1.5 ui-monospace, "DejaVu Sans Mono", monospace; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 4px 16px; margin: 0; font-size: 14px; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; }
code { font: 13px ui-monospace, "DejaVu Sans Mono", monospace; }
.command span { display: inline-block; max-width: 100%; }
@media (max-width: 600px) {
  main { padding: 16px 8px 32px; } section { padding: 16px 12px; } h1 { font-size: 26px; } .lead { font-size: 16px; }
  td.text:last-child { min-width: 18em; }
}
@media print { body { background: #fff; } section, .card { break-inside: avoid; } figure svg { min-width: 0; } }
"""


@dataclass(frozen=True)
class Note:
    """Something that a page tells at length: how grave, what, where it was seen, and named texts."""

    severity: str  # error, warning, info
    title: str
    id: str
    text: str
    lines: tuple[str, ...]
    details: tuple[tuple[str, str], ...]


class Page:
    """Collects the parts of a page in order."""

    def __init__(self, title: str, lead: str) -> None:
        """Title and one sentence under it."""
        self._title = title
        self._parts = [f"<h1>{html.escape(title)}</h1>", f'<p class="lead">{html.escape(lead)}</p>']

    def cards(self, cards: Sequence[tuple[str, str]]) -> None:
        """Big figures with what they say."""
        inner = "".join(f'<div class="card"><b>{html.escape(figure)}</b><span>{html.escape(text)}</span></div>' for figure, text in cards)
        self._parts.append(f'<div class="cards">{inner}</div>')

    def figure(self, title: str, text: str, svg: str) -> None:
        """A picture (an <svg> element) under a heading and an explanation."""
        self._section(title, text, f"<figure>{svg}</figure>")

    def table(self, title: str, text: str, head: Sequence[str], rows: Sequence[Sequence[str]], text_columns: int) -> None:
        """A table whose first `text_columns` columns are words; a row whose first cell is not empty starts a group."""

        def cells(tag: str, row: Sequence[str]) -> str:
            kinds = ("text" if place < text_columns else "bad" if cell.startswith("WRONG") else "" for place, cell in enumerate(row))
            return "".join(f'<{tag} class="{kind}">{html.escape(cell)}</{tag}>' for kind, cell in zip(kinds, row, strict=True))

        body = "".join(f'<tr class="{"first" if row[0] else ""}">{cells("td", row)}</tr>' for row in rows)
        self._section(
            title, text, f'<div class="scroll"><table><thead><tr>{cells("th", head)}</tr></thead><tbody>{body}</tbody></table></div>'
        )

    def notes(self, title: str, text: str, notes: Sequence[Note]) -> None:
        """Things told one below the other."""

        def note(each: Note) -> str:
            badge = f'<span class="badge {html.escape(each.severity)}">{html.escape(each.severity)}</span>'
            lines = f"<pre>{html.escape(chr(10).join(each.lines))}</pre>" if each.lines else ""
            details = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>" for name, value in each.details if value)
            heading = f"<h3>{badge}{html.escape(each.title)} <code>{html.escape(each.id)}</code></h3>"
            return f'<div class="note">{heading}<p>{html.escape(each.text)}</p>{lines}<dl>{details}</dl></div>'

        self._section(title, text, "".join(map(note, notes)))

    def facts(self, title: str, facts: Sequence[tuple[str, str]], command: str) -> None:
        """Where the figures come from."""
        items = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>" for name, value in facts)
        # Browsers break lines behind hyphens, and no property of text forbids it: each word is a box of its own.
        words = " ".join(f"<span>{html.escape(word)}</span>" for word in command.split())
        self._section(title, "", f'<dl>{items}<dt>command</dt><dd><code class="command">{words}</code></dd></dl>')

    def render(self) -> str:
        """The HTML document."""
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
            f"<title>{html.escape(self._title)}</title><style>{_STYLE}</style></head><body><main>\n"
            + "\n".join(self._parts)
            + "\n</main></body></html>\n"
        )

    def _section(self, title: str, text: str, content: str) -> None:
        paragraph = f"<p>{html.escape(text)}</p>" if text else ""
        self._parts.append(f"<section><h2>{html.escape(title)}</h2>{paragraph}{content}</section>")
