"""Click commands: parse, call one function, print. Floor 7."""
