"""The table of what is looked at. A check returns findings; an error that it raises is one, too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from caffe_recipes.chain.journal import RunState
from caffe_recipes.chain.plan import Plan
from caffe_recipes.chain.preflight.data import check_test_lmdb, check_train_lmdb
from caffe_recipes.chain.preflight.disk import check_disk, check_snapshots
from caffe_recipes.chain.preflight.files import check_prototxts, check_start
from caffe_recipes.chain.preflight.findings import Finding
from caffe_recipes.chain.preflight.folders import check_folders
from caffe_recipes.chain.preflight.launcher import check_launcher
from caffe_recipes.chain.preflight.look import Look, look_at_nodes
from caffe_recipes.chain.preflight.machine import (
    check_clocks,
    check_cores,
    check_hosts,
    check_launches,
    check_memory,
    check_tmp,
)
from caffe_recipes.chain.preflight.spares import check_spares
from caffe_recipes.chain.preflight.trainer import check_trainer
from caffe_recipes.chain.setting import Setting
from caffe_recipes.errors import CaffeRecipesError

CHECKS: Mapping[str, Callable[[Look], list[Finding]]] = {
    "hosts": check_hosts,
    "launches": check_launches,
    "spares": check_spares,
    "cores": check_cores,
    "memory": check_memory,
    "/tmp": check_tmp,
    "clock": check_clocks,
    "launcher": check_launcher,
    "trainer": check_trainer,
    "folders": check_folders,
    "prototxts": check_prototxts,
    "training data": check_train_lmdb,
    "test data": check_test_lmdb,
    "starts from": check_start,
    "snapshots": check_snapshots,
    "disk": check_disk,
}


def run_preflight(setting: Setting, plan: Plan, state: RunState, under_way: str = "") -> list[Finding]:
    """Look at everything, whatever is wrong with the rest; nothing on any disk is changed.

    The checks go on at once: each waits for hosts most of the time. `under_way` says what trains there now:
    launcher and trainer are not tried beside it.
    """
    look = look_at_nodes(setting, plan, state, under_way)
    pool = ThreadPoolExecutor(len(CHECKS), thread_name_prefix="preflight")
    try:
        futures = [pool.submit(_look, subject, check, look) for subject, check in CHECKS.items()]
        return [finding for future in futures for finding in future.result()]
    except BaseException:  # a Ctrl-C of the user's
        look.commands.stop()
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _look(subject: str, check: Callable[[Look], list[Finding]], look: Look) -> list[Finding]:
    try:
        return check(look)
    except CaffeRecipesError as error:
        return [Finding(subject, str(error), error)]
