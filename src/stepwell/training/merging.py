"""One configuration out of several: the application's, the training's, and what overrides them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from stepwell.journal.errors import StepwellError
from stepwell.journal.values import shown
from stepwell.training.config import (
    ApplicationConfig,
    ApplicationFields,
    TrainingFields,
    TrainingTelemetryConfig,
)
from stepwell.training.settings import (
    OR_FN,
    Setting,
    as_json,
    check,
    checked,
    differ,
    setting,
    settings_of,
    spoken,
)
from stepwell.training.values import FLAG, refuse

NESTED = "telemetry_config"
METADATA_FIELD = "custom_metadata"

Fields = dict[str, Any]
Problem = tuple[tuple[str, ...], str]
"""Where in an override something is wrong, and what."""


@checked
@dataclass(frozen=True, kw_only=True)
class ResolvedConfig(ApplicationFields, TrainingFields):
    """What a job reads: all fields in one place. Functions are still called at each access."""

    has_telemetry_config: bool = setting(
        False, FLAG, "whether training has been configured, here or later"
    )

    @property
    def counts_are_functions(self) -> bool:
        """Whether what is counted with has to be asked for anew at each iteration."""
        counted_with = (
            self.global_batch_size_or_fn,
            self.seq_length_or_fn,
            self.flops_per_sample_or_fn,
            self.is_log_throughput_enabled_or_fn,
        )
        return any(map(callable, counted_with))

    def to_dict(self) -> dict[str, Any]:
        """All fields that have a value, as JSON has them; functions by what they give now."""
        return as_json(self, _known())


def merged(
    base: ApplicationConfig | TrainingTelemetryConfig | None = None,
    training: TrainingTelemetryConfig | None = None,
    overrides: Iterable[Mapping[str, Any]] = (),
) -> ResolvedConfig:
    """One configuration out of all. Later overrides win; two configurations must not contradict.

    A field contradicts when both say something different; a default says nothing.
    """
    configs = _configs(base, training)
    fields = _combined(configs)
    is_set = any(isinstance(config, TrainingTelemetryConfig) for config in configs)
    for changes in overrides:
        change = read_override(changes)
        _overlay(fields, change.application)
        _overlay(fields, change.training)
        is_set = is_set or change.is_about_training
    return ResolvedConfig(**fields, has_telemetry_config=is_set)


def _configs(base: Any, training: Any) -> list[ApplicationConfig | TrainingTelemetryConfig]:
    """All that are there, the one inside the application's too; one given twice counts once."""
    found: list[Any] = []
    inner = base.telemetry_config if isinstance(base, ApplicationConfig) else None
    for config in (base, inner, training):
        if config is not None and not any(config is other for other in found):
            found.append(config)
    for config in found:
        if not isinstance(config, (ApplicationConfig, TrainingTelemetryConfig)):
            raise StepwellError(
                f"the configuration is {shown(config)}: write ApplicationConfig(…) "
                "or TrainingTelemetryConfig(…)"
            )
    return found


def _combined(configs: list[ApplicationConfig | TrainingTelemetryConfig]) -> Fields:
    fields: Fields = {}
    problems: list[str] = []
    for config in configs:
        for name, value in spoken(config).items():
            if name == NESTED:
                continue
            if name == METADATA_FIELD:
                problems += _add_metadata(fields, value)
            elif name in fields and differ(fields[name], value):
                problems.append(_contradiction(name, fields[name], value))
            else:
                fields[name] = value
    refuse(problems, "the configurations contradict each other")
    return fields


def _add_metadata(fields: Fields, added: Mapping[str, Any]) -> list[str]:
    """Put the facts of both together; only one fact with two values is a contradiction."""
    before = fields.get(METADATA_FIELD, {})
    fields[METADATA_FIELD] = {**before, **added}
    return [
        _contradiction(f"{METADATA_FIELD}[{key!r}]", before[key], value)
        for key, value in added.items()
        if key in before and differ(before[key], value)
    ]


def _contradiction(name: str, first: Any, second: Any) -> str:
    return (
        f"{name} is {shown(first)} in one and {shown(second)} in the other: write it in one of them"
    )


# Overrides


