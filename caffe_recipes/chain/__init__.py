"""The run: plan, journal, runner, report. Floor 5."""
