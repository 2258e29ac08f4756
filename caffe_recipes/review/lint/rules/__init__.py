"""The rules of lint, a subject in each module. Every module here is imported, and its rules are called."""
