"""Build a recipe's solvers and nets, and write them as prototxts whose comments explain the numbers.

The data layers of a net come from the recipe; the other layers come from a builder, from a prototxt, or from
a function in a module next to the recipe.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import replace
from typing import Literal

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects import OURS
from caffe_recipes.caffe.layer_types import type_of
from caffe_recipes.caffe.layers import data, source_batch
from caffe_recipes.caffe.messages import FieldValue, build_message, nearest
from caffe_recipes.caffe.nets import BUILDERS, NetOptions
from caffe_recipes.caffe.prototxt import LAYER, NO_COMMENTS, Document, parse_document, render_prototxt
from caffe_recipes.caffe.rates import POLICIES, check_rates, key_iters, lr_at
from caffe_recipes.caffe.shapes import LayerMisfit, infer_shapes, select_layers
from caffe_recipes.caffe.text.comments import Comment
from caffe_recipes.caffe.text.writer import string_text
from caffe_recipes.errors import RecipeError
from caffe_recipes.quoting import hiding_foreign_text
from caffe_recipes.recipe.graph import epochs_of, images_per_iter
from caffe_recipes.recipe.model import Phase, Recipe
from caffe_recipes.recipe.net_keys import NetVariant, RandomAspectRatio
from caffe_recipes.render.headers import above_net, above_solver, beside_fields, header_line, shared_lines
from caffe_recipes.wording import plural

_OURS = {"name", "net", "weights", "weights_iter", "stop_iter", "comment", "reported"}


def build_solver(recipe: Recipe, phase: Phase) -> pb.SolverParameter:
    """Return the solver of one phase of a recipe.

    Raises RecipeError for a schedule whose rate is not finite, with which Caffe would train and exit 0.
    """
    where = f"{recipe.name}: phase '{phase.name}'"
    settings = {key: getattr(phase, key) for key in Phase.model_fields if key not in _OURS}
    given = {"net": recipe.net_path(phase.net), "snapshot": phase.snapshot_every_iter}
    if recipe.chooses_device:
        given["solver_mode"] = "CPU"  # `run` gives caffe-torch a GPU with --gpu, which overrides this
    solver = build_message(pb.SolverParameter, where, settings | given)
    for fault in check_rates(solver):
        raise RecipeError(where, str(fault), "correct the schedule")
    return solver


def render_solver(recipe: Recipe, phase: Phase) -> str:
    """Return the solver of one phase as prototxt text, with comments."""
    solver = build_solver(recipe, phase)
    return render_prototxt(solver, _comments(recipe, phase, solver))


def _comments(recipe: Recipe, phase: Phase, solver: pb.SolverParameter) -> Mapping[str, Comment]:
    cluster, images = recipe.cluster, recipe.data.train.images
    batch, times = images_per_iter(recipe, phase), f" x {phase.iter_size}" if phase.iter_size else ""
    ranks = f"{cluster.ranks} {plural(cluster.ranks, 'rank')}"
    header = [
        header_line(recipe),
        f"{phase.name}, phase {recipe.phases.index(phase) + 1} of {len(recipe.phases)}. {batch:,} images an "
        f"iteration ({ranks} x {cluster.batch_per_rank}{times}), {images:,} an epoch.",
        *_stop_lines(phase),
    ]
    header += [phase.comment] if phase.comment else []
    comments = {"": Comment(above=(*header, *above_solver(recipe, phase)))}
    for key in ("max_iter", "lr_iter", "warmup_iter"):
        if solver.HasField(key):
            comments[key] = Comment(beside=f"{epochs_of(getattr(solver, key), batch, images):.2f} epochs")
    if phase.stop_iter:
        stopped = f"stopped at {phase.stop_iter}, {epochs_of(phase.stop_iter, batch, images):.2f} epochs"
        comments["max_iter"] = Comment(beside=stopped)
    comments["base_lr"] = Comment(above=tuple(_rate_lines(solver, phase.last_iter)))
    if recipe.chooses_device:
        comments["solver_mode"] = Comment(beside="`caffe-recipes run` uses a GPU if PyTorch finds one")
    decay = _times_before(recipe, phase)
    if decay:
        comments["weight_decay"] = Comment(beside=decay)
    given = {field.name: field.is_repeated for field, _ in solver.ListFields()}
    for key, derived in beside_fields(recipe, phase).items():
        if key in given:  # a translated solver may lack the field
            at = f"{key}[0]" if given[key] else key
            before = comments.get(at, Comment())
            beside = f"{before.beside}; {derived}" if before.beside else derived
            comments[at] = replace(before, beside=beside)
    return comments


def _stop_lines(phase: Phase) -> list[str]:
    """Return a comment for a phase that is stopped before its max_iter."""
    if not phase.stop_iter:
        return []
    end, rate = f"after the snapshot of {phase.stop_iter}", f"its schedule extends to {phase.max_iter}"
    return [f"To be stopped (SIGINT) {end}; {rate}."]


def _rate_lines(solver: pb.SolverParameter, last_iter: int) -> list[str]:
    """Return a comment with the rate at its key iterations, in the digits of Caffe's log."""
    if solver.lr_policy not in POLICIES:  # `plateau`, whose rate depends on the losses
        return []
    places = dict.fromkeys(place for place in key_iters(solver, last_iter).values() if place is not None)
    rates = [f"{lr_at(solver, place):.6g} at {place}" for place in places]
    if len(rates) < 4:
        return [f"The rate by iteration: {', '.join(rates)}."]
    first, end, after, last = rates
    return [
        f"The rate by iteration: {first}, {end} where the warm-up ends,",
        f"{after}, since warm-up iterations count, {last}.",
    ]


