"""What a failure means: the lines that programs print when they fail, and what to do about each."""
