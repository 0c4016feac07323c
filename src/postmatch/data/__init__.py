"""Named data sets: found, checked and split."""
