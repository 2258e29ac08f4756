"""The run: plan, journal, runner, console. Floor 6."""
