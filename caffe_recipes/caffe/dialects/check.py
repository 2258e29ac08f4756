"""Find what another Caffe would refuse in a message, or would interpret differently than ours does.

The message may be of our schema, or of the schema of all Caffes (`schema.py`). If the document that it was
read from is given, its text is checked too: lists, and enum values that are given by number.

Sources: `dialects.json` for the defaults; nvcaffe's `batch_norm_layer.cpp` for its running statistics, and
its `parallel.cpp` for batch_size.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, NamedTuple

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from caffe_recipes.caffe import pb
from caffe_recipes.caffe.dialects import (
    ENGINE,
    LR_POLICIES,
    OURS,
    TITLES,
    Definition,
    Dialect,
    field_dialects,
    find_counterpart,
    find_layer_counterpart,
    layer_type_dialects,
    lr_policy_dialects,
    nearest_layer_type,
    solver_type_dialects,
)
from caffe_recipes.caffe.dialects.schema import rounds_down
from caffe_recipes.caffe.dialects.unsupported_names import TYPES, describe_fork
from caffe_recipes.caffe.prototxt import Document
from caffe_recipes.caffe.text.writer import FIRST_FOREIGN
from caffe_recipes.wording import did_you_mean, join_names, plural


@dataclass(frozen=True, slots=True)
class MeaningDifference:
    """A field that a dialect interprets differently: where it is, when it matters, and what to report.

    `texts` are what differs, its effect, and what to write.
    """

    dialect: str
    owner: str
    field: str
    rule: str
    name: str
    applies: Callable[[Message], bool]
    texts: tuple[str, str, str]


# The name of the difference in batch_size, in whichever block it stands.
BATCH_SIZE = "batch_size"


def _is_true(message: Message, field: str) -> bool:
    """Return whether a field is set and true; it need not exist in the message's schema."""
    return bool(getattr(message, field, False))


def _is_given(message: Message, field: str) -> bool:
    """Return whether a field is set; it need not exist in the message's schema."""
    return field in message.DESCRIPTOR.fields_by_name and message.HasField(field)


# The Caffe that divides batch_size by its number of GPUs, and the data layers' blocks in which it does.
BATCH_DIVIDING = ("nvcaffe",)
_DIVIDED_BLOCKS = ("Data", "HDF5Data", "ImageData", "MemoryData", "WindowData")

MEANING_DIFFERENCES: tuple[MeaningDifference, ...] = (
    *(
        MeaningDifference(
            "nvcaffe",
            f"{block}Parameter",
            "batch_size",
            "dialect-meaning",
            BATCH_SIZE,
            lambda data: _is_true(data, "batch_size"),
            (
                "nvcaffe's batch_size is that of all GPUs of a host; SURFsara's is that of one process",
                "each GPU gets batch_size / GPUs images, and BatchNorm normalizes over those only",
                "multiply batch_size by the number of GPUs that one process uses (-gpu)",
            ),
        )
        for block in _DIVIDED_BLOCKS
    ),
    MeaningDifference(
        "nvcaffe",
        "SolverParameter",
        "test_interval",
        "dialect-default",
        "SolverParameter.test_initialization",
        lambda solver: _is_true(solver, "test_interval") and not solver.HasField("test_initialization"),
        (
            "test_initialization is not set: its default is false in nvcaffe, true in SURFsara's",
            "it does not test before the first iteration",
            "write test_initialization: true for the same tests",
        ),
    ),
    MeaningDifference(
        "nvcaffe",
        "DataParameter",
        "source",
        "dialect-default",
        "DataParameter.prefetch",
        lambda data: not data.HasField("prefetch"),
        (
            "prefetch is not set: its default is 0 in nvcaffe, 4 in SURFsara's",
            "it decides by itself how far to read ahead; the images are the same",
            "nothing to change, or set prefetch",
        ),
    ),
    MeaningDifference(
        "nvcaffe",
        "DataParameter",
        "shuffle",
        "dialect-meaning",
        "DataParameter.shuffle",
        lambda data: _is_true(data, "shuffle") and not _is_true(data, "cache"),
        (
            "nvcaffe's shuffle differs: it shuffles only the records that it caches",
            "without cache: true the records come in the order of the LMDB in each epoch",
            "add cache: true, or shuffle when the LMDB is built (convert_imageset -shuffle)",
        ),
    ),
    MeaningDifference(
        "nvcaffe",
        "LayerParameter",
        "type",
        "dialect-meaning",
        "BatchNorm",
        lambda layer: getattr(layer, "type", "") == "BatchNorm",
        (
            "nvcaffe's BatchNorm keeps running means; other Caffes keep sums and a factor that divides them",
            "test results differ slightly, and each misreads the statistics in the other's caffemodels",
            "divide blobs 0 and 1 of each BatchNorm by blob 2 before nvcaffe uses weights of another Caffe",
        ),
    ),
)


