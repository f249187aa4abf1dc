"""The report: one page of all results, from the files that a run has kept."""