def _times_before(recipe: Recipe, phase: Phase) -> str:
    """Return a comment if the weight decay differs from that of the previous phase, else ""."""
    index = recipe.phases.index(phase)
    before = recipe.phases[index - 1] if index else phase
    if not before.weight_decay or not phase.weight_decay or before.weight_decay == phase.weight_decay:
        return ""
    return f"{phase.weight_decay / before.weight_decay:.4g} times that of {before.name}"


# The name and the tops of a data layer.
DataTops = tuple[str, Sequence[str]]
_USUAL: DataTops = ("data", ("data", "label"))


def reads_other_files(layer: pb.LayerParameter) -> bool:
    """Return whether a layer reads other files than an LMDB; a recipe's data layers do not replace it."""
    source = type_of(layer).source
    return source is not None and source.reads_files and layer.type != "Data"


# Layers whose data a program of the user's gives them; a Python layer with bottoms is something else.
_FED_BY_PROGRAMS = ("MemoryData", "Python")


def find_program_data(net: pb.NetParameter) -> Iterator[tuple[int, str, str]]:
    """Yield each layer that a program feeds: its index, why no recipe can have it, and what to do."""
    for index, layer in enumerate(net.layer):
        if layer.type in _FED_BY_PROGRAMS and not layer.bottom:
            what = f"layer '{layer.name}' is fed by a program ({layer.type}), which no recipe starts"
            yield index, what, "read the data from an LMDB, HDF5 files or a list of images"


def build_data_layers(
    recipe: Recipe, variant: NetVariant, train_blobs: DataTops = _USUAL, test_blobs: DataTops = _USUAL
) -> list[pb.LayerParameter]:
    """Return the data layers of one net; crops and mirrors are random in TRAIN only."""
    train, test = recipe.data.train, recipe.data.test
    layers = [
        data(
            *train_blobs,
            phase="TRAIN",
            source=train.lmdb,
            batch_size=recipe.cluster.batch_per_rank,
            prefetch=train.prefetch,
            shuffle=train.shuffle or None,
            transform_param=_transform(
                recipe, "train", random_aspect_ratio_param=_aspect_ratio(variant.random_aspect_ratio)
            ),
        )
    ]
    if variant.test:
        side, interpolation = test.shorter_side_px, {"interp_mode": test.interp_mode}
        resize = side and {"min_size": side, "max_size": side, "resize_param": interpolation}
        layers.append(
            data(
                *test_blobs,
                phase="TEST",
                source=test.lmdb,
                batch_size=test.batch_size,
                transform_param=_transform(recipe, "test", random_resize_param=resize),
            )
        )
    return layers


