"""The command line: parse, call, print."""

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, by default that of ``sys.argv``, and return its exit code."""
    from postmatch.cli.app import run

    return run(arguments)