def _unrun(owner: str, field: str, applies: Callable[[Message], bool], write: str) -> MeaningDifference:
    """Return a value of one of our fields that caffe-torch does not run."""
    name = f"{owner}.{field}"
    texts = (f"caffe-torch does not run this value of {name}", "it refuses the file, with exit code 2", write)
    return MeaningDifference(ENGINE, owner, field, "dialect-value", name, applies, texts)


# What caffe-torch refuses of our own fields: settings.py and operators/data.py of the engine.
MEANING_DIFFERENCES += (
    _unrun("SolverParameter", "snapshot_diff", lambda solver: _is_true(solver, "snapshot_diff"), "remove it"),
    _unrun(
        "SolverParameter",
        "eval_type",
        lambda solver: getattr(solver, "eval_type", "") != "classification",
        "remove it",
    ),
    _unrun(
        "DataParameter",
        "backend",
        lambda data: getattr(data, "backend", 0) != pb.DataParameter.LMDB,
        "convert the data to an LMDB, and write backend: LMDB",
    ),
    *(
        _unrun("ImageDataParameter", name, partial(_is_true, field=name), "write new_height and new_width")
        for name in ("min_height", "min_width")
    ),
    *(
        _unrun(f"{block}Parameter", name, partial(_is_given, field=name), f"write transform_param.{name}")
        for block in ("Data", "ImageData")
        for name in ("scale", "mean_file", "crop_size", "mirror")
    ),
)


def find_meaning_differences(message: Message, owner: str, dialect: str) -> Iterator[MeaningDifference]:
    """Yield what a dialect interprets differently in a message, without the messages inside it."""
    for difference in MEANING_DIFFERENCES:
        if (difference.dialect, difference.owner) == (dialect, owner) and difference.applies(message):
            yield difference


class DialectRule(NamedTuple):
    """The severity of a kind of difference, and its description in one line."""

    severity: Literal["error", "warning", "note"]
    what: str


# error: that Caffe refuses the message. warning: it interprets it differently. note: a harmless difference.
DIFFERENCE_RULES: Mapping[str, DialectRule] = {
    "dialect-file": DialectRule("error", "a kind of file that the dialect does not read"),
    "dialect-field": DialectRule("error", "a field that the dialect does not have"),
    "dialect-value": DialectRule("error", "an enum value that the dialect does not have"),
    "dialect-twice": DialectRule("error", "several values, or a list, where the dialect takes one value"),
    "dialect-layer-type": DialectRule("error", "a layer type that the dialect does not have"),
    "dialect-solver-type": DialectRule("error", "a solver type that the dialect does not have"),
    "dialect-lr-policy": DialectRule("error", "an lr policy that the dialect does not have"),
    "dialect-number": DialectRule(
        "warning", "an enum value given by a number that is another value in the dialect"
    ),
    "dialect-meaning": DialectRule("warning", "a setting that the dialect interprets differently"),
    "dialect-default": DialectRule("note", "an unset field whose default differs in the dialect"),
}

_FILE_REFUSED = "it aborts when it reads the file, with exit code 134"
_REFUSED = "it refuses the file, with exit code 2"
_KEPT_SIZE = (
    "no field there rounds the size down: without it the output is larger by 1 on each axis whose stride "
    "does not divide size + 2 pad - kernel_size"
)
_UNKNOWN_POLICY = "Unknown learning rate policy"
_WARMUPS = ("warmup_iter", "rampup_interval")
_GIVEN_AS_NUMBER = re.compile(r"(?:\w++\s*+:?\s*+\[?\s*+)?-?\s*+\d")


@dataclass(frozen=True, slots=True)
class DialectDifference:
    """One difference in a dialect: the rule, the field's path, what differs, its effect, and what to write.

    `name` is `Message.field`, `Enum.VALUE` or a string such as `poly_cyc`. `count` is how often it occurs in
    the message, and `field` is the first occurrence.
    """

    rule: str
    field: str
    name: str
    what: str
    effect: str
    write: str
    count: int = 1


def check_message(
    message: Message, dialect: Dialect, document: Document[Message] | None = None
) -> list[DialectDifference]:
    """Return the differences between a dialect and ours in a message, in the order of the text.

    Each difference is returned once, with the number of its occurrences.
    """
    found: dict[tuple[str, str], DialectDifference] = {}
    for difference in _differences(message, dialect, document):
        key = difference.rule, difference.name
        known = found.get(key, replace(difference, count=0))
        found[key] = replace(known, count=known.count + 1)
    offsets = document.offsets if document else {}
    return sorted(found.values(), key=lambda difference: offsets.get(difference.field, 0))