def _transform(
    recipe: Recipe, part: Literal["train", "test"], **resize: FieldValue
) -> dict[str, FieldValue] | None:
    """Return the fields of `transform_param`; None if there are none."""
    fields = recipe.data.transform_of(part).model_dump() | resize
    return fields if any(value not in (None, ()) for value in fields.values()) else None


def _aspect_ratio(ratio: RandomAspectRatio | None) -> dict[str, FieldValue] | None:
    if ratio is None:
        return None
    return {
        "min_area_ratio": ratio.min_area_ratio,
        "max_area_ratio": ratio.max_area_ratio,
        "aspect_ratio_change": ratio.aspect_ratio_change,
        "resize_param": {"interp_mode": ratio.interp_mode},
    }


def load_own_net(recipe: Recipe) -> Document[pb.NetParameter]:
    """Return the net from the recipe's prototxts, or from calling `net.function` with the recipe's Net.

    Raises PrototxtError for text that does not parse, and RecipeError for a function that cannot be found, is
    not allowed to run, fails, or returns neither a NetParameter nor its text.
    """
    if recipe.net.files:
        from caffe_recipes.caffe.dialects.convert import convert_nets  # most recipes build their nets
        from caffe_recipes.caffe.dialects.schema import load_lenient

        paths = [recipe.folder / file for file in recipe.net.files]
        with ExitStack() as hidden:  # a recipe may name any file of this machine
            for path in paths:
                hidden.enter_context(hiding_foreign_text(path, recipe.folder))
            return convert_nets([load_lenient(path) for path in paths], recipe.net.dialect or OURS)
    from caffe_recipes.render.own_code import call_beside

    name = recipe.net.function or ""
    where = f"{recipe.name}: net.function {name}"
    made = call_beside(recipe.folder, name, recipe.net, where)
    if isinstance(made, str):
        return parse_document(made, where, pb.NetParameter)
    if isinstance(made, pb.NetParameter):
        return Document(where, "", made, NO_COMMENTS, {})
    kind = f"{type(made).__module__}.{type(made).__qualname__}"
    raise RecipeError(
        where, f"returned {kind}", "return a NetParameter of caffe_recipes.caffe.pb, or its text"
    )


def with_data(own: Document[pb.NetParameter], recipe: Recipe, variant: NetVariant) -> pb.NetParameter:
    """Return a recipe's own net with the recipe's Data layers instead of its own, or first if it has none.

    They keep the names and tops of the layers that they replace; all other layers stay unchanged. So does the
    whole net of a recipe with `data: as-in-net`.
    """
    net = own.message
    for index, what, hint in find_program_data(net):
        raise RecipeError(own.where(f"layer[{index}]"), what, hint)
    if recipe.data.is_in_net:
        _check_sources(own, recipe)
        return net
    for index, layer in enumerate(net.layer):
        if reads_other_files(layer):
            what = f"layer '{layer.name}' reads {layer.type}, which is not an LMDB"
            hint = "to keep it, write `data: as-in-net` and `images: N`"
            raise RecipeError(own.where(f"layer[{index}]"), what, hint)
    data_layers = [index for index, layer in enumerate(net.layer) if layer.type == "Data"]
    first = data_layers[0] if data_layers else 0
    others = [layer for layer in net.layer if layer.type != "Data"]
    if not others and not net.layers:
        what = "has only Data layers" if net.layer else "has no layers"
        raise RecipeError(own.path, what, "give a complete net")
    blobs = [_blobs_of([net.layer[index] for index in data_layers], phase) for phase in (pb.TRAIN, pb.TEST)]
    result = deepcopy(net)
    del result.layer[:]
    result.layer.extend([*others[:first], *build_data_layers(recipe, variant, *blobs), *others[first:]])
    return result


