"""Creates the provenance of a run as a W3C PROV document, from its folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from stepwell.loggers.items.converters import flattened
from stepwell.loggers.prov.activities import Activities
from stepwell.loggers.prov.history import Ended, RunHistory, Series, read_history
from stepwell.loggers.prov.products import CONTEXTS, Products
from stepwell.loggers.prov.statements import (
    Name,
    Statements,
    Uri,
    digest_of,
    local_name,
    namespace_of,
    value_of,
)
from stepwell.telemetry import VERSION

USER_NAMESPACE = "www.example.org"
PARAMETERS = "parameters"


def document_of(
    run_folder: str | os.PathLike[str],
    *,
    user_namespace: str = USER_NAMESPACE,
    experiment: str | None = None,
    ended: Ended | None = None,
) -> dict[str, Any]:
    """Return the PROV-JSON document of the run in this folder, which may still be running.

    Args:
        run_folder: the run folder.
        user_namespace: the namespace of the run's names, such as a domain.
        experiment: a part of that namespace; by default the name of the run.
        ended: status and end time of processes that have ended, if the run folder does not show it yet.
    """
    history = read_history(Path(run_folder).expanduser(), ended)
    return Document(history, user_namespace, experiment or history.name).to_json()


class Document:
    """Builds the document of a run."""

    def __init__(self, history: RunHistory, user_namespace: str, experiment: str) -> None:
        self.history = history
        own = local_name([experiment] if experiment == history.id else [experiment, history.id])
        base = namespace_of(user_namespace)
        self.statements = Statements({"run": f"{base}{own}/"})
        self.activities = Activities(history, self.statements, experiment)
        self._agents()
        self._sources()
        self._parameters()
        self.products = Products(history, self.statements, self.activities, self.user)
        for series in history.series:
            self._series(series)

    def to_json(self) -> dict[str, Any]:
        """Return the document."""
        return self.statements.to_json()

    # Agents

    def _agents(self) -> None:
        """Add the user, the program that trains on behalf of the user, and stepwell."""
        statements = self.statements
        attempts = self.history.attempts.values()
        user = next(
            (str(a["user"]) for a in attempts if a.get("user")), _owner(self.history.folder)
        )
        self.user = statements.agent(
            f"run:{local_name(['agent', 'user', user])}",
            prov_type=Name("prov:Person"),
            prov_label=user,
            foaf_name=user,
        )
        commands = (a["argv"] for a in attempts if a.get("argv"))
        command = next((argv for argv in commands if isinstance(argv, list)), [])
        script = os.path.basename(str(command[0])) if command else "program"
        self.program = statements.agent(
            f"run:{local_name(['agent', 'program', script or 'python'])}",
            prov_type=Name("prov:SoftwareAgent"),
            prov_label=script or "python",
        )
        recorder = statements.agent(
            "run:agent/stepwell",
            prov_type=Name("prov:SoftwareAgent"),
            prov_label=f"stepwell {VERSION}",
            stepwell_version=VERSION,
        )
        statements.relate("actedOnBehalfOf", self.program, self.user)
        statements.relate("wasAssociatedWith", self.activities.run, recorder, prov_role="recorder")
        for activity in self.activities.all():
            statements.relate("wasAssociatedWith", activity, self.user, prov_role="user")

    # Code, environment, parameters

    def _sources(self) -> None:
        """Add the code and the environment of each attempt. Attempts with the same ones share them."""
        for number, document in self.history.attempts.items():
            attempt = self.activities.attempts[number]
            code = self._code(document)
            self._associate(attempt, code)
            environment = self._environment(document)
            for source in filter(None, (code, environment)):
                self.statements.relate("used", attempt, source)

    def _associate(self, attempt: str, plan: str | None) -> None:
        """Add that the program carried out an attempt and its phases, with the code as the plan."""
        for activity in [attempt, *self.activities.inside(attempt)]:
            self.statements.relate(
                "wasAssociatedWith", activity, self.program, plan=plan, prov_role="program"
            )

    def _code(self, document: dict[str, Any]) -> str | None:
        code = document.get("code")
        if not isinstance(code, dict) or not code:
            return None
        sha256 = digest_of(code)
        commit = str(code.get("commit") or "")
        branch = code.get("branch")
        changed = ", changed" if code.get("dirty") else ""
        remote = code.get("remote")
        return self.statements.entity(
            f"run:{local_name(['code', commit[:12] or sha256[:12]])}{'-changed' if changed else ''}",
            prov_type=[Name("prov:Plan"), Name("stepwell:Code")],
            prov_label=f"code {commit[:10] or branch}{changed}",
            prov_location=Uri(remote) if remote and "://" in str(remote) else remote,
            stepwell_commit=commit or None,
            stepwell_branch=branch,
            stepwell_dirty=code.get("dirty") if isinstance(code.get("dirty"), bool) else None,
            stepwell_sha256=sha256,
        )

    def _environment(self, document: dict[str, Any]) -> str | None:
        python, host = _dict(document.get("python")), _dict(document.get("host"))
        system: dict[str, Any] = {
            key: host[key] for key in ("os", "kernel", "machine") if key in host
        }
        if not python and not system:
            return None
        content: dict[str, Any] = {**python, **system}
        sha256 = digest_of(content)
        packages = _dict(python.get("packages"))
        version = python.get("version")
        return self.statements.entity(
            f"run:environment/{sha256[:12]}",
            prov_type=Name("stepwell:Environment"),
            prov_label=f"Python {version}, {system.get('os', '')}".strip(", "),
            stepwell_python=version,
            stepwell_implementation=python.get("implementation"),
            stepwell_package=[f"{name}=={packages[name]}" for name in sorted(packages)],
            **{f"stepwell_{key}": value for key, value in system.items()},
            stepwell_sha256=sha256,
        )

    def _parameters(self) -> None:
        """Add a collection for each set of parameters. Attempts with the same ones share it."""
        logged: dict[int, dict[str, Any]] = {}
        for item in self.history.items:
            if item.kind == "param":
                logged.setdefault(item.attempt, {})[item.name] = item.value
        for number, document in self.history.attempts.items():
            config = document.get("config")
            config = config if isinstance(config, dict) else self.history.config
            values = {**flattened(config, convert=_as_it_is), **logged.get(number, {})}
            if values:
                collection = self._collection(values)
                self.statements.relate("used", self.activities.attempts[number], collection)
                training = self.activities.named(number, "training_loop")
                if training is not None:
                    self.statements.relate("used", training, collection)

    def _collection(self, values: dict[str, Any]) -> str:
        statements = self.statements
        sha256 = digest_of(values)
        collection = statements.entity(
            f"run:{PARAMETERS}/{sha256[:12]}",
            prov_type=[Name("prov:Collection"), Name("stepwell:Parameters")],
            prov_label=f"{len(values)} parameters",
            stepwell_count=len(values),
            stepwell_sha256=sha256,
        )
        for name, value in values.items():
            parameter = statements.entity(
                f"run:{local_name(['parameter', name, digest_of(value)[:8]])}",
                prov_type=Name("stepwell:Parameter"),
                prov_label=name,
                prov_value=value_of(value),
            )
            statements.relate("hadMember", collection, parameter)
        return collection

    # Metrics

    def _series(self, series: Series) -> None:
        statements = self.statements
        context = series.name.partition("/")[0]
        entity = statements.entity(
            f"run:{local_name(['metric', f'attempt-{series.attempt}', series.name])}",
            prov_type=Name("stepwell:Metric"),
            prov_label=series.name,
            prov_value=series.last,
            stepwell_kind=None if series.kind == "metric" else series.kind,
            stepwell_context=context if context in CONTEXTS else None,
            stepwell_count=series.count,
            stepwell_least=series.least,
            stepwell_most=series.most,
            stepwell_first_step=series.first_step,
            stepwell_last_step=series.last_step,
            stepwell_ranks=len(series.ranks) if len(series.ranks) > 1 else None,
            stepwell_rank=series.ranks[0] if self.history.ranks > 1 == len(series.ranks) else None,
            stepwell_sha256=series.sha256,
        )
        activity = self.activities.around(series.attempt, series.start, series.end)
        phases = self.activities.named(series.attempt, CONTEXTS.get(context, ""))
        if phases is not None and not activity.startswith(phases):
            # For example, it was logged after that phase had ended.
            activity = phases
        self.activities.generate(entity, activity, series.end)
        statements.relate("wasAttributedTo", entity, self.user)


def _as_it_is(value: Any) -> Any:
    return value


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _owner(folder: Path) -> str:
    """Return the owner of the folder, for a run that does not contain its user."""
    try:
        return folder.owner()
    except (OSError, KeyError, NotImplementedError):
        return "unknown"
