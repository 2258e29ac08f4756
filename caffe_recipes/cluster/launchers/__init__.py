"""The programs that start ranks, each in a module of its own, which is all that a new one needs."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType

from caffe_recipes.cluster.launchers.hydra import LAUNCHER as DEFAULT_LAUNCHER
from caffe_recipes.cluster.launchers.launcher import Launcher

__all__ = ["DEFAULT_LAUNCHER", "LAUNCHERS"]

_MODULES = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
_FOUND: list[Launcher] = [each.LAUNCHER for each in _MODULES if hasattr(each, "LAUNCHER")]
# By program.
LAUNCHERS: Mapping[str, Launcher] = MappingProxyType({each.program: each for each in _FOUND})
