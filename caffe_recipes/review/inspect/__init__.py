"""What a reviewer looks at: net summaries, schedules, recipes, time estimates, and plots of them."""
