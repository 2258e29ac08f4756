"""The training loop: Caffe's order of testing, displaying, updating and snapshotting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.rates import float32
from caffe_recipes.engine.glog import Log, number
from caffe_recipes.engine.net import Net
from caffe_recipes.engine.nodes import Output
from caffe_recipes.engine.ranks import Ranks
from caffe_recipes.engine.reduction import Reduction
from caffe_recipes.engine.requests import Requests
from caffe_recipes.engine.schedule import Schedule
from caffe_recipes.engine.snapshot import save_snapshot
from caffe_recipes.engine.updates import Group, update
from caffe_recipes.errors import CaffeRecipesError, RunFailed, WeightsError


def describe(output: Output, value: float) -> str:
    """Print an output as Caffe does: `loss = 2.30607 (* 1 = 2.30607 loss)`."""
    text = f"{output.name} = {number(value)}"
    if output.loss_weight:
        weighted = float32(output.loss_weight * value)
        text += f" (* {number(output.loss_weight)} = {number(weighted)} loss)"
    return text


@dataclass
class SmoothedLoss:
    """The mean of the last `window` losses, in the float32 steps that Caffe takes."""

    window: int
    value: float = 0.0
    _losses: list[float] = field(default_factory=list)

    def add(self, loss: float, since: int) -> float:
        """Take in the loss of the iteration `since` iterations after the start; give the mean.

        >>> smoothed = SmoothedLoss(2)
        >>> [smoothed.add(loss, i) for i, loss in enumerate((4.0, 2.0, 1.0))]
        [4.0, 3.0, 1.5]
        """
        if len(self._losses) < self.window:
            self._losses.append(loss)
            size = len(self._losses)
            self.value = float32(float32(float32(self.value * (size - 1)) + loss) / size)
        else:
            place = since % self.window
            change = float32(float32(loss - self._losses[place]) / self.window)
            self.value = float32(self.value + change)
            self._losses[place] = loss
        return self.value


class Solver:
    """Trains `net` as `param` says, and tests `test_nets`. Only rank 0 displays and snapshots.

    What is displayed are means over all ranks, so that the log does not depend on how many ranks share a
    batch; under MLSL, Caffe displays rank 0's own losses. Each rank tests its own records. BatchNorm's
    statistics are each rank's own too, and rank 0's are snapshotted.
    """

    def __init__(
        self,
        param: pb.SolverParameter,
        net: Net,
        groups: Sequence[Group],
        test_nets: Sequence[Net],
        ranks: Ranks,
        requests: Requests,
        log: Log,
    ) -> None:
        self.param, self.net, self.groups, self.test_nets = param, net, groups, test_nets
        self.iteration = 0
        self.schedule = Schedule(param, log)
        self._ranks, self._requests, self._log = ranks, requests, log
        self._reduction = Reduction(ranks, net, groups)
        self._smoothed = SmoothedLoss(param.average_loss)
        self._start = 0
        self._stopped = False

    def solve(self) -> None:
        """Train from the present iteration to max_iter; raises AgreedFailure where a rank cannot go on."""
        param = self.param
        self._log.info("solver.cpp:397", f"Solving {self.net.name}")
        self._log.info("solver.cpp:398", f"Learning Rate Policy: {param.lr_policy}")
        self._start = self.iteration
        while self.iteration < param.max_iter and not self._stopped:
            self._step()
        if param.snapshot_after_train and (not param.snapshot or self.iteration % param.snapshot):
            self._snapshot()
        if self._stopped:
            self._log.info("solver.cpp:427", "Optimization stopped early.")
            return
        if self._displays:
            with torch.no_grad(), self._ranks.together():
                own = self.net.forward().item()
            shown = self._smoothed.add(self._means([own])[0], self.iteration - self._start)
            self._log.info("solver.cpp:436", f"Iteration {self.iteration}, loss = {number(shown)}")
        if param.test_interval and self.iteration % param.test_interval == 0:
            self._test_all()
        self._log.info("solver.cpp:443", "Optimization Done.")

    @property
    def _displays(self) -> bool:
        return bool(self.param.display) and self.iteration % self.param.display == 0

    def _step(self) -> None:
        """Test if it is time, compute, display, update, and do what was asked."""
        param = self.param
        due = param.test_interval and self.iteration % param.test_interval == 0
        if due and (self.iteration or param.test_initialization):
            self._test_all()
            if self._stopped:
                return
        loss, votes = self._compute()
        shown = self._smoothed.add(loss, self.iteration - self._start)
        if self._displays:
            self._display(shown)
        if not param.disabled_update:
            rate = self.schedule.rate(self.iteration, shown)
            if self._displays:
                self._log.info("sgd_solver.cpp:219", f"Iteration {self.iteration}, lr = {number(rate)}")
            update(self.groups, param, rate, self.iteration, self._log)
        self.iteration += 1
        if (param.snapshot and self.iteration % param.snapshot == 0) or votes.snapshot:
            self._snapshot()
        self._stopped = votes.stop

    def _compute(self) -> tuple[float, Requests]:
        """Make the gradients of one iteration; give the ranks' mean loss and what any rank was asked."""
        for group in self.groups:
            group.grads.zero_()
        total, votes = 0.0, Requests()  # of all ranks
        for part in range(self.param.iter_size):
            last = part == self.param.iter_size - 1
            failure: CaffeRecipesError | None = None
            loss = torch.zeros(())
            try:
                loss = self.net.forward()
                self._check(loss.item())
            except CaffeRecipesError as error:
                failure = error
            asked, mean = self._vote(failure, loss.item())
            total, votes = float32(total + mean), votes | asked
            self._reduction.begin(last)
            if loss.requires_grad:
                loss.backward()
        self._reduction.finish()
        return float32(total / self.param.iter_size), votes

    def _vote(self, failure: CaffeRecipesError | None, loss: float) -> tuple[Requests, float]:
        """Tell what this rank was asked, and learn what any was: all act alike, at the same iteration.

        The loss goes the same way, and its mean comes back. Raises AgreedFailure if a rank's forward pass
        failed.
        """
        asked = self._requests.take()
        stop, snapshot, failed, mean = self._means([asked.stop, asked.snapshot, failure is not None, loss])
        if failed:
            self._ranks.settle(failure)
        return Requests(bool(stop), bool(snapshot)), mean

    def _means(self, own: Sequence[float]) -> list[float]:
        """Give the means over the ranks, all of which call this."""
        values = torch.tensor(own, dtype=torch.float32)
        self._ranks.sum(values)()
        means: list[float] = (values / self._ranks.ranks).tolist()
        return means

    def _check(self, loss: float) -> None:
        if not math.isfinite(loss):
            hint = "lower the rate, or look at the data; Caffe would train on and return 0"
            raise RunFailed(f"iteration {self.iteration}", f"the loss is {loss:.6g}", hint)

    def _display(self, shown: float) -> None:
        self._log.info("solver.cpp:312", f"Iteration {self.iteration}, loss = {number(shown)}")
        scores = self.net.scores()
        means = self._means([value for _, value in scores])
        for place, ((output, _), value) in enumerate(zip(scores, means, strict=True)):
            self._log.info("solver.cpp:333", f"    Train net output #{place}: {describe(output, value)}")

    def _test_all(self) -> None:
        for place, net in enumerate(self.test_nets):
            if not self._stopped:
                self._test(place, net)

    @torch.no_grad()
    def _test(self, place: int, net: Net) -> None:
        """Average a TEST net's outputs over test_iter batches, and over the ranks."""
        self._log.info("solver.cpp:474", f"Iteration {self.iteration}, Testing net (#{place})")
        count = self.param.test_iter[place]
        outputs: list[Output] = []
        loss, sums = torch.zeros(1), torch.zeros(0)
        with self._ranks.together():
            for batch in range(count):
                if self._interrupted():
                    break
                loss += net.forward()
                scores = net.scores()
                values = torch.tensor([value for _, value in scores])
                sums = values if batch == 0 else sums + values
                outputs = [output for output, _ in scores]
        if self._stopped:
            self._log.info("solver.cpp:528", "Test interrupted.")
            return
        together = torch.cat([loss, sums])
        self._ranks.sum(together)()
        together /= count * self._ranks.ranks
        if self.param.test_compute_loss:
            self._log.info("solver.cpp:540", f"Test loss: {number(float(together[0]))}")
        for index, (output, value) in enumerate(zip(outputs, together[1:].tolist(), strict=True)):
            text = f"    Test net output #{index}: {describe(output, value)}"
            self._log.info("solver.cpp:562", text)

    def _interrupted(self) -> bool:
        """Act on requests between test batches; several ranks do it after their next iteration, together."""
        if self._ranks.ranks > 1:
            return False
        asked = self._requests.take()
        if asked.snapshot:
            self._snapshot()
        self._stopped = asked.stop
        return self._stopped

    def _snapshot(self) -> None:
        with self._ranks.together():
            if self._ranks.rank == 0:
                state = self.schedule.state(self.iteration)
                try:
                    save_snapshot(self.net, self.groups, self.param.snapshot_prefix, state, self._log)
                except WeightsError as error:  # the input was good: it is the run that failed
                    raise RunFailed(error.where, error.what, error.hint) from None

    def close(self) -> None:
        """Stop reading ahead."""
        for net in (self.net, *self.test_nets):
            net.close()
