"""Preflight: everything that can be known to be wrong before a run, looked at before anything is changed.

`checks` is the table; `nodes` asks each host for its facts by one command, `trainer` and `launcher` try.
"""

from caffe_recipes.chain.preflight.checks import run_preflight
from caffe_recipes.chain.preflight.findings import Finding

__all__ = ["Finding", "run_preflight"]
