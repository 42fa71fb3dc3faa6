"""Groups of parameters.

A group rule is ``None`` (``backbone`` and ``head`` by their names), ``"param_groups"`` (those of the
optimizer), ``"layers"`` (one group per module with parameters of its own), a dict of group names and
patterns, or a function of name and parameter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from stepwell._core.errors import StepwellError, warn_once
from stepwell.diagnostics.sharding import note_flat_shards

if TYPE_CHECKING:
    from torch.nn import Module, Parameter

    Parameters: TypeAlias = list[tuple[str, Parameter]]
    Pattern: TypeAlias = str | re.Pattern[str]
    GroupRule: TypeAlias = (
        str
        | Mapping[str, Pattern | Iterable[Pattern]]
        | Callable[[str, Parameter], str | None]
        | None
    )

OVERALL = "overall"
"""The group of all parameters, which always exists."""
ROOT = "root"
"""The layer of parameters that belong to the outermost module itself."""
WRAPPERS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
"""Parts of a name that come from wrappers of modules."""


def grouped(
    model: Module, optimizer: Any = None, groups: GroupRule = None
) -> dict[str, Parameters]:
    r"""Return the parameters by group, ``overall`` (all parameters) first. Empty groups are left out.

    A parameter that several modules share occurs once, with its first name. Patterns are regular
    expressions that may match anywhere in a name (``"backbone"``, or more exactly ``r"^layer4\."``); for a
    shared parameter, in any of its names. A parameter is in every group whose pattern matches.
    """
    note_flat_shards(model)
    aliases = names_of(model)
    everything = [(names[0], parameter) for parameter, names in aliases]
    result: dict[str, Parameters] = {OVERALL: everything}
    for group, parameters in _chosen(aliases, optimizer, groups).items():
        if group == OVERALL:
            raise StepwellError(f'the group name "{OVERALL}" is reserved: it means all parameters')
        if parameters:
            result[group] = parameters
    return result


def names_of(model: Module) -> list[tuple[Parameter, list[str]]]:
    """Return each parameter once, with all its names, without the names of wrappers."""
    cleaned = {"": ""}
    modules = {"": model}
    for path, module in model.named_modules(remove_duplicate=False):
        if path:
            modules[path] = module
            above, _, own = path.rpartition(".")
            wrapped = _wraps(modules[above], own)
            cleaned[path] = cleaned[above] if wrapped else _join(cleaned[above], own)
    result: dict[int, tuple[Parameter, list[str]]] = {}
    taken: set[str] = set()
    for path, parameter in model.named_parameters(remove_duplicate=False):
        above, _, own = path.rpartition(".")
        name = _join(cleaned[above], own)
        # If two names become equal without wrappers, the second keeps its full name.
        name = path if name in taken else name
        taken.add(name)
        result.setdefault(id(parameter), (parameter, []))[1].append(name)
    return list(result.values())


def _wraps(parent: Module, child: str) -> bool:
    """Return whether ``parent`` only wraps this child, as data parallelism and compilers do."""
    if child != "module":
        return child in WRAPPERS
    return sum(1 for _ in parent.children()) == 1 and next(parent.parameters(False), None) is None


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _chosen(
    aliases: list[tuple[Parameter, list[str]]], optimizer: Any, rule: GroupRule
) -> dict[str, Parameters]:
    if isinstance(rule, Mapping):
        return dict(_by_patterns(aliases, rule))
    if rule == "param_groups":
        return _by_optimizer(aliases, optimizer)
    if rule is None:
        choose: Callable[[str, Parameter], str | None] = backbone_or_head
    elif rule == "layers":
        choose = layer
    elif callable(rule):
        choose = rule
    else:
        raise StepwellError(
            'groups must be None, "param_groups", "layers", a dict of group names and patterns, '
            f"or a function (name, parameter) -> group name or None, got {rule!r}"
        )
    result: dict[str, Parameters] = {}
    for parameter, names in aliases:
        group = choose(names[0], parameter)
        if group is None:
            continue
        if not isinstance(group, str):
            raise StepwellError(
                f"the group rule must return a string or None, got {group!r} for {names[0]}"
            )
        result.setdefault(group, []).append((names[0], parameter))
    return result


def backbone_or_head(name: str, parameter: object = None) -> str | None:
    """Return ``backbone`` for names that contain it, ``head`` for those with "head" or "mlp"."""
    if "backbone" in name:
        return "backbone"
    return "head" if "head" in name or "mlp" in name else None


def layer(name: str, parameter: object = None) -> str:
    """Return the name of the module of a parameter."""
    return name.rpartition(".")[0] or ROOT


def _by_patterns(
    aliases: list[tuple[Parameter, list[str]]], rule: Mapping[str, Pattern | Iterable[Pattern]]
) -> Iterator[tuple[str, Parameters]]:
    for group, given in rule.items():
        patterns = _compiled(group, given)
        members = [
            (names[0], parameter)
            for parameter, names in aliases
            if any(pattern.search(name) for pattern in patterns for name in names)
        ]
        if not members:
            warn_once(
                f"diagnostics: group {group}",
                "the pattern of the group %s matches no parameter. Names look like %s",
                group,
                ", ".join(names[0] for _, names in aliases[:3]),
            )
        yield group, members


def _compiled(group: str, given: Pattern | Iterable[Pattern]) -> list[re.Pattern[str]]:
    patterns = [given] if isinstance(given, str | re.Pattern) else list(given)
    try:
        return [re.compile(pattern) for pattern in patterns]
    except (re.error, TypeError) as error:
        raise StepwellError(
            f"the pattern of the group {group} must be a regular expression, such as a part of a "
            f"name, got {given!r} ({error})"
        ) from error


def _by_optimizer(
    aliases: list[tuple[Parameter, list[str]]], optimizer: Any
) -> dict[str, Parameters]:
    if optimizer is None:
        raise StepwellError('groups="param_groups" needs the optimizer')
    named = {id(parameter): (names[0], parameter) for parameter, names in aliases}
    result: dict[str, Parameters] = {}
    for index, group in enumerate(optimizer.param_groups):
        members = result.setdefault(str(group.get("name") or f"group_{index}"), [])
        members += [named[id(p)] for p in group["params"] if id(p) in named]
    return result
