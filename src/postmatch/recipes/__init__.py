"""One file per experiment of the paper: a frozen config, and a run that returns its numbers."""