@dataclass(frozen=True)
class Override:
    """Changed fields, under the names of the configuration classes. None takes a value back."""

    application: Fields
    training: Fields
    is_about_training: bool


def read_override(changes: Mapping[str, Any]) -> Override:
    """The fields that an override changes; StepwellError names all that are unknown or wrong.

    Fields of training may stand beside those of the application or in ``telemetry_config``; all may be
    written without ``_or_fn``.
    """
    found, problems = examine_override(changes)
    refuse([f"{'.'.join(path)} {text}".strip() for path, text in problems], "the override")
    return found


def examine_override(changes: Mapping[str, Any]) -> tuple[Override, list[Problem]]:
    """The fields that an override changes, and what is wrong in it."""
    if not isinstance(changes, Mapping):
        return Override({}, {}, False), [
            ((), f"is {shown(changes)}: write a dict, such as {{'session_tag': 'night'}}")
        ]
    outer = {name: value for name, value in changes.items() if name != NESTED}
    top, problems = _examine(outer, ())
    inner: Fields = {}
    nested = changes.get(NESTED)
    if isinstance(nested, TrainingTelemetryConfig):
        inner = spoken(nested)
    elif isinstance(nested, Mapping):
        inner, more = _examine(nested, (NESTED,))
        problems += more
    elif nested is not None:
        problems.append(((NESTED,), f"is {shown(nested)}: write a dict of its fields"))
    problems += _said_twice(top, inner)
    own = settings_of(TrainingFields)
    training = {**{name: top[name] for name in top if name in own}, **inner}
    application = {name: top[name] for name in top if name not in own}
    return Override(application, training, bool(training) or nested is not None), problems


def _examine(changes: Mapping[Any, Any], at: tuple[str, ...]) -> tuple[Fields, list[Problem]]:
    known = _known()
    fields: Fields = {}
    problems: list[Problem] = []
    for name, value in changes.items():
        full = _full_name(name, known)
        if full in fields:
            problems.append(((*at, str(name)), "is written twice, with and without _or_fn"))
            continue
        kept, wrong = check(known, {full: value})
        # The problem starts with the name, which its place says already.
        problems += [((*at, str(name)), text[len(full) + 1 :]) for text in wrong]
        fields[full] = kept.get(full)
    return fields, problems


def _full_name(name: Any, known: Mapping[str, Setting]) -> str:
    text = str(name)
    return text + OR_FN if text not in known and text + OR_FN in known else text


def _said_twice(top: Fields, inner: Fields) -> list[Problem]:
    return [
        ((NESTED, name), f"is {shown(inner[name])}, but outside it {shown(top[name])}")
        for name in top.keys() & inner.keys()
        if name != METADATA_FIELD and differ(top[name], inner[name])
    ]


def _known() -> dict[str, Setting]:
    return {**settings_of(ApplicationFields), **settings_of(TrainingFields)}


def _overlay(fields: Fields, changes: Fields) -> None:
    """Change fields in place. Facts are changed one by one; None takes a value back."""
    for name, value in changes.items():
        if value is None:
            fields.pop(name, None)
        elif name == METADATA_FIELD:
            fields[name] = {**fields.get(name, {}), **value}
        else:
            fields[name] = value


def override_training(
    config: TrainingTelemetryConfig, changes: Mapping[str, Any]
) -> TrainingTelemetryConfig:
    """A copy of the configuration with these fields changed."""
    change = read_override(changes)
    fields = spoken(config)
    _overlay(fields, change.application)
    _overlay(fields, change.training)
    return TrainingTelemetryConfig(**fields)


def override_application(
    config: ApplicationConfig, changes: Mapping[str, Any]
) -> ApplicationConfig:
    """A copy of the configuration, and of that of training in it, with these fields changed."""
    change = read_override(changes)
    fields = spoken(config)
    inner = fields.pop(NESTED, None)
    _overlay(fields, change.application)
    if inner is not None or change.is_about_training:
        training = spoken(inner) if inner is not None else {}
        # What the application says from now on must not be contradicted by what training said before.
        for name in change.application.keys() - {METADATA_FIELD}:
            training.pop(name, None)
        _overlay(training, change.training)
        fields[NESTED] = TrainingTelemetryConfig(**training)
    return ApplicationConfig(**fields)
