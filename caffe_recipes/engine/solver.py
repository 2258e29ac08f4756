"""The training loop, in Caffe's order of testing, displaying, updating and snapshotting.

This module also computes learning rates, and averages gradients over the ranks during the backward pass.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.rates import float32, lr_at, stepped_lr, steps_at
from caffe_recipes.caffe.shapes import stats_images
from caffe_recipes.caffe.text.writer import FLOAT_MAX
from caffe_recipes.engine.communication import Ranks
from caffe_recipes.engine.glog import Log, format_number
from caffe_recipes.engine.heap import Heap
from caffe_recipes.engine.memory import is_full
from caffe_recipes.engine.net import Output, RunnableNet
from caffe_recipes.engine.nodes import start_outputs, write_outputs
from caffe_recipes.engine.operators.loss import Diverged
from caffe_recipes.engine.signal_requests import SignalRequests
from caffe_recipes.engine.snapshot import save_snapshot
from caffe_recipes.engine.updates import ParamGroup, update
from caffe_recipes.errors import CaffeRecipesError, RunFailed, WeightsError
from caffe_recipes.wording import describe_names, plural


class RateSchedule:
    """Computes learning rates as Caffe does, and keeps the state of `multistep` and `plateau`.

    `plateau` takes a step when the loss has reached no new minimum for plateau_winsize iterations.
    """

    def __init__(self, solver: pb.SolverParameter, log: Log) -> None:
        self._solver, self._log = solver, log
        self.current_step, self.minimum_loss, self.last_event = 0, FLOAT_MAX, 0

    def resume(self, state: pb.SolverState) -> None:
        """Restore the state from a solverstate."""
        self.current_step, self.minimum_loss = state.current_step, state.minimum_loss
        self.last_event = state.iter_last_event

    def state(self, iteration: int) -> pb.SolverState:
        """Return the solverstate of an iteration without its history."""
        return pb.SolverState(
            iter=iteration,
            current_step=self.current_step,
            minimum_loss=self.minimum_loss,
            iter_last_event=self.last_event,
        )

    def rate(self, iteration: int, loss: float) -> float:
        """Return the learning rate for an iteration's update. `loss` is the displayed (smoothed) loss."""
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
        """Take a step if plateau_winsize iterations have passed without a new minimum or step."""
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
            least = format_number(self.minimum_loss)
            status = f"Plateau Status: Iteration {iteration}, current minimum_loss = {least}"
            self._log.info("sgd_solver.cpp:133", status)


_BUCKET = 2**20  # floats: large enough to use the full bandwidth, small enough to start sending early


@dataclass
class _Bucket:
    """A part of a flat gradient, sent as soon as the gradients of all its parameters are computed."""

    grads: Tensor
    members: int
    missing: int
    wait: Callable[[], object] | None = None


class GradientAverager:
    """Averages gradients over the ranks, in buckets, during the backward pass.

    All ranks run the same graph, so they send their buckets in the same order.
    """

    def __init__(self, ranks: Ranks, net: RunnableNet, groups: Sequence[ParamGroup]) -> None:
        self._ranks, self._buckets, self._last = ranks, list[_Bucket](), False
        for group in groups if ranks.size > 1 else ():
            if any(net.params[index].tensor.requires_grad for index, _, _ in group.ranges):
                self._divide(net, group)

    def _divide(self, net: RunnableNet, group: ParamGroup) -> None:
        """Split a group's gradients into buckets, and add hooks that count the ready gradients of each."""
        begin, members = 0, list[Tensor]()
        for number, (index, _, stop) in enumerate(group.ranges):
            members.append(net.params[index].tensor)
            if stop - begin >= _BUCKET or number == len(group.ranges) - 1:
                bucket = _Bucket(group.grads[begin:stop], len(members), len(members))
                self._buckets.append(bucket)
                for tensor in members:
                    tensor.register_post_accumulate_grad_hook(self._arrival_hook(bucket))
                begin, members = stop, []

    def _arrival_hook(self, bucket: _Bucket) -> Callable[[Tensor], None]:
        def arrived(_: Tensor) -> None:
            if self._last:
                bucket.missing -= 1
                if bucket.missing == 0:
                    bucket.wait = self._ranks.sum(bucket.grads)

        return arrived

    def begin(self, last: bool) -> None:
        """Prepare for a backward pass. Gradients are sent only in the last one of an iteration."""
        self._last = last
        for bucket in self._buckets:
            bucket.missing, bucket.wait = bucket.members, None

    def finish(self) -> None:
        """Wait until all gradients are averaged."""
        for bucket in self._buckets:
            if bucket.wait is None:  # not sent yet: a parameter does not contribute to the loss
                bucket.wait = self._ranks.sum(bucket.grads)
        for bucket in self._buckets:
            if bucket.wait is not None:
                bucket.wait()
            bucket.grads.mul_(1 / self._ranks.size)


