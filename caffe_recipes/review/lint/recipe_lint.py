"""Lint a recipe: its generated files as a chain, its machine, and the findings that it accepts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from caffe_recipes.caffe.chain import Chain, ChainFacts, Link
from caffe_recipes.caffe.dialects import ENGINE, OURS
from caffe_recipes.caffe.dialects.schema import parse_lenient
from caffe_recipes.config import Location, write_key
from caffe_recipes.files.bounded_reads import read_bytes
from caffe_recipes.recipe.model import OUR_TRAINER, Phase, TensorFlowRecipe
from caffe_recipes.recipe.source import load_recipe, locate_keys
from caffe_recipes.recipe.translate import original_name, translate
from caffe_recipes.render.dialect import find_parts
from caffe_recipes.render.prototxts import load_own_net, trace_own_net
from caffe_recipes.render.recipe_files import generate_prototxts, net_file, solver_file
from caffe_recipes.review.lint.acceptance import accept_findings, accepts
from caffe_recipes.review.lint.check import check_chain, check_net, sort_findings
from caffe_recipes.review.lint.findings import split_place
from caffe_recipes.review.lint.inputs import GPU_DIALECTS, convert_to_ours, lint_text
from caffe_recipes.review.lint.records import find_datum
from caffe_recipes.review.lint.subjects import RECIPE_SUBJECTS, RecipeView, record_rule
from caffe_recipes.review.naming import is_file
from caffe_recipes.wording import describe_names

if TYPE_CHECKING:
    from caffe_recipes.caffe import pb
    from caffe_recipes.caffe.prototxt import Document
    from caffe_recipes.recipe.model import AnyRecipe, Recipe
    from caffe_recipes.review.lint.findings import Finding

_Locate = Callable[[Location], str]


def lint_recipe(
    name_or_path: str, dialect: str, report: Callable[[str], None] = lambda line: None
) -> list[Finding]:
    """Find mistakes in a recipe and the prototxts that it generates; mark the findings that it accepts.

    For another Caffe the recipe is translated, as by `generate --dialect`; if that is not possible, the
    recipe itself is checked, and the findings say why. Calls `report` with a line if files on disk differ
    from those checked. Raises RecipeError or PrototxtError if the recipe's files cannot be generated.
    """
    recipe = load_recipe(name_or_path)
    common = recipe.solver.model_fields_set
    if dialect != ENGINE and not find_parts(recipe, dialect):
        recipe = translate(recipe, dialect)
    locate = locate_keys(name_or_path)
    texts = generate_prototxts(recipe)
    if stale := _describe_stale(recipe, name_or_path, texts):
        report(stale)
    judge = _judge(recipe) if dialect == OURS else dialect
    return _lint_texts(recipe, common, texts, locate, judge)


def lint_frozen(recipe: AnyRecipe) -> list[Finding]:
    """Find mistakes as `lint_recipe` does in a recipe without a file, such as the one that a run keeps.

    There are no rules for the recipe of a TensorFlow run.
    """
    if isinstance(recipe, TensorFlowRecipe):
        return []
    texts, common = generate_prototxts(recipe), recipe.solver.model_fields_set
    return _lint_texts(recipe, common, texts, lambda key: f"{recipe.name}: {write_key(key)}", _judge(recipe))


def _judge(recipe: Recipe) -> str:
    """Return the dialect by which a recipe's files are judged: what caffe-torch runs, if it trains them."""
    return ENGINE if recipe.trainer == OUR_TRAINER else recipe.dialect


def _lint_texts(
    recipe: Recipe, common: Collection[str], texts: Mapping[str, str], locate: _Locate, dialect: str
) -> list[Finding]:
    found = sort_findings(check_recipe(recipe, texts, locate, dialect), texts)
    accepted = accept_findings(found, recipe, lambda index: locate(("accept", index)))
    return _place_all(accepted, recipe, common, texts, locate)


def find_errors(
    recipe: Recipe, phases: Collection[str], root: Path | None = None, lmdb_source: Path | None = None
) -> list[Finding]:
    """Return the errors, without accepted ones, in what some phases of a recipe train, and in its evaluation.

    Paths of data are relative to `root`, the Caffe root. A training LMDB that is not there yet is looked for
    at `lmdb_source`, from which it is staged. Raises RecipeError or PrototxtError as `lint_recipe` does.
    """
    texts = generate_prototxts(recipe)
    nets = {phase.net for phase in recipe.phases if phase.name in phases}
    nets |= {recipe.evaluation.net} if recipe.evaluation else set()
    unused = {solver_file(recipe, phase.name) for phase in recipe.phases if phase.name not in phases}
    unused |= {net_file(recipe, net) for net in recipe.nets if net not in nets}

    def locate(key: Location) -> str:
        return f"{recipe.name}: {write_key(key)}"

    checked = check_recipe(recipe, texts, locate, _judge(recipe), root, lmdb_source)
    errors = [
        one
        for one in sort_findings(checked, texts)
        if one.severity == "error"
        and (not one.phase or one.phase in phases)
        and split_place(one.where)[0] not in unused
        and not any(accepts(each, one) for each in recipe.accept)
    ]
    return _place_all(errors, recipe, recipe.solver.model_fields_set, texts, locate)