def _check_sources(own: Document[pb.NetParameter], recipe: Recipe) -> None:
    """Raise RecipeError if nothing fills an input of the net, or for another batch than the recipe's."""
    net, stated = own.message, recipe.cluster.batch_per_rank
    for name in net.input:
        what = f"input: {string_text(name)} is filled by nothing in training"
        raise RecipeError(own.where("input[0]"), what, "replace it by a data layer")
    for layer in select_layers(net, pb.TRAIN):
        images = source_batch(layer)
        if layer.bottom or (layer.type != "Input" and images in (0, stated)):
            continue
        reads = f"reads batches of {images}, but cluster.batch_per_rank is {stated}", "make them equal"
        empty = "(Input) is filled by nothing in training", "replace it by a data layer"
        what, hint = empty if layer.type == "Input" else reads
        where = own.where(f"layer[{_index_of(layer, net)}]")
        raise RecipeError(where, f"layer '{layer.name}' {what}", hint)


def _blobs_of(layers: Sequence[pb.LayerParameter], phase: int) -> DataTops:
    """Return the name and tops of a net's own data layer for a phase, or else of its first data layer."""
    of_phase = [one for one in layers if any(rule.phase == phase for rule in one.include)]
    return next(((one.name, tuple(one.top)) for one in (*of_phase, *layers)), _USUAL)


def build_net(recipe: Recipe, name: str, own: Document[pb.NetParameter] | None = None) -> pb.NetParameter:
    """Return one of a recipe's `nets`, from any source, after checking that its layers fit together.

    `own` takes the place of the net that the recipe would read from its folder.

    Raises RecipeError or PrototxtError for a net that Caffe would refuse, or whose number of classes differs
    from the recipe's.
    """
    if name not in recipe.nets:
        raise RecipeError(recipe.name, f"no net '{name}' under `nets`", nearest(name, recipe.nets))
    variant = recipe.nets[name]
    if recipe.net.builder:  # the layers of a builder always fit together
        return _build(recipe, variant)
    own = own or load_own_net(recipe)
    net = with_data(own, recipe, variant)
    try:
        for phase in (pb.TRAIN, pb.TEST) if variant.test else (pb.TRAIN,):
            infer_shapes(net, phase, path=f"{recipe.name}: net '{name}'")
    except LayerMisfit as error:
        where = trace_own_net(recipe, net, own)(f"layer[{_index_of(error.layer, net)}]")
        raise (error.reworded(where=where) if where else error) from None
    _check_classes(recipe, net, own)
    return net


def trace_own_net(
    recipe: Recipe, net: pb.NetParameter, own: Document[pb.NetParameter]
) -> Callable[[str], str]:
    """Return a function that maps a field of one of the recipe's nets to its place in `own`, its source.

    The place of a data layer that comes from the recipe is "".
    """
    origins = dict(_number_layers(recipe, own.message))
    fields = {index: f"layer[{origins[key]}]" for key, index in _number_layers(recipe, net) if key in origins}

    def place(field: str) -> str:
        match = LAYER.match(field)
        if match is None:
            return own.where(field)
        layer = fields.get(int(match[1]))
        return own.where(f"{layer}{field[match.end() :]}") if layer else ""

    return place


def _index_of(layer: pb.LayerParameter, net: pb.NetParameter) -> int:
    """Return the index of one of the layers of a net, among which others may be equal to it."""
    return next(index for index, one in enumerate(net.layer) if one is layer)


def _number_layers(recipe: Recipe, net: pb.NetParameter) -> Iterator[tuple[tuple[str, int], int]]:
    """Yield each layer that a net keeps: its name, how often that occurred before, and its index."""
    counts: Counter[str] = Counter()
    for index, layer in enumerate(net.layer):
        if recipe.data.is_in_net or layer.type != "Data":
            yield (layer.name, counts[layer.name]), index
            counts[layer.name] += 1


