"""The report of runs: one self-contained HTML page that shows what happened, and what came of it."""
