"""What a reviewer looks at: nets in numbers, schedules, recipes on a page, estimates, and their pictures."""