def render_net(recipe: Recipe, name: str) -> str:
    """Return one of a recipe's nets as prototxt text with comments; those of a shared net fit all recipes."""
    net = build_for(recipe, name, recipe.dialect)
    comments = {"": Comment(above=(*_header(recipe, name), *above_net(recipe, name)))}
    if net.bn_stats_batch_size and recipe.net.batch_norm_images and not recipe.nets_dir:
        parts = recipe.cluster.batch_per_rank // net.bn_stats_batch_size
        comments["bn_stats_batch_size"] = Comment(beside=f"{parts} parts of a rank's batch")
    for index, layer in enumerate(net.layer):
        comments |= _data_comments(recipe, layer, f"layer[{index}]")
        if recipe.net.builder and layer.batch_norm_param.filler.value == 0 and layer.type == "BatchNorm":
            beside = "the block starts as its shortcut (fused MKL-DNN engine)"
            comments[f"layer[{index}].batch_norm_param.filler"] = Comment(beside=beside)
    return render_prototxt(net, comments)


def build_for(recipe: Recipe, name: str, dialect: str) -> pb.NetParameter:
    """Return one of a recipe's nets for a dialect: with its own fields, if the prototxts are of that one."""
    own = load_own_net(recipe) if recipe.net.files else None
    net = build_net(recipe, name, own)
    if own and dialect == recipe.net.dialect != OURS:
        from caffe_recipes.caffe.dialects.convert import with_own_fields

        return with_own_fields(net, own)
    return net


def _header(recipe: Recipe, name: str) -> tuple[str, ...]:
    if recipe.nets_dir:
        return shared_lines(recipe)
    users = [phase.name for phase in recipe.phases if phase.net == name]
    if recipe.evaluation and recipe.evaluation.net == name:
        users.append("the evaluation")
    return header_line(recipe), f"{name}: for {', '.join(users) or 'no phase'}."


def _build(recipe: Recipe, variant: NetVariant) -> pb.NetParameter:
    given = recipe.net
    input_px = recipe.data.transform_of("train").crop_size
    assert input_px is not None  # the checks of a recipe refuse a builder without it
    fillers = given.fillers
    options = NetOptions(
        classes=given.classes,
        input_px=input_px,
        batch_norm_fraction=given.batch_norm_fraction,
        zero_init=given.zero_init,
        conv1_filler=fillers.conv1.model_dump(),
        conv_filler=fillers.conv.model_dump(),
        classifier_filler=fillers.classifier.model_dump(),
    )
    net = BUILDERS[given.builder or ""](given.name, build_data_layers(recipe, variant), options)
    if given.batch_norm_images:
        net.bn_stats_batch_size = given.batch_norm_images
    return net


def _check_classes(recipe: Recipe, net: pb.NetParameter, own: Document[pb.NetParameter]) -> None:
    scores = [index for index, layer in enumerate(net.layer) if layer.type == "InnerProduct"]
    last = net.layer[scores[-1]] if scores else None
    if last and last.inner_product_param.num_output != recipe.net.classes:
        where = trace_own_net(recipe, net, own)(f"layer[{scores[-1]}].inner_product_param.num_output")
        outputs = last.inner_product_param.num_output
        what = f"layer '{last.name}' has num_output {outputs}, but net.classes is {recipe.net.classes}"
        raise RecipeError(where, what, "make them equal")


def _data_comments(recipe: Recipe, layer: pb.LayerParameter, at: str) -> dict[str, Comment]:
    if layer.type != "Data" or pb.TRAIN not in [rule.phase for rule in layer.include]:
        return {}
    cluster = recipe.cluster
    counted = f"{cluster.ranks} {plural(cluster.ranks, 'rank')}"
    ranks = "" if recipe.nets_dir else f": {cluster.global_batch:,} over {counted}"
    beside = {"data_param.batch_size": f"per rank{ranks}"}
    if layer.transform_param.HasField("random_aspect_ratio_param"):
        change = layer.transform_param.random_aspect_ratio_param.aspect_ratio_change
        beside["transform_param.random_aspect_ratio_param.aspect_ratio_change"] = (
            f"height / width from {change**2:.4g} to {change**-2:.4g}"
        )
    if len(layer.transform_param.mean_value) == 3:
        beside["transform_param.mean_value[0]"] = "blue, green, red"
    return {f"{at}.{path}": Comment(beside=text) for path, text in beside.items()}