def _norms_without_statistics(net: RunnableNet) -> list[pb.LayerParameter]:
    """Return the BatchNorms that use running statistics, but have none: they divide only by sqrt(eps)."""
    return [
        node.param
        for node in net.nodes
        if node.param.type == "BatchNorm"
        and stats_images(node.param, node.param.phase) is None
        and not node.blobs[2].any()
    ]


def format_output(output: Output, value: float) -> str:
    """Return an output in the format of Caffe's log: `loss = 2.30607 (* 1 = 2.30607 loss)`."""
    text = f"{output.name} = {format_number(value)}"
    if output.loss_weight:
        weighted = float32(output.loss_weight * value)
        text += f" (* {format_number(output.loss_weight)} = {format_number(weighted)} loss)"
    return text


@dataclass
class SmoothedLoss:
    """The mean of the last `window` losses, with Caffe's float32 rounding."""

    window: int
    value: float = 0.0
    _losses: list[float] = field(default_factory=list)

    def add(self, loss: float, since: int) -> float:
        """Add the loss of the iteration that is `since` iterations after the start, and return the mean.

        >>> smoothed = SmoothedLoss(2)
        >>> [smoothed.add(loss, i) for i, loss in enumerate((4.0, 2.0, 1.0))]
        [4.0, 3.0, 1.5]
        """
        if len(self._losses) < self.window:
            self._losses.append(loss)
            size = len(self._losses)
            self.value = float32(float32(float32(self.value * (size - 1)) + loss) / size)
        else:
            number = since % self.window
            change = float32(float32(loss - self._losses[number]) / self.window)
            self.value = float32(self.value + change)
            self._losses[number] = loss
        return self.value


