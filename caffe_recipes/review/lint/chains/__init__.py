"""Rules on chains of solvers: what each phase is, and what it hands to the next."""
