"""Checks of plugin classes: every public attribute must be a setting, a hook, a constant or a helper."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from string import Formatter
from typing import Any, ClassVar

from fedspan.benchmark.errors import UserError, place_of, suggestion
from fedspan.benchmark.fields import checked, defaults_of, hints_of, settable
from fedspan.benchmark.search import spaces_of

ENGINE = "fedspan.benchmark."
RESERVED = ("kind", "name", "version")  # they identify a plugin in a record
FOR_READERS = ("title", "summary", "papers", "wording", "identifying")  # class attributes for human readers only
NAMES_FIELDS = ("neutral", "same_shapes", "coefficient", "identifying", "wording", "skew_field")
FORMS = {str: "a string", bool: "True or False", int: "a whole number", Mapping: "a mapping"}
BASES = {"algorithm": "Component", "addon": "Component"}  # base classes that are not named after their kind
CALLED = (types.FunctionType, property, functools.cached_property, staticmethod, classmethod)


def check_class(cls: type, kind: str, name: str) -> None:
    """Raise `UserError`, with the place in the source, if `cls` cannot be the plugin `name`."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise UserError(
            f"{kind} name {name!r} ({place_of(cls)}) must be lower case letters, digits and _; "
            f'write @{kind}("{_spelt(name) or code_name(cls)}")'
        )
    if not re.search(r"\b(19|20)\d\d\b", cls.__doc__ or ""):
        raise UserError(f"{kind} '{name}' ({place_of(cls)}) needs a docstring that names its source with a year")
    wanted = BASES.get(kind, kind.title())
    if wanted not in {owner.__name__ for owner in cls.__mro__ if _of_engine(owner)}:
        raise UserError(f"{kind} '{name}' ({place_of(cls)}) must extend {wanted}; write class {cls.__name__}({wanted})")
    for owner, member, problem in (*_problems(cls), *_untyped(cls)):
        raise UserError(f"{kind} '{name}' ({place_of(owner, member)}): {problem}")


def code_name(cls: type) -> str:
    """Return a plugin name made from that of its class: ``my_idea`` for ``MyIdea``."""
    return _spelt(cls.__name__)


def _spelt(name: str) -> str:
    """Return a name as that of a plugin: ``fed_x_1`` for ``FedX-1``; empty if nothing of it is left."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return re.sub(r"[^a-z0-9]+", "_", apart).rstrip("_").lstrip("_0123456789")


def base_of(cls: type) -> type:
    """Return the class of the engine that a plugin class extends."""
    return next(owner for owner in cls.__mro__ if _of_engine(owner))


def _untyped(cls: type) -> Iterator[tuple[type, str, str]]:
    """Yield (class, field, problem) for each field whose type a setting cannot have."""
    hints = hints_of(cls)
    for owner in cls.__mro__:
        for name in () if _of_engine(owner) else _annotations(owner):
            if not (name.startswith("_") or _is_constant(hints[name]) or settable(hints[name], _says_how(owner, name))):
                shown = inspect.formatannotation(hints[name])
                known = "bool, int, float, str, Literal[...], tuple[...], or one of them | None; with how(...), Path"
                yield owner, name, f"'{name}' has the type {shown}; a setting has one of these: {known}"


def _says_how(owner: type, name: str) -> bool:
    """Return whether `how` declares a class's field; the class may be a dataclass already."""
    fields = vars(owner).get("__dataclass_fields__", vars(owner))
    return isinstance(found := fields.get(name), dataclasses.Field) and bool(found.metadata.get("how"))


def check_fields(cls: type, kind: str, name: str) -> None:
    """Raise `UserError` for a field without a default, a reserved name, or a class attribute of the wrong form."""
    for field in dataclasses.fields(cls):
        if field.name in RESERVED:
            raise UserError(
                f"{kind} '{name}' ({place_of(cls, field.name)}) cannot have a field called '{field.name}'; rename it"
            )
    for setting, default in defaults_of(cls).items():
        try:
            checked(cls, {setting: default}, "")
        except UserError as error:
            raise UserError(f"{kind} '{name}' ({place_of(cls, setting)}): the default of {error}") from None
    spaces_of(cls)
    for owner, member, problem in _misread(cls):
        raise UserError(f"{kind} '{name}' ({place_of(owner, member)}): {problem}")


def _misread(cls: type) -> Iterator[tuple[type, str, str]]:
    """Yield (class, attribute, problem) for each known class attribute whose value the engine would misread."""
    base = base_of(cls)
    forms = {name: typing.get_args(hint)[0] for name, hint in typing.get_type_hints(base).items() if _is_constant(hint)}
    settings = [field.name for field in dataclasses.fields(cls)]
    for owner in cls.__mro__:
        for name in () if _of_engine(owner) else forms.keys() & vars(owner).keys() - {*RESERVED}:
            value, form = vars(owner)[name], typing.get_origin(forms[name]) or forms[name]
            if form is types.UnionType:
                form = Mapping if isinstance(value, Mapping) else tuple
            if isinstance(value, CALLED):
                continue
            if name in settings:
                yield owner, name, f"'{name}' is not a setting; write {name} = ..., without an annotation"
            elif not isinstance(value, form) or (form is tuple and not all(isinstance(item, str) for item in value)):
                wanted = f"a tuple of names, as ({str(value)!r},)" if form is tuple else FORMS[form]
                yield owner, name, f"'{name}' must be {wanted}, got {value!r:.60}"
            elif unknown := [item for item in _fields_named(name, value) if item not in settings]:
                yield owner, name, f"'{name}' names '{unknown[0]}', which is not a setting{_near(unknown[0], settings)}"
            elif name == "wording" and (wrong := [text for text in _texts(value) if not _takes_a_value(text)]):
                yield (
                    owner,
                    name,
                    f"'wording' has {wrong[0]!r}, which cannot be filled with one value; write it as {{}}",
                )


