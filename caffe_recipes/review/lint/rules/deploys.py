"""Rules for deploy nets, whose layers should be those of a train_val net."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.net_states import NetState
from caffe_recipes.review.lint.learned_blobs import find_learned, find_misfits, names_only_in, quote_refusal
from caffe_recipes.review.lint.net_text import layer_place, name_layers
from caffe_recipes.review.lint.net_view import is_deploy_net, is_loss, select_phases
from caffe_recipes.review.lint.registry import finding
from caffe_recipes.review.lint.subjects import deploy_rule

if TYPE_CHECKING:
    from caffe_recipes.caffe.chain import NetDocument
    from caffe_recipes.review.lint.findings import Finding
    from caffe_recipes.review.lint.learned_blobs import Learned
    from caffe_recipes.review.lint.net_view import PhaseNet


@deploy_rule(
    "deploy-missing",
    "warning",
    "a deploy net with layers that its train_val net lacks, or without some of its layers",
)
@deploy_rule(
    "deploy-misfit",
    "error",
    "a deploy net whose layers do not fit the weights of its train_val net",
    what="layer '{name}' does not fit the weights of {trained}: {misfit}",
    write="the layer as in {trained}",
)
def check_deploys(nets: Sequence[NetDocument]) -> Iterator[Finding]:
    """Find deploy nets whose layers differ from those of the train_val net in the same folder."""
    views = [(net, select_phases(net.message)) for net in nets]
    trained = [
        (net, phase)
        for net, phases in views
        for phase in phases
        if phase.phase == pb.TRAIN and any(map(is_loss, phase.layers))
    ]
    for net, phases in views:
        if any(phase.phase == pb.TRAIN for phase in phases) or not phases or not is_deploy_net(phases[0]):
            continue
        ours = find_learned(net, NetState(pb.TEST)) or {}
        beside = [one for one in trained if Path(one[0].path).parent == Path(net.path).parent]
        known = [(other, phase, find_learned(other, NetState(pb.TRAIN)) or {}) for other, phase in beside]
        alike = [one for one in known if ours and 2 * len(ours.keys() & one[2].keys()) >= len(ours)]
        if alike:
            other, phase, theirs = max(alike, key=lambda one: len(ours.keys() & one[2].keys()))
            yield from _check_deploy(net, other, phase, ours, theirs)


def _check_deploy(
    net: NetDocument, other: NetDocument, phase: PhaseNet, ours: Learned, theirs: Learned
) -> Iterator[Finding]:
    norms = {layer.name for layer in phase.layers if layer.type == "BatchNorm"}
    if norms and not norms & ours.keys():  # the batch norms are folded into the weights
        return
    trained = Path(other.path).name
    for name, misfit in find_misfits(ours, theirs).items():
        yield finding(
            "deploy-misfit",
            layer_place(net, name),
            effect=quote_refusal(name, ours, theirs),
            name=name,
            trained=trained,
            misfit=misfit,
        )
    new = names_only_in(ours, theirs)
    if new:
        verb = "is" if len(new) == 1 else "are"
        what = f"{name_layers(new)} of the deploy net {verb} not in {trained}"
        yield finding(
            "deploy-missing",
            layer_place(net, new[0]),
            what,
            effect="Caffe initializes its weights from the fillers, as if untrained, and prints no warning",
            write=f"the layer names of {trained}",
        )
    lost = [name for name in _layers_before_last(phase, ours) if theirs.get(name) and name not in ours]
    if lost:
        what = f"{name_layers(lost)} of {trained} {'is' if len(lost) == 1 else 'are'} not in the deploy net"
        yield finding(
            "deploy-missing",
            net.path,
            what,
            effect=f"Caffe prints `Ignoring source layer {lost[0]}`, and the scores are those of a "
            "different net",
            write=f"the layers of {trained}",
        )


def _layers_before_last(phase: PhaseNet, ours: Learned) -> list[str]:
    """Return the names of the layers that the last layer shared with the deploy net is computed from."""
    common = [i for i, layer in enumerate(phase.layers) if ours.get(layer.name)]
    layers = {layer for one in common[-1:] for layer, _ in phase.ancestors((one, 0)) if layer >= 0}
    return [phase.layers[i].name for i in sorted(layers)]