class Solver:
    """Trains `net` with the solver `param`, and tests `test_nets`. Only rank 0 logs and takes snapshots.

    Displayed values are means over all ranks, so the log does not depend on how many ranks share a batch;
    with MLSL, Caffe displays the losses of rank 0. Each rank tests its own records and, unless the net is
    synchronised, has its own BatchNorm statistics; snapshots contain those of rank 0.
    """

    def __init__(
        self,
        param: pb.SolverParameter,
        net: RunnableNet,
        groups: Sequence[ParamGroup],
        test_nets: Sequence[RunnableNet],
        ranks: Ranks,
        requests: SignalRequests,
        log: Log,
    ) -> None:
        self.param, self.net, self.groups, self.test_nets = param, net, groups, test_nets
        self.iteration = 0
        self.schedule = RateSchedule(param, log)
        self._ranks, self._requests, self._log = ranks, requests, log
        self._averager = GradientAverager(ranks, net, groups)
        self._heap = Heap()
        self._smoothed = SmoothedLoss(param.average_loss)
        self._start = 0
        self._stopped = False
        self._exchange_s = 0.0
        self._displayed = (0.0, 0.0, 0.0)

    def solve(self) -> None:
        """Train from the current iteration to max_iter. Raises AgreedFailure if a rank cannot continue."""
        param = self.param
        self._log.info("solver.cpp:397", f"Solving {self.net.name}")
        self._log.info("solver.cpp:398", f"Learning Rate Policy: {param.lr_policy}")
        self._start = self.iteration
        self._displayed = self._times()
        while self.iteration < param.max_iter and not self._stopped:
            self._step()
        if param.snapshot_after_train and (not param.snapshot or self.iteration % param.snapshot):
            self._snapshot()
        if self._stopped:
            self._log.info("solver.cpp:427", "Optimization stopped early.")
            return
        if self._is_display_due:
            with torch.no_grad(), self._failing_together(self.net):
                own = self.net.forward().item()
            smoothed = self._smoothed.add(self._average([own])[0], self.iteration - self._start)
            self._log.info("solver.cpp:436", f"Iteration {self.iteration}, loss = {format_number(smoothed)}")
        if param.test_interval and self.iteration % param.test_interval == 0:
            self._test_all()
        self._log.info("solver.cpp:443", "Optimization Done.")

    @property
    def _is_display_due(self) -> bool:
        return bool(self.param.display) and self.iteration % self.param.display == 0

    def _step(self) -> None:
        """Run one iteration: test if due, compute gradients, display, update, and handle requests."""
        param = self.param
        due = param.test_interval and self.iteration % param.test_interval == 0
        if due and (self.iteration or param.test_initialization):
            self._test_all()
            if self._stopped:
                return
        loss, requests = self._compute_gradients()
        smoothed = self._smoothed.add(loss, self.iteration - self._start)
        if self._is_display_due:
            self._display(smoothed)
            self._display_waits()
        if not param.disabled_update:
            rate = self.schedule.rate(self.iteration, smoothed)
            if self._is_display_due:
                self._log.info(
                    "sgd_solver.cpp:219", f"Iteration {self.iteration}, lr = {format_number(rate)}"
                )
            update(self.groups, param, rate, self.iteration, self._log)
        self._heap.release_if_grown()
        self.iteration += 1
        if (param.snapshot and self.iteration % param.snapshot == 0) or requests.snapshot:
            self._snapshot()
        self._stopped = requests.stop

    def _compute_gradients(self) -> tuple[float, SignalRequests]:
        """Compute the gradients of one iteration, and return the mean loss and the requests of all ranks."""
        for group in self.groups:
            group.grads.zero_()
        total, requests = 0.0, SignalRequests()  # of all ranks
        for part in range(self.param.iter_size):
            last = part == self.param.iter_size - 1
            failure: CaffeRecipesError | None = None
            loss, is_passed = torch.zeros(()), False
            self.net.pass_name = f"iteration {self.iteration}"
            try:
                loss = self.net.forward()
                is_passed = True
                self._check_finite(loss.item())
            except CaffeRecipesError as error:
                failure = self._explain(error) if isinstance(error, Diverged) else error
                if self.net.is_synchronised and not is_passed:  # the others may wait in this pass
                    raise failure from None
            requested, mean = self._reduce_status(failure, loss.item())
            total, requests = float32(total + mean), requests | requested
            self._averager.begin(last)
            self._heap.release_if_grown()
            if loss.requires_grad:
                self._backward(loss)
        if loss.is_cuda and self._ranks.size > 1:  # the GPU's time is not that of the exchange
            torch.cuda.synchronize(loss.device)
        with self._exchanging():
            self._averager.finish()
        return float32(total / self.param.iter_size), requests

    def _backward(self, loss: Tensor) -> None:
        try:
            loss.backward()
        except CaffeRecipesError:
            raise
        except Exception as error:
            # Another pass would fail elsewhere without memory, and with shared statistics wait for others.
            is_last = is_full(error, loss.device.type) or self.net.is_synchronised
            where = f"{self.net.path}: {self.net.pass_name}" if is_last else self.net.find_failing_layer()
            raise self.net.explain(where, error) from error

    def _failing_together(self, net: RunnableNet) -> AbstractContextManager[None]:
        """Return the context of passes that fail on all ranks together.

        Where the others may wait in a pass, a rank that fails raises its error at once, and so ends them.
        """
        return nullcontext() if net.is_synchronised else self._ranks.failing_together()

    def _reduce_status(self, failure: CaffeRecipesError | None, loss: float) -> tuple[SignalRequests, float]:
        """Return the requests of all ranks, so that they act in the same iteration, and the mean loss.

        Raises AgreedFailure if the forward pass failed on any rank.
        """
        requested = self._requests.drain()
        stop, snapshot, failed, mean = self._average(
            [requested.stop, requested.snapshot, failure is not None, loss]
        )
        if failed:
            self._ranks.raise_if_any_failed(failure)
        return SignalRequests(bool(stop), bool(snapshot)), mean

    def _average(self, own: Sequence[float]) -> list[float]:
        """Return the means over all ranks. All ranks must call it together."""
        values = torch.tensor(own, dtype=torch.float32)
        with self._exchanging():
            self._ranks.sum(values)()
        averages: list[float] = (values / self._ranks.size).tolist()
        return averages

    def _check_finite(self, loss: float) -> None:
        if not math.isfinite(loss):
            hint = "lower the learning rate, or check the data; Caffe would continue and return 0"
            raise Diverged(f"iteration {self.iteration}", f"the loss is {loss:.6g}", hint)

    def _explain(self, error: Diverged) -> Diverged:
        """Return the error with its cause: BatchNorms without statistics, or the first layer that fails."""
        empty = _norms_without_statistics(self.net)
        if not empty:
            return self._name_layer(error)
        names = describe_names([layer.name for layer in empty])
        eps = min(layer.batch_norm_param.eps for layer in empty)
        factor = eps**-0.5 if eps else math.inf
        what = f"{error.what}: {names} {plural(len(empty), 'uses', 'use')} statistics that are empty"
        what += f" (use_global_stats), and so {plural(len(empty), 'multiplies', 'multiply')} by {factor:.4g}"
        return error.reworded(what=what, hint="give -weights that hold them, or remove use_global_stats")

    def _name_layer(self, error: Diverged) -> Diverged:
        """Return the error with the first layer whose output is not finite, and what may be the cause."""
        # With shared statistics, the other ranks would not take part in another pass.
        node = None if self.net.is_synchronised else self.net.find_not_finite()
        what = hint = ""
        if node is not None:
            layer = f"layer '{node.param.name}' ({node.param.type})"
            what = f"{error.what}: {layer} is the first whose output is not finite"
        if node is not None and node.source is not None:
            hint = "check what it reads, and its settings; Caffe would continue and return 0"
        elif self.iteration == self._start:
            hint = "check the data, the layers and the starting weights, since no update has been made yet"
            hint += "; Caffe would continue and return 0"
        return error.reworded(what=what, hint=hint)

    def _display(self, smoothed: float) -> None:
        self._log.info("solver.cpp:312", f"Iteration {self.iteration}, loss = {format_number(smoothed)}")
        scores = self.net.scores()
        averages = self._average([value for _, value in scores])
        for number, ((output, _), value) in enumerate(zip(scores, averages, strict=True)):
            self._log.info(
                "solver.cpp:333", f"    Train net output #{number}: {format_output(output, value)}"
            )

    @contextmanager
    def _exchanging(self) -> Iterator[None]:
        """Count the time of a block as waiting for the other ranks."""
        start_s = time.perf_counter()
        yield
        self._exchange_s += time.perf_counter() - start_s

    def _times(self) -> tuple[float, float, float]:
        """Return the seconds on the clock, those spent waiting for data, and those for other ranks."""
        return time.perf_counter(), self.net.read_s, self._exchange_s

    def _display_waits(self) -> None:
        """Log what rank 0 has waited for since the last display, as shares of the time; Caffe does not."""
        now = self._times()
        took_s, read_s, exchange_s = (new - old for new, old in zip(now, self._displayed, strict=True))
        if self.iteration > self._start:
            shares = f"{read_s / took_s:.0%} for data, {exchange_s / took_s:.0%} for other ranks"
            self._log.info("caffe-torch:0", f"Iteration {self.iteration}, waited {shares}")
        self._displayed = now

    def _test_all(self) -> None:
        for number, net in enumerate(self.test_nets):
            if not self._stopped:
                self._test(number, net)

    @torch.no_grad()
    def _test(self, number: int, net: RunnableNet) -> None:
        """Average the outputs of a TEST net over test_iter batches and over the ranks, and log them."""
        self._log.info("solver.cpp:474", f"Iteration {self.iteration}, Testing net (#{number})")
        count = self.param.test_iter[number]
        outputs: list[Output] = []
        loss, sums = torch.zeros(1), torch.zeros(0)
        with self._failing_together(net):
            net.pass_name = f"test at iteration {self.iteration}"
            if self._ranks.rank == 0:
                start_outputs(net.nodes)
            for batch in range(count):
                if self._interrupted():
                    break
                loss += net.forward().item()
                scores = net.scores()
                values = torch.tensor([value for _, value in scores])
                sums = values if batch == 0 else sums + values
                outputs = [output for output, _ in scores]
            else:
                if self._ranks.rank == 0:
                    write_outputs(net.nodes)
        if self._stopped:
            self._log.info("solver.cpp:528", "Test interrupted.")
            return
        totals = torch.cat([loss, sums])
        self._ranks.sum(totals)()
        totals /= count * self._ranks.size
        if self.param.test_compute_loss:
            self._log.info("solver.cpp:540", f"Test loss: {format_number(float(totals[0]))}")
        for index, (output, value) in enumerate(zip(outputs, totals[1:].tolist(), strict=True)):
            text = f"    Test net output #{index}: {format_output(output, value)}"
            self._log.info("solver.cpp:562", text)

    def _interrupted(self) -> bool:
        """Handle requests between test batches. With several ranks, they wait until the next iteration."""
        if self._ranks.size > 1:
            return False
        requested = self._requests.drain()
        if requested.snapshot:
            self._snapshot()
        self._stopped = requested.stop
        return self._stopped

    def _snapshot(self) -> None:
        with self._ranks.failing_together():
            if self._ranks.rank == 0:
                state = self.schedule.state(self.iteration)
                try:
                    save_snapshot(self.net, self.groups, self.param, state, self._log)
                except WeightsError as error:  # a failed run, not bad input
                    raise RunFailed(error.where, error.what, error.hint) from None

    def close(self) -> None:
        """Stop prefetching."""
        for net in (self.net, *self.test_nets):
            net.close()
