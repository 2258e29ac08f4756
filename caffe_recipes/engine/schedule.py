"""The rate of each iteration of a run, with the steps that a policy has taken."""

from __future__ import annotations

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.rates import lr_at, stepped_lr, steps_at
from caffe_recipes.engine.glog import Log, number

_FLT_MAX = 3.4028234663852886e38


class Schedule:
    """Rates as Caffe computes them; `plateau` steps when the loss has not fallen for plateau_winsize."""

    def __init__(self, solver: pb.SolverParameter, log: Log) -> None:
        self._solver, self._log = solver, log
        self.current_step, self.minimum_loss, self.last_event = 0, _FLT_MAX, 0

    def resume(self, state: pb.SolverState) -> None:
        """Go on from a solverstate."""
        self.current_step, self.minimum_loss = state.current_step, state.minimum_loss
        self.last_event = state.iter_last_event

    def state(self, iteration: int) -> pb.SolverState:
        """Make the solverstate of an iteration, without history."""
        return pb.SolverState(
            iter=iteration,
            current_step=self.current_step,
            minimum_loss=self.minimum_loss,
            iter_last_event=self.last_event,
        )

    def rate(self, iteration: int, loss: float) -> float:
        """Give the rate of an iteration's update; `loss` is the displayed one."""
        solver = self._solver
        if iteration < solver.warmup_iter:
            return lr_at(solver, iteration)
        if solver.lr_policy == "plateau":
            self._watch(iteration, loss)
            return stepped_lr(solver, self.current_step)
        step = steps_at(solver, iteration)
        if solver.lr_policy == "multistep" and step > self.current_step:
            status = f"MultiStep Status: Iteration {iteration}, step = {step}"
            self._log.info("sgd_solver.cpp:98", status)
        self.current_step = step
        return lr_at(solver, iteration)

    def _watch(self, iteration: int, loss: float) -> None:
        """Take a step where neither a new least loss nor a step has come for plateau_winsize iterations."""
        solver = self._solver
        if loss < self.minimum_loss:
            self.minimum_loss, self.last_event = loss, iteration
        if self.current_step < len(solver.plateau_winsize):
            window = solver.plateau_winsize[self.current_step]
            if iteration >= self.last_event + window:
                self.current_step, self.last_event = self.current_step + 1, iteration
                status = f"Plateau Status: Iteration {iteration}, step = {self.current_step}"
                self._log.info("sgd_solver.cpp:126", status)
        if (
            solver.display
            and iteration % solver.display == 0
            and self.last_event > iteration - solver.display
        ):
            least = number(self.minimum_loss)
            status = f"Plateau Status: Iteration {iteration}, current minimum_loss = {least}"
            self._log.info("sgd_solver.cpp:133", status)
