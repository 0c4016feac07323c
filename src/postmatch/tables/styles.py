"""How the cells of one column are written, so that filled cells look like their neighbours."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Self, final

SAMPLE = 5_000  # distinct texts looked at
EXACT = 1e22  # below, a whole number is written in full
PARTS = re.compile(r"[+-]?0*(\d*)[.,]?(\d*)(?:[eE]([+-]?\d+))?")


@final
@dataclass(frozen=True)
class Style:
    """The form of a column's texts.

    Args:
        decimals: The most decimals seen.
        digits: The most significant digits seen.
        fixed: Every number shows the same number of decimals.
        comma: The decimal mark is a comma.
        lead: Blanks before every cell, as after the commas of ``a, b``.
        trail: Blanks after every cell.
        date: The format of dates, as for ``strftime``.
        exponent: Every number has an exponent, as 5.126e+06 has.
    """

    decimals: int = 15
    digits: int = 6
    fixed: bool = False
    comma: bool = False
    lead: str = ""
    trail: str = ""
    date: str = "%Y-%m-%d"
    exponent: bool = False

    @classmethod
    def of_texts(cls, texts: Iterable[str]) -> Self:
        """Return the padding that most of the texts share."""
        padding: dict[tuple[str, str], int] = {}
        for text in texts:
            bare = text.strip()
            if bare:
                at = text.index(bare)
                key = (text[:at], text[at + len(bare) :])
                padding[key] = padding.get(key, 0) + 1
        lead, trail = max(padding, key=lambda key: padding[key], default=("", ""))
        return cls(lead=lead, trail=trail)

    def pad(self, text: str) -> str:
        """Return the text with the blanks of its column around."""
        return f"{self.lead}{text}{self.trail}"

    def number(self, value: float) -> str:
        """Return a number as this column writes numbers."""
        if self.exponent:
            text = f"{value:.{self.digits - 1}e}"
            return self.pad(text.replace(".", ",") if self.comma else text)
        if abs(value) >= (1e15 if self.decimals else EXACT):
            return self.pad(f"{value:.{self.digits}g}")
        places = self.decimals
        if not self.fixed and value:
            places = min(places, self.digits - 1 - math.floor(math.log10(abs(value))))
        text = f"{value:.{max(places, 0)}f}"
        if not self.fixed and "." in text:
            text = text.rstrip("0").rstrip(".")
        if text.startswith("-") and not text.strip("-0."):
            text = text[1:]  # no minus before zero
        return self.pad(text.replace(".", ",") if self.comma else text)

    def moment(self, value: datetime) -> str:
        """Return a date or time as this column writes them."""
        return self.pad(value.strftime(self.date))


def number_form(texts: Sequence[str]) -> Style:
    """Return decimals, digits and exponents of numbers as text."""
    decimals, digits, exponents = [0], [1], []
    shown = set()
    for text in texts:
        match = PARTS.fullmatch(text)
        if match is None:
            continue
        whole, fraction, exponent = match.groups()
        decimals.append(len(fraction) - int(exponent or 0))
        digits.append(len((whole + fraction).lstrip("0")))
        exponents.append(exponent is not None)
        shown.add(len(fraction))
    return Style(
        min(max(decimals), 15),
        min(max(digits), 17),
        fixed=len(shown) == 1 and not any(exponents),
        exponent=bool(exponents) and all(exponents),
    )


def date_format(text: str) -> str:
    """Return the ``strftime`` format of one ISO date or time."""
    between = text[10:11]
    clock = text[11:]
    parts = {0: "", 5: "%H:%M", 8: "%H:%M:%S"}.get(len(clock), "%H:%M:%S.%f")
    return f"%Y-%m-%d{between}{parts}"
