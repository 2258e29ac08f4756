"""A recipe's nets: the message, and its text with the numbers explained."""

from __future__ import annotations

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.messages import nearest
from caffe_recipes.caffe.nets import BUILDERS, Options
from caffe_recipes.caffe.prototxt import Comment, render_prototxt
from caffe_recipes.caffe.shapes import infer_shapes
from caffe_recipes.errors import RecipeError
from caffe_recipes.generate.data_layers import build_data_layers
from caffe_recipes.generate.derived import above_net
from caffe_recipes.generate.header import header_line, shared_lines
from caffe_recipes.generate.own_nets import load_own_net, with_data
from caffe_recipes.recipe.model import NetVariant, Recipe


def build_net(recipe: Recipe, name: str) -> pb.NetParameter:
    """Build one of a recipe's `nets`, whichever way the recipe makes it, and check that it fits together.

    Raises RecipeError or PrototxtError for a net that Caffe would refuse, or that tells other classes apart
    than the recipe's.
    """
    if name not in recipe.nets:
        raise RecipeError(recipe.name, f"no net '{name}' under `nets`", nearest(name, recipe.nets))
    variant = recipe.nets[name]
    if recipe.net.builder:  # what it builds fits together
        return _build(recipe, variant)
    net = with_data(load_own_net(recipe), recipe, variant)
    for phase in (pb.TRAIN, pb.TEST) if variant.test else (pb.TRAIN,):
        infer_shapes(net, phase, path=f"{recipe.name}: net '{name}'")
    _check_classes(recipe, net)
    return net


def render_net(recipe: Recipe, name: str) -> str:
    """Write one of a recipe's nets as prototxt text, with comments: of a shared one what holds for all."""
    net = build_net(recipe, name)
    comments = {"": Comment(above=(*_header(recipe, name), *above_net(recipe, name)))}
    for index, layer in enumerate(net.layer):
        comments |= _data_comments(recipe, layer, f"layer[{index}]")
        if recipe.net.builder and layer.batch_norm_param.filler.value == 0 and layer.type == "BatchNorm":
            beside = "the block starts as its shortcut (fused MKL-DNN engine)"
            comments[f"layer[{index}].batch_norm_param.filler"] = Comment(beside=beside)
    return render_prototxt(net, comments)


def _header(recipe: Recipe, name: str) -> tuple[str, ...]:
    if recipe.nets_dir:
        return shared_lines(recipe)
    users = [phase.name for phase in recipe.phases if phase.net == name]
    if recipe.evaluation and recipe.evaluation.net == name:
        users.append("the evaluation")
    return header_line(recipe), f"{name}: for {', '.join(users) or 'no phase'}."


def _build(recipe: Recipe, variant: NetVariant) -> pb.NetParameter:
    given = recipe.net
    if recipe.data.crop_size is None:
        raise RecipeError(recipe.name, f"net.builder {given.builder} needs data.crop_size", "give the pixels")
    fillers = given.fillers
    options = Options(
        classes=given.classes,
        input_px=recipe.data.crop_size,
        batch_norm_fraction=given.batch_norm_fraction,
        zero_init=given.zero_init,
        conv1_filler=fillers.conv1.model_dump(),
        conv_filler=fillers.conv.model_dump(),
        classifier_filler=fillers.classifier.model_dump(),
    )
    return BUILDERS[given.builder or ""](given.name, build_data_layers(recipe, variant), options)


def _check_classes(recipe: Recipe, net: pb.NetParameter) -> None:
    scores = [layer for layer in net.layer if layer.type == "InnerProduct"]
    if scores and scores[-1].inner_product_param.num_output != recipe.net.classes:
        outputs = scores[-1].inner_product_param.num_output
        what = f"layer '{scores[-1].name}' has num_output {outputs}, and net.classes is {recipe.net.classes}"
        raise RecipeError(recipe.name, what, "make them equal")


def _data_comments(recipe: Recipe, layer: pb.LayerParameter, at: str) -> dict[str, Comment]:
    if layer.type != "Data" or layer.include[0].phase != pb.TRAIN:
        return {}
    cluster = recipe.cluster
    counted = f"{cluster.ranks} rank{'s' if cluster.ranks > 1 else ''}"
    ranks = "" if recipe.nets_dir else f": {cluster.global_batch:,} over {counted}"
    beside = {"data_param.batch_size": f"of each rank{ranks}"}
    if layer.transform_param.HasField("random_aspect_ratio_param"):
        change = layer.transform_param.random_aspect_ratio_param.aspect_ratio_change
        beside["transform_param.random_aspect_ratio_param.aspect_ratio_change"] = (
            f"height / width from {change**2:.4g} to {change**-2:.4g}"
        )
    if len(layer.transform_param.mean_value) == 3:
        beside["transform_param.mean_value[0]"] = "blue, green, red"
    return {f"{at}.{path}": Comment(beside=text) for path, text in beside.items()}