def _differences(
    message: Message, dialect: Dialect, document: Document[Message] | None
) -> Iterator[DialectDifference]:
    name = _schema_name(message.DESCRIPTOR.full_name)
    if dialect.missing.get(name, "") is None:
        what = f"{TITLES[dialect.name]} has no {name}"
        others = [title for other, title in TITLES.items() if _has(other, message)]
        yield DialectDifference("dialect-file", "", name, what, _FILE_REFUSED, _only_in(others))
        return
    yield from _field_differences(message, "", dialect, document)


def _has(dialect: str, message: Message) -> bool:
    fields = message.DESCRIPTOR.fields
    return dialect in field_dialects(_schema_name(message.DESCRIPTOR.full_name), fields[0].name)


def _field_differences(
    message: Message, prefix: str, dialect: Dialect, document: Document[Message] | None
) -> Iterator[DialectDifference]:
    owner = _schema_name(message.DESCRIPTOR.full_name)
    for found in find_meaning_differences(message, owner, dialect.name):
        yield DialectDifference(found.rule, f"{prefix}{found.field}", found.name, *found.texts)
    for field, value in message.ListFields():
        path = f"{prefix}{field.name}"
        values = value if field.is_repeated else [value]
        first = f"{path}[0]" if field.is_repeated else path
        if field.number >= FIRST_FOREIGN:
            continue  # no dialect has it, as `unknown-field` reports
        if not dialect.knows(owner, field.name):
            missing = _missing_name("dialect-field", first, owner, field.name, dialect)
            yield replace(missing, write=_KEPT_SIZE) if rounds_down(message) else missing
            continue
        if field.is_repeated and _takes_single_value(owner, field.name, dialect):
            yield from _check_single_value(first, owner, field.name, len(values), dialect, document)
        if not isinstance(values[0], Message | str) and field.enum_type is None:
            continue  # numbers need no check, and blobs hold millions of them
        for index, item in enumerate(values):
            at = f"{path}[{index}]" if field.is_repeated else path
            if isinstance(item, Message):
                yield from _field_differences(item, f"{at}.", dialect, document)
            elif field.enum_type is not None:
                yield from _check_enum_value(field.enum_type, item, at, dialect, document)
            elif isinstance(item, str):
                yield from _check_string(message, owner, field, item, at, dialect)


def _missing_name(rule: str, path: str, owner: str, name: str, dialect: Dialect) -> DialectDifference:
    title = TITLES[dialect.name]
    here = find_counterpart(dialect.name, owner, name)
    what = f"{title} has no {owner}.{name}"
    others = [TITLES[other] for other in field_dialects(owner, name)]
    place = "here" if dialect.name == OURS else "there"
    write = f"remove it; {place} {here}" if here else f"remove it; {_only_in(others)}"
    effect = _describe_refusal(dialect, _FILE_REFUSED)
    return DialectDifference(rule, path, f"{owner}.{name}", what, effect, write)


def _takes_single_value(owner: str, name: str, dialect: Dialect) -> bool:
    definition = dialect.changed.get(owner, {}).get(name)
    return isinstance(definition, Definition) and definition.label != "repeated"


def _check_single_value(
    path: str, owner: str, name: str, count: int, dialect: Dialect, document: Document[Message] | None
) -> Iterator[DialectDifference]:
    title = TITLES[dialect.name]
    if count > 1:
        what = f"{owner}.{name} has {count} values, but {title} takes one"
    elif document and path in document.offsets and not document.text.startswith(name, document.offsets[path]):
        what = f"{owner}.{name} is a list, but {title} takes one value"
    else:
        return
    sides = {
        "pad": "pad_h and pad_w",
        "kernel_size": "kernel_h and kernel_w",
        "stride": "stride_h and stride_w",
    }
    write = f"write {sides[name]}, or one {name} for both" if name in sides else f"write one {name}"
    yield DialectDifference("dialect-twice", path, f"{owner}.{name}", what, _FILE_REFUSED, write)


def _check_enum_value(
    enum: EnumDescriptor, number: int, path: str, dialect: Dialect, document: Document[Message] | None
) -> Iterator[DialectDifference]:
    owner, name = _schema_name(enum.full_name), enum.values_by_number[number].name
    if number >= FIRST_FOREIGN:
        return
    if not _is_number(path, document):
        if not dialect.knows(owner, name):
            yield _missing_name("dialect-value", path, owner, name, dialect)
        return
    there = _names_by_number(enum, owner, dialect).get(number)
    title = TITLES[dialect.name]
    if there is None:
        what = f"{title} has no {owner} with the number {number}"
        write = f"{name} has another number there; write the name" if dialect.knows(owner, name) else ""
        here = find_counterpart(dialect.name, owner, name)
        yield DialectDifference(
            "dialect-value",
            path,
            f"{owner}.{name}",
            what,
            _FILE_REFUSED,
            write or (f"remove it; {here}" if here else "write a value that it has"),
        )
    elif there != name:
        what = f"{number} is {owner}.{there} in {title}, but {name} in SURFsara's"
        yield DialectDifference(
            "dialect-number", path, f"{owner}.{name}", what, f"it uses {there}", "write the name"
        )


