"""One run of a command: two consoles, one-line errors and warnings, exit codes."""

import contextlib
import json
import math
import os
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, final

import typer
from rich.console import Console, RenderableType
from rich.text import Text

from postmatch.cli.groups import Running

MOST_ALIKE = 3  # warnings of one kind that are shown; a stream can give one per block
USER_ERRORS = (ValueError, TypeError, OSError, ImportError)


@final
class Session:
    """Where a command's words go: results to stdout, all else to stderr."""

    def __init__(self, running: Running) -> None:
        self.running = running
        self.out = Console(highlight=False)
        self.err = Console(stderr=True, highlight=False)
        self.warned: Counter[str] = Counter()
        self.settled: set[str] = set()

    @property
    def quiet(self) -> bool:
        """Whether only warnings and errors are wanted."""
        return self.running.quiet

    def say(self, text: str) -> None:
        """Tell what is going on."""
        if not self.quiet:
            self._line(self.err, text, "dim")

    def show(self, result: RenderableType, *, aside: bool = False, asked_for: bool = False) -> None:
        """Print a result for people to read.

        Args:
            result: What rich can print.
            aside: Whether stdout carries a table.
            asked_for: Whether it is all that the command is for, so that --quiet keeps it.
        """
        if (asked_for or not self.quiet) and not self.running.json:
            (self.err if aside else self.out).print(result)

    def result(self, data: dict[str, Any]) -> None:
        """Print a result for programs to read, if that is wanted."""
        if self.running.json:
            sys.stdout.write(json.dumps(_plain(data), ensure_ascii=False) + "\n")

    def finish(self, place: str) -> None:
        """Say where the answer is, if it is not on stdout."""
        if place != "-":
            self.say(f"Written to {place}.")
            self.result({"output": place})

    def warn(self, text: str) -> None:
        """Show a warning as one line, and of many that are alike the first ones."""
        kind = text.partition(":")[0]
        if kind in self.settled:
            return
        self.warned[kind] += 1
        if self.warned[kind] <= MOST_ALIKE:
            self._line(self.err, f"warning: {text}", "yellow")

    def settle(self) -> None:
        """Show no more warnings like those before: what follows is about the same rows again."""
        self.settled |= set(self.warned)

    def fail(self, text: str) -> None:
        """Show an error as one line."""
        self._line(self.err, f"error: {text}", "bold red")

    def close(self) -> None:
        """Say how many warnings were not shown."""
        for kind, count in self.warned.items():
            if count > MOST_ALIKE:
                more = f"{count - MOST_ALIKE:,} more like this: {kind}"
                self._line(self.err, f"warning: {more}", "yellow")

    @staticmethod
    def _line(console: Console, text: str, style: str) -> None:
        console.print(Text(" ".join(text.split()), style=style), soft_wrap=True)


@contextlib.contextmanager
def session(running: Running) -> Iterator[Session]:
    """Run a command's body: errors become one red line and an exit code."""
    here = Session(running)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = lambda message, *_, **__: here.warn(str(message))
        try:
            yield here
        except KeyboardInterrupt:
            here.fail("interrupted; files are as they were before, or complete")
            raise typer.Exit(130) from None
        except BrokenPipeError:  # the reader of stdout has seen enough, as head does
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except (typer.Exit, typer.Abort, typer.BadParameter):  # usage, which typer explains
            raise
        except Exception as error:
            if running.debug:
                here.err.print_exception()
            here.fail(_explained(error))
            raise typer.Exit(1) from None
        finally:
            here.close()


def _explained(error: Exception) -> str:
    text = str(error)
    if isinstance(error, OSError) and error.filename is not None:
        text = f"{error.filename}: {(error.strerror or str(error)).lower()}"
    if isinstance(error, USER_ERRORS) and text:
        return text
    return f"{type(error).__name__}: {text} (this may be a bug; --debug shows where)"


def _plain(value: Any) -> Any:
    """Return what JSON can say: Python's own numbers, and null for those it has no word for."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool | None) else str(value)
