"""Which parameters belong together, and what they are called.

A group rule says it: ``None`` (``backbone`` and ``head`` by their names), ``"param_groups"`` (those of the
optimizer), ``"layers"`` (one group for each module that has parameters of its own), a dict of group name
to pattern, or a function of name and parameter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from stepwell.diagnostics.flat_shards import note_flat_shards
from stepwell.journal.errors import StepwellError, warn_once

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
"""The group of all parameters; always there."""
ROOT = "root"
"""The layer of parameters that belong to the outermost module itself."""
WRAPPERS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
"""Parts of a name that only say how a module was wrapped."""


def grouped(
    model: Module, optimizer: Any = None, groups: GroupRule = None
) -> dict[str, Parameters]:
    r"""The parameters by group, ``overall`` (all of them) first; a group without any is absent.

    A parameter that several modules share is there once, under its first name. Patterns are regular
    expressions searched anywhere in a name (so ``"backbone"`` finds what contains it, and
    ``r"^layer4\."`` is more exact); a shared parameter is found under any of its names. A parameter is in
    every group whose pattern finds it, and in ``overall`` alone when none does.
    """
    note_flat_shards(model)
    aliases = names_of(model)
    everything = [(names[0], parameter) for parameter, names in aliases]
    found: dict[str, Parameters] = {OVERALL: everything}
    for group, parameters in _chosen(aliases, optimizer, groups).items():
        if group == OVERALL:
            raise StepwellError(f'the group name "{OVERALL}" is taken: it means all parameters')
        if parameters:
            found[group] = parameters
    return found


def names_of(model: Module) -> list[tuple[Parameter, list[str]]]:
    """Each parameter once, with all names it goes by, cleaned of what wrapped the model."""
    cleaned = {"": ""}
    modules = {"": model}
    for path, module in model.named_modules(remove_duplicate=False):
        if path:
            modules[path] = module
            above, _, own = path.rpartition(".")
            wrapped = _wraps(modules[above], own)
            cleaned[path] = cleaned[above] if wrapped else _join(cleaned[above], own)
    found: dict[int, tuple[Parameter, list[str]]] = {}
    taken: set[str] = set()
    for path, parameter in model.named_parameters(remove_duplicate=False):
        above, _, own = path.rpartition(".")
        name = _join(cleaned[above], own)
        # Two names that become the same once they are clean stay as they are.
        name = path if name in taken else name
        taken.add(name)
        found.setdefault(id(parameter), (parameter, []))[1].append(name)
    return list(found.values())


def _wraps(parent: Module, child: str) -> bool:
    """Whether ``parent`` only wraps its child of this name, as data parallelism and compilers do."""
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
            f'groups={rule!r} is no group rule: write None, "param_groups", "layers", '
            "a dict of group name to pattern, or a function (name, parameter) -> group name or None"
        )
    found: dict[str, Parameters] = {}
    for parameter, names in aliases:
        group = choose(names[0], parameter)
        if group is None:
            continue
        if not isinstance(group, str):
            raise StepwellError(
                f"the group rule gave {group!r} for {names[0]}: it has to be a str or None"
            )
        found.setdefault(group, []).append((names[0], parameter))
    return found


def backbone_or_head(name: str, parameter: object = None) -> str | None:
    """``backbone`` for names with that word in them, ``head`` for those with "head" or "mlp"."""
    if "backbone" in name:
        return "backbone"
    return "head" if "head" in name or "mlp" in name else None


def layer(name: str, parameter: object = None) -> str:
    """The module that a parameter belongs to."""
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
                "no parameter has a name that the pattern of the group %s finds; the names are "
                "like %s",
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
            f"the pattern {given!r} of the group {group} is no regular expression ({error}); "
            'part of a name will do, like "head", and ".*" stands for anything'
        ) from error


def _by_optimizer(
    aliases: list[tuple[Parameter, list[str]]], optimizer: Any
) -> dict[str, Parameters]:
    if optimizer is None:
        raise StepwellError('groups="param_groups" needs the optimizer')
    names = {id(parameter): (known[0], parameter) for parameter, known in aliases}
    found: dict[str, Parameters] = {}
    for index, group in enumerate(optimizer.param_groups):
        members = found.setdefault(str(group.get("name") or f"group_{index}"), [])
        members += [names[id(one)] for one in group["params"] if id(one) in names]
    return found
