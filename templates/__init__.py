"""The jinja2 templates of the generated job scripts (a package, so that a wheel carries them)."""