def _fields_named(attribute: str, value: Any) -> Iterable[str]:
    """Return the settings that a class attribute names."""
    named = [value] if isinstance(value, str) and value else value
    return named if attribute in NAMES_FIELDS else ()


def _texts(wording: Mapping[str, str | Mapping[Any, str]]) -> Iterator[str]:
    for one in wording.values():
        yield from [one] if isinstance(one, str) else one.values()


def _takes_a_value(text: str) -> bool:
    """Return whether a wording can be formatted with one value; it may also omit the value."""
    try:
        places = [field for _, field, _, _ in Formatter().parse(text) if field is not None]
    except ValueError:
        return False
    return places == [""] or {*places} <= {"0"}


def _problems(cls: type) -> Iterator[tuple[type, str, str]]:
    """Yield (class, attribute, problem) for each public attribute that the engine would ignore."""
    base = base_of(cls)
    classes = [owner for owner in cls.__mro__ if not _of_engine(owner) and owner is not object]
    constants = {name for owner in classes for name, hint in _annotations(owner).items() if _is_constant(hint)}
    inherited = {field.name for field in _fields(base)}
    inherited |= {name for owner in classes for name in _annotations(owner)} - constants
    called = {other for owner in classes for name, value in vars(owner).items() for other in _names(name, value)}
    for owner in classes:
        for name, value in vars(owner).items():
            if name.startswith("_") or name in _annotations(owner) or name in RESERVED:
                continue
            if isinstance(value, CALLED):
                problem = _of_method(base, name, value, called)
            elif name in inherited:
                problem = f"'{name}' has no annotation, so it changes no default; write {name}: type = ..."
            else:
                problem = "" if name in constants else _of_value(base, name, value)
            if problem:
                yield owner, name, problem


def _of_method(base: type, name: str, value: Any, called: set[str]) -> str:
    theirs = inspect.getattr_static(base, name, None)
    if theirs is None:
        if name in called:
            return ""
        hooks = [one for one, member in inspect.getmembers_static(base) if isinstance(member, CALLED)]
        return (
            f"'{name}' is not a hook of {base.__name__}, and no method of the class calls it{_near(name, hooks)} "
            f"(begin the name of a helper for other code with _)"
        )
    is_property = isinstance(value, (property, functools.cached_property))
    if isinstance(theirs, CALLED) and isinstance(theirs, property) != is_property:
        return f"'{name}' is {'a hook, not a property' if is_property else 'a property: write @property above it'}"
    if isinstance(theirs, types.FunctionType) and isinstance(value, types.FunctionType):
        wanted = list(inspect.signature(theirs).parameters)
        try:
            inspect.signature(value).bind(*wanted)
        except TypeError:
            taken = ", ".join(list(inspect.signature(value).parameters)[1:])
            return f"the hook {name}({', '.join(wanted[1:])}) is called with these arguments, but takes ({taken})"
    return ""


def _of_value(base: type, name: str, value: Any) -> str:
    theirs = inspect.getattr_static(base, name, None)
    if isinstance(theirs, CALLED):
        return f"'{name}' is a {'property' if isinstance(theirs, property) else 'hook'}, and cannot be {value!r:.60}"
    if theirs is not None or name in FOR_READERS:
        return ""
    constants = [one for one, member in inspect.getmembers_static(base) if not isinstance(member, CALLED)]
    shown = f"{name}: {type(value).__name__} = {value!r:.60}"
    near = _near(name, (*constants, *FOR_READERS))
    return f"'{name}' has no annotation, so it is not a setting{near}; write {shown}, or _{name} for a constant"


def _near(name: str, known: Iterable[str]) -> str:
    return suggestion(name, [one for one in known if not one.startswith("_")])


def _of_engine(cls: type) -> bool:
    return cls.__module__.startswith(ENGINE)


def _annotations(cls: type) -> dict[str, Any]:
    return inspect.get_annotations(cls)


def _is_constant(hint: Any) -> bool:
    return hint is ClassVar or typing.get_origin(hint) is ClassVar or (isinstance(hint, str) and "ClassVar" in hint)


def _fields(cls: type) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()


def _names(name: str, value: Any) -> set[str]:
    """Return the names used in a method's code, except its own."""
    functions = [value.fget, value.fset] if isinstance(value, property) else [getattr(value, "func", value)]
    waiting = [getattr(inspect.unwrap(one), "__code__", None) for one in functions if callable(one)]
    waiting += [getattr(getattr(value, "__func__", None), "__code__", None)]
    found: set[str] = set()
    for code in waiting:
        if isinstance(code, types.CodeType):
            found |= {*code.co_names}
            waiting += [part for part in code.co_consts if isinstance(part, types.CodeType)]
    return found - {name}
