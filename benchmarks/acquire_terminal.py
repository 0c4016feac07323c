"""Time a conversation with `postmatch acquire --interactive` in a terminal, answer by answer.

Usage: python benchmarks/acquire_terminal.py -m people.model --target income

Every question is answered with what the model expects, typed into a pseudo-terminal; the time is
that from the end of the line to the next question. Prints one JSON line. It needs a Unix.
"""

import argparse
import json
import os
import pty
import re
import sys
import time
from pathlib import Path

import torch

from postmatch.recipes.results import provenance

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
FIRST = re.compile(r"^ *1 +\S+ +\S+ +\S+ +\S+ +(\S+)", re.MULTILINE)  # the best offer's value


def main() -> int:
    """Talk to it, and print how long it took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", type=Path, required=True)
    parser.add_argument("--target", required=True)
    arguments = parser.parse_args()
    words = ["acquire", "-m", str(arguments.model), "--target", arguments.target, "--interactive"]
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["COLUMNS"] = "120"
        os.execv(sys.executable, [sys.executable, "-m", "postmatch", *words])
    text, found = until_asked(terminal), []
    while text is not None:
        expected = FIRST.findall(text)
        start = time.perf_counter()
        os.write(terminal, f"{expected[-1] if expected else 'skip'}\n".encode())
        text = until_asked(terminal)
        if text is not None and "What to measure next" in text:  # not where a value was refused
            found.append(round(1e3 * (time.perf_counter() - start), 1))
    os.waitpid(pid, 0)
    line = {"benchmark": "acquire_terminal", "target": arguments.target, "ms": found}
    print(json.dumps(line | provenance(torch.device("cpu"))))
    return 0


def until_asked(terminal: int) -> str | None:
    """Return what is written up to the next question, None if there is no other."""
    text = ""
    while not text.endswith("? "):
        try:
            text = COLOUR.sub("", text + os.read(terminal, 65_536).decode(errors="replace"))
        except OSError:  # the other end is closed
            return None
    return text


if __name__ == "__main__":
    sys.exit(main())
