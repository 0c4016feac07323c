"""DataFrames and files in, tensors out, and back."""

from postmatch.tables.column import Column
from postmatch.tables.reading import read_table, stream_table
from postmatch.tables.table import Table
from postmatch.tables.writing import open_writer, write_table

__all__ = ["Column", "Table", "open_writer", "read_table", "stream_table", "write_table"]
