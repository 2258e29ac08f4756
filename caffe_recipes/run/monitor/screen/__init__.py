"""The screen of `attach`: what a followed run shows on a terminal while it trains."""
