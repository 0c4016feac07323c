"""The frame of a report: one HTML page that needs nothing else."""

import html
from collections.abc import Sequence
from importlib import resources


def page(title: str, parts: Sequence[str]) -> str:
    """Return the whole page."""
    style = resources.files("postmatch.cli").joinpath("report.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in parts if part)
        + "\n</main>\n</body>\n</html>\n"
    )


def section(title: str, *parts: str) -> str:
    """Return a part of the page under its heading."""
    return f"<section>\n<h2>{html.escape(title)}</h2>\n{''.join(parts)}\n</section>"


def paragraph(text: str, kind: str = "") -> str:
    """Return a paragraph of plain text."""
    name = f' class="{kind}"' if kind else ""
    return f"<p{name}>{html.escape(text)}</p>"


def points(texts: Sequence[str]) -> str:
    """Return a list of plain texts."""
    return "<ul>" + "".join(f"<li>{html.escape(text)}</li>" for text in texts) + "</ul>"


def tiles(pairs: Sequence[tuple[str, str]]) -> str:
    """Return large numbers, each with a few words."""
    made = (
        f'<div class="tile"><b>{html.escape(value)}</b><span>{html.escape(label)}</span></div>'
        for value, label in pairs
    )
    return f'<div class="tiles">{"".join(made)}</div>'


def grid(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int]) -> str:
    """Return a table of plain texts; the columns at ``numbers`` are set to the right."""

    def cells(texts: Sequence[str], tag: str) -> str:
        return "".join(
            f"<{tag}{' class=n' if place in numbers else ''}>{html.escape(text)}</{tag}>"
            for place, text in enumerate(texts)
        )

    lines = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return f"<table><thead><tr>{cells(head, 'th')}</tr></thead><tbody>{lines}</tbody></table>"


def card(title: str, aside: str, body: str) -> str:
    """Return a framed picture under a name."""
    heading = f"<h3>{html.escape(title)}</h3><span>{html.escape(aside)}</span>"
    return f'<div class="card">{heading}{body}</div>'