def _is_number(path: str, document: Document[Message] | None) -> bool:
    """Return whether the text gives an enum value by its number."""
    if document is None or path not in document.offsets:
        return False
    return _GIVEN_AS_NUMBER.match(document.text, document.offsets[path]) is not None


def _names_by_number(enum: EnumDescriptor, owner: str, dialect: Dialect) -> dict[int, str]:
    theirs = {**dialect.added.get(owner, {}), **dialect.changed.get(owner, {})}
    names = [value.name for value in enum.values if dialect.knows(owner, value.name)]
    numbers = {name: theirs.get(name, enum.values_by_name[name].number) for name in names}
    return {number: name for name, number in numbers.items() if isinstance(number, int)}


def _check_string(
    message: Message, owner: str, field: FieldDescriptor, word: str, path: str, dialect: Dialect
) -> Iterator[DialectDifference]:
    """Check strings that must be known to Caffe: layer types, solver types and lr policies."""
    title = TITLES[dialect.name]
    if (owner, field.name) == ("LayerParameter", "type") and word not in dialect.layer_types:
        hint = find_layer_counterpart(dialect, word)
        write = f"{hint} is similar" if hint else _suggest_type(word, dialect)
        aborts = f"it aborts when it creates the net: Unknown layer type: {word}"
        effect = _describe_refusal(dialect, aborts)
        yield DialectDifference(
            "dialect-layer-type", path, word, f"{title} has no layer type '{word}'", effect, write
        )
    elif (owner, field.name) == ("SolverParameter", "type") and word not in dialect.solver_types:
        write = _nearest(word, dialect.solver_types, solver_type_dialects(word))
        aborts = f"it aborts when it starts: Unknown solver type: {word}"
        effect = _describe_refusal(dialect, aborts)
        what = f"{title} has no solver type '{word}'"
        yield DialectDifference("dialect-solver-type", path, word, what, effect, write)
    elif (owner, field.name) == ("SolverParameter", "lr_policy") and word not in dialect.lr_policies:
        policy = LR_POLICIES.get(word)
        uses = policy is not None and policy.uses in dialect.lr_policies
        write = policy.clause if policy and uses else _nearest(word, dialect.lr_policies, ())
        if lr_policy_dialects(word) and not policy:
            write = _nearest(word, dialect.lr_policies, lr_policy_dialects(word))
        what = f"{title} has no lr_policy '{word}'"
        effect = _describe_refusal(dialect, _describe_policy_failure(message, dialect))
        yield DialectDifference("dialect-lr-policy", path, word, what, effect, write)


def _describe_refusal(dialect: Dialect, aborts: str) -> str:
    """Return what happens in a dialect: caffe-torch refuses the file at once, a Caffe `aborts`."""
    return _REFUSED if dialect.name == ENGINE else aborts


def _describe_policy_failure(solver: Message, dialect: Dialect) -> str:
    """Describe when training fails at an unknown lr policy, which is when the policy is first evaluated."""
    fields = [name for name in _WARMUPS if dialect.knows("SolverParameter", name)]
    warmup = max((getattr(solver, name, 0) for name in fields), default=0)
    if warmup > 0:
        return f"it trains through the warm-up and stops only at iteration {warmup}: {_UNKNOWN_POLICY}"
    return f"it aborts at its first iteration: {_UNKNOWN_POLICY}"


def _nearest(word: str, known: frozenset[str], others: tuple[str, ...]) -> str:
    """Suggest a similar known word; if other Caffes have the word, it is not misspelt, so name them."""
    if others:
        return _only_in([TITLES[other] for other in others])
    return did_you_mean(word, known, f"it has {', '.join(sorted(known))}")


def _suggest_type(word: str, dialect: Dialect) -> str:
    others = layer_type_dialects(word)
    if others:
        return _only_in([TITLES[other] for other in others])
    if word in TYPES:
        return describe_fork(TYPES[word], is_type=True)
    near = nearest_layer_type(word, dialect.layer_types)
    return f"did you mean '{near}'?" if near else "no Caffe known here has it"


def _only_in(titles: Sequence[str]) -> str:
    return f"only {join_names(titles)} {plural(len(titles), 'has', 'have')} it"


def _schema_name(full_name: str) -> str:
    return full_name.removeprefix("caffe.")