def check_recipe(
    recipe: Recipe,
    texts: Mapping[str, str],
    locate: _Locate,
    dialect: str,
    root: Path | None = None,
    lmdb_source: Path | None = None,
) -> Iterator[Finding]:
    """Find mistakes in a recipe, including those that it accepts. `texts` are its prototxts by path.

    `root` and `lmdb_source` are as in `find_errors`.
    """

    train = recipe.data.train

    def find_first(source: str) -> pb.Datum | None:
        staged_from = str(lmdb_source or train.source or "") if source == train.lmdb else ""
        return find_datum(source, root) or find_datum(staged_from, root)

    documents = {path: convert_to_ours(parse_lenient(text, path), dialect)[0] for path, text in texts.items()}
    chain = build_chain(recipe, documents, dialect)
    evaluated = documents[net_file(recipe, recipe.evaluation.net)].message if recipe.evaluation else None
    view = RecipeView(recipe, chain, evaluated, locate)
    for subject in RECIPE_SUBJECTS:
        yield from subject.run(view)
    yield from check_chain(chain)
    for name in recipe.nets:
        yield from check_net(
            documents[net_file(recipe, name)],
            classes=recipe.net.classes,
            datum_of=find_first,
            dialect=dialect,
        )
        yield from record_rule.run(documents[net_file(recipe, name)], root, find_first)
    for path, text in texts.items():
        yield from lint_text(text, path, dialect)


def build_chain(recipe: Recipe, documents: dict[str, Document[Any]], dialect: str) -> Chain:
    """Return a recipe's phases as a chain of its generated files."""
    links = [
        Link(
            phase.name,
            documents[solver_file(recipe, phase.name)],
            documents[net_file(recipe, phase.net)],
            phase.last_iter,
            _weights(recipe, phase),
        )
        for phase in recipe.phases
    ]
    cluster, evaluation = recipe.cluster, recipe.evaluation
    facts = ChainFacts(
        ranks=cluster.ranks,
        images=recipe.data.train.images,
        test_images=recipe.test_images if recipe.data.is_in_net else None,
        ranks_per_node=cluster.ranks_per_node,
        omp_num_threads=cluster.omp_num_threads,
        mlsl_cores=cluster.mlsl.server_affinity if cluster.mlsl else (),
        sockets_per_node=cluster.sockets_per_node,
        cores_per_socket=cluster.cores_per_socket,
        has_gpus=dialect in GPU_DIALECTS,
    )
    tested = (documents[net_file(recipe, evaluation.net)],) if evaluation else ()
    return Chain(tuple(links), facts, tested=tested)


def _place_all(
    found: Sequence[Finding],
    recipe: Recipe,
    common: Collection[str],
    texts: Mapping[str, str],
    locate: _Locate,
) -> list[Finding]:
    """Place findings in the prototxts that the recipe reads its net from, or as `place_in_recipe` does."""
    in_own = _places_in_own_net(recipe, texts) if found and recipe.net.files else {}
    placed = [
        one.located(lambda where: in_own.get(where, where))
        if one.where in in_own
        else replace(one, where=place_in_recipe(one.where, recipe, common, texts, locate))
        for one in found
    ]
    # Several nets of the recipe may be made from one prototxt.
    return [*{(one.id, one.where, one.phase, one.what): one for one in placed}.values()]


def _places_in_own_net(recipe: Recipe, texts: Mapping[str, str]) -> dict[str, str]:
    """Return {place in a generated net: place in the prototxt that the recipe reads}."""
    own = load_own_net(recipe)
    places: dict[str, str] = {}
    for path in (net_file(recipe, net) for net in recipe.nets):
        made: Document[Any] = parse_lenient(texts[path], path)
        trace = trace_own_net(recipe, made.message, own)
        places |= {made.where(field): place for field in ("", *made.offsets) if (place := trace(field))}
    return places


def place_in_recipe(
    where: str, recipe: Recipe, common: Collection[str], texts: Mapping[str, str], locate: _Locate
) -> str:
    """Return the place of a finding: in the recipe, but in the generated net if that is on disk.

    `common` are the keys of the recipe's `solver:`, which phases inherit.
    """
    path, line, _ = split_place(where)
    nets = {net_file(recipe, net): net for net in recipe.nets}
    if path not in texts or (path in nets and _is_written(path, texts[path])):
        return where
    if path in nets:
        return locate(("nets", nets[path]))
    index = [solver_file(recipe, phase.name) for phase in recipe.phases].index(path)
    lines = texts[path].splitlines()
    field = lines[line - 1].partition(":")[0].strip() if 0 < line <= len(lines) else ""
    own = locate(("phases", index, field))
    is_inherited = field in common and own == locate(("phases", index))
    return locate(("solver", field)) if is_inherited else own


def _describe_stale(recipe: Recipe, name_or_path: str, texts: Mapping[str, str]) -> str:
    """Return a line on the files on disk that differ from those generated now; empty if there are none."""
    stale = [path for path, text in texts.items() if is_file(Path(path)) and not _is_written(path, text)]
    if not stale:
        return ""
    option = "" if original_name(recipe) == recipe.name else f" --dialect {recipe.dialect}"
    verb = "differs" if len(stale) == 1 else "differ"
    return (
        f"{describe_names(stale)} {verb} from what {name_or_path} generates now, which is what is checked; "
        f"run `caffe-recipes generate {name_or_path}{option}`"
    )


def _is_written(path: str, text: str) -> bool:
    try:
        return read_bytes(path, len(text.encode()) + 1) == text.encode()
    except OSError:
        return False


def _weights(recipe: Recipe, phase: Phase) -> str:
    start = recipe.starts_from(phase)
    if isinstance(start, Phase):
        return start.snapshot_at(phase.weights_iter or start.last_iter)
    return start or ""
