"""What a command says at the end: how much was filled, how well, and the first rows."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, final

from rich.console import Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from postmatch.cli.grids import plain_grid, quality, titled

if TYPE_CHECKING:
    from postmatch.models import TableModel

PREVIEW_ROWS, PREVIEW_COLUMNS = 5, 10
MOST_COLUMNS = 25


@final
class Filled:
    """Counts what was filled, block after block, and remembers the first rows of it."""

    def __init__(self, model: "TableModel") -> None:
        self.model = model
        self.rows = 0
        self.cells: Counter[str] = Counter()
        self.left: Counter[str] = Counter()
        self.names: list[str] = []
        self.first: list[tuple[int, list[str], list[bool]]] = []

    def add(self, before: Any, after: Any, offset: int) -> None:
        """Count the cells of a block that were changed, which are those that were filled."""
        import numpy as np

        self._begin(before)
        masks = [changed(a, b) for a, b in zip(before.columns, after.columns, strict=True)]
        for name, mask in zip(self.names, masks, strict=True):
            self.cells[name] += int(mask.sum())
        if len(self.first) < PREVIEW_ROWS and masks:
            holes = np.column_stack(masks)  # (rows, columns)
            for row in np.flatnonzero(holes.any(1))[: PREVIEW_ROWS - len(self.first)].tolist():
                texts = [_text(column[row].as_py()) for column in after.columns]
                self.first.append((offset + row + 1, texts, holes[row].tolist()))

    def count(self, block: Any) -> None:
        """Count the holes of a block that can be filled."""
        from postmatch.cli.wording import labelled

        self._begin(block)
        counts = self.model.table.holes(block).sum(0).tolist()
        pairs = zip(labelled(self.model.table), counts, strict=True)
        self.cells.update({label: count for (_, label), count in pairs})

    def _begin(self, block: Any) -> None:
        from postmatch.cli.wording import labels

        self.names, self.rows = labels(block.column_names), self.rows + block.num_rows
        self.left.update(self.model.table.left_missing(block))

    def shown(self, outputs: Sequence[str]) -> list[RenderableType]:
        """Return what people read at the end."""
        preview = self.preview()
        parts: list[RenderableType] = [] if preview is None else [preview, ""]
        parts += [self.table(), *self.remark(), ""]
        if outputs[0] != "-":
            place = outputs[0] if len(outputs) == 1 else f"{outputs[0]} ... {outputs[-1]}"
            parts.append(Text.assemble("Written to ", (place, "bold")))
        return parts

    def remark(self) -> list[Text]:
        """Return what stays missing, in words."""
        from postmatch.tables.cells import counted

        total, names = sum(self.left.values()), [name for name, _ in self.left.most_common()]
        if not total:
            return []
        more = f" and {counted(len(names) - 3, 'more column')}" if len(names) > 3 else ""
        stay = f"{counted(total, 'cell')} {'stays' if total == 1 else 'stay'} missing"
        return [Text(f"{stay} in {', '.join(map(repr, names[:3]))}{more}: not modelled.")]

    def table(self) -> RenderableType:
        """Return the cells filled per column, beside how well hidden ones were told."""
        from postmatch.cli.wording import labels
        from postmatch.tables.cells import counted

        total = sum(self.cells.values())
        if not total:
            none = (
                "No cell was filled." if self.left else "No cell was missing, so none was filled."
            )
            return Text(none)
        known = quality(self.model)
        grid = plain_grid("column", "kind", ">filled", *(["on held-out cells"] if known else []))
        table = self.model.table
        kinds = dict(zip(labels(table.names), (c.kind for c in table.columns), strict=True))
        rows = [(name, count) for name, count in self.cells.most_common() if count]
        for name, count in rows[:MOST_COLUMNS]:
            extra = [known.get(name, "")] if known else []
            grid.add_row(Text(name), kinds.get(name, ""), f"{count:,}", *extra)
        if len(rows) > MOST_COLUMNS:
            rest = sum(count for _, count in rows[MOST_COLUMNS:])
            grid.add_row(f"{len(rows) - MOST_COLUMNS} more", "", f"{rest:,}")
        if known:
            caption = "These cells also chose when to stop, and how wide intervals are."
            grid.caption, grid.caption_justify = caption, "left"
        return titled(f"{counted(total, 'cell')} filled in {counted(self.rows, 'row')}", grid)

    def record(self, outputs: Sequence[str]) -> dict[str, Any]:
        """Return the same for programs."""
        return {
            "rows": self.rows,
            "filled": {name: count for name, count in self.cells.items() if count},
            "left_missing": dict(self.left),
            "outputs": list(outputs),
            "notes": list(self.model.table.notes),
            "model": self.model.facts,
        }

    def preview(self) -> RenderableType | None:
        """Return the first rows that had holes, with what was filled standing out."""
        if not self.first:
            return None
        # Columns with something filled come first where not all of them fit.
        order = sorted(range(len(self.names)), key=lambda i: not self.cells[self.names[i]])
        shown = sorted(order[:PREVIEW_COLUMNS])
        grid = Grid(box=None)
        grid.add_column("row", justify="right", style="dim")
        for index in shown:
            grid.add_column(Text(self.names[index]), overflow="ellipsis", max_width=18)
        for row, texts, filled in self.first:
            cells = [
                Text(f"{texts[i]}*", "bold green") if filled[i] else Text(texts[i]) for i in shown
            ]
            grid.add_row(str(row), *cells)
        whole = titled("First filled rows (* was missing)", grid)
        if len(shown) < len(self.names):
            from postmatch.tables.cells import counted

            more = counted(len(self.names) - len(shown), "more column")
            return Group(whole, Text(f"({more})", "dim"))
        return whole


def changed(before: Any, after: Any) -> Any:
    """Return which cells of a column differ, as a bool array; a filled hole always does."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if before.equals(after):
        return np.zeros(len(before), dtype=bool)
    if pa.types.is_dictionary(before.type):
        before, after = (c.cast(c.type.value_type) for c in (before, after))
    same = pc.fill_null(pc.equal(before, after), False)
    same = pc.or_(same, pc.and_(pc.is_null(before), pc.is_null(after)))
    if pa.types.is_floating(before.type):  # NaN is missing, and equals nothing
        same = pc.or_(same, pc.and_(_is_nan(before), _is_nan(after)))
    return ~np.asarray(same.combine_chunks() if isinstance(same, pa.ChunkedArray) else same)


def _is_nan(column: Any) -> Any:
    import pyarrow.compute as pc

    return pc.fill_null(pc.is_nan(column), False)


def _text(value: Any) -> str:
    return (
        "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value).strip()
    )
