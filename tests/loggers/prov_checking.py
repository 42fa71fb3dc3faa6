"""Checks of a PROV document: by the `prov` package, and by the constraints of the W3C."""

from __future__ import annotations

import json
import re
from collections import Counter
from datetime import datetime
from typing import Any

KINDS: dict[str, dict[str, str]] = {
    "used": {"prov:activity": "activity", "prov:entity": "entity"},
    "wasGeneratedBy": {"prov:entity": "entity", "prov:activity": "activity"},
    "wasDerivedFrom": {"prov:generatedEntity": "entity", "prov:usedEntity": "entity"},
    "wasInformedBy": {"prov:informed": "activity", "prov:informant": "activity"},
    "wasAssociatedWith": {
        "prov:activity": "activity",
        "prov:agent": "agent",
        "prov:plan": "entity",
    },
    "wasAttributedTo": {"prov:entity": "entity", "prov:agent": "agent"},
    "actedOnBehalfOf": {"prov:delegate": "agent", "prov:responsible": "agent"},
    "wasStartedBy": {"prov:activity": "activity", "prov:starter": "activity"},
    "hadMember": {"prov:collection": "entity", "prov:entity": "entity"},
}
"""Each relation of PROV-JSON that is used here, and what it relates."""

LEXICAL = {
    "xsd:int": r"-?\d{1,10}",
    "xsd:long": r"-?\d{1,19}",
    "xsd:integer": r"-?\d+",
    "xsd:double": r"NaN|-?INF|-?\d+(\.\d+)?(e[-+]?\d+)?",
    "xsd:boolean": r"true|false",
    "xsd:anyURI": r"[A-Za-z][A-Za-z0-9+.-]*:\S+",
    "prov:QUALIFIED_NAME": r"[a-z]+:\S+",
}
LOCAL = r"(?:[A-Za-z0-9_~./-]|%[0-9A-F]{2})*(?:[A-Za-z0-9_~/-]|%[0-9A-F]{2})"
"""A local name that needs no escapes in PROV-N either."""


def check(document: dict[str, Any]) -> None:
    """Whether everything about a document is right."""
    json.dumps(document, allow_nan=False)
    _check_names(document)
    _check_values(document)
    _check_relations(document)
    _check_times(document)
    _check_with_prov(document)


def things(document: dict[str, Any], type: str) -> dict[str, dict[str, Any]]:
    """The things of a type, by their ids."""
    return {
        id: about
        for kind in ("entity", "activity", "agent")
        for id, about in document.get(kind, {}).items()
        if type in types(about)
    }


def types(about: dict[str, Any]) -> list[str]:
    return [value(one) for one in listed(about.get("prov:type", []))]


def value(literal: Any) -> Any:
    """A literal without its type."""
    return literal["$"] if isinstance(literal, dict) else literal


def listed(found: Any) -> list[Any]:
    return found if isinstance(found, list) else [found]


def pairs(document: dict[str, Any], relation: str) -> set[tuple[str, str]]:
    """(later, earlier) of each statement of a relation."""
    first, second = list(KINDS[relation])[:2]
    return {(about[first], about[second]) for about in document.get(relation, {}).values()}


def _check_names(document: dict[str, Any]) -> None:
    prefixes = document["prefix"]
    for uri in prefixes.values():
        assert re.fullmatch(r"(https?://[^\s/]+/|urn:[a-z]+:)\S*[/#:]", uri) or uri.endswith("#"), (
            uri
        )
    assert prefixes["prov"] == "http://www.w3.org/ns/prov#"
    assert prefixes["xsd"] == "http://www.w3.org/2001/XMLSchema#"
    for kind in ("entity", "activity", "agent"):
        for id, about in document.get(kind, {}).items():
            prefix, _, local = id.partition(":")
            assert prefix == "run"
            assert re.fullmatch(LOCAL, local), id
            assert ".." not in local.split("/")
            for name in about:
                assert name.partition(":")[0] in prefixes, name
                assert re.fullmatch(LOCAL, name.partition(":")[2]), name


def _check_values(document: dict[str, Any]) -> None:
    for kind in document:
        for about in document[kind].values() if kind != "prefix" else ():
            for name, found in about.items():
                for literal in listed(found):
                    if isinstance(literal, dict):
                        assert set(literal) == {"$", "type"}
                        assert re.fullmatch(LEXICAL[literal["type"]], literal["$"]), (name, literal)
                    else:
                        assert isinstance(literal, str), (name, literal)
            sha256 = about.get("stepwell:sha256")
            assert sha256 is None or re.fullmatch("[0-9a-f]{64}", sha256)


def _check_relations(document: dict[str, Any]) -> None:
    for relation, roles in KINDS.items():
        for about in document.get(relation, {}).values():
            for role, kind in roles.items():
                assert role == "prov:plan" or role in about
                assert role not in about or about[role] in document[kind], (relation, about)
    unknown = set(document) - {"prefix", "entity", "activity", "agent", *KINDS}
    assert not unknown
    made = Counter(entity for entity, _ in pairs(document, "wasGeneratedBy"))
    assert all(count == 1 for count in made.values()), "an entity is generated once"
    for relation in ("wasDerivedFrom", "wasInformedBy", "wasStartedBy"):
        _check_acyclic(pairs(document, relation))
    # An attribution says that the agent was associated with what generated the entity.
    associated = pairs(document, "wasAssociatedWith")
    made_by = dict(pairs(document, "wasGeneratedBy"))
    for entity, agent in pairs(document, "wasAttributedTo"):
        assert (made_by[entity], agent) in associated
    for _, plan in {
        (a["prov:activity"], a["prov:plan"])
        for a in document["wasAssociatedWith"].values()
        if "prov:plan" in a
    }:
        assert "prov:Plan" in types(document["entity"][plan])
    for collection, _ in pairs(document, "hadMember"):
        assert "prov:Collection" in types(document["entity"][collection])


def _check_acyclic(edges: set[tuple[str, str]]) -> None:
    left = set(edges)
    while left:
        later = {one for one, _ in left}
        ends = {edge for edge in left if edge[1] not in later}
        assert ends, f"a circle: {left}"
        left -= ends


def _check_times(document: dict[str, Any]) -> None:
    """PROV's ordering constraints, as far as times are given."""
    activities = document["activity"]
    for about in activities.values():
        assert "prov:endTime" not in about or _time(about, "start") <= _time(about, "end")
    generated = {}
    for about in document.get("wasGeneratedBy", {}).values():
        time = datetime.fromisoformat(about["prov:time"])
        activity = activities[about["prov:activity"]]
        assert _time(activity, "start") <= time
        assert "prov:endTime" not in activity or time <= _time(activity, "end")
        generated[about["prov:entity"]] = time
    for later, earlier in pairs(document, "wasDerivedFrom"):
        if later in generated and earlier in generated:
            assert generated[earlier] <= generated[later], (later, earlier)
    for later, earlier in pairs(document, "wasInformedBy"):
        if "prov:endTime" in activities[later]:
            assert _time(activities[earlier], "start") <= _time(activities[later], "end")
    for later, earlier in pairs(document, "wasStartedBy"):
        assert _time(activities[earlier], "start") <= _time(activities[later], "start")
    for activity, entity in pairs(document, "used"):
        if entity in generated and "prov:endTime" in activities[activity]:
            assert generated[entity] <= _time(activities[activity], "end")


def _time(about: dict[str, Any], which: str) -> datetime:
    found = datetime.fromisoformat(about[f"prov:{which}Time"])
    assert found.tzinfo is not None
    return found


def _check_with_prov(document: dict[str, Any]) -> None:
    """The `prov` package reads it, finds nothing to join, and gives it back as it was."""
    from prov.model import ProvDocument

    text = json.dumps(document)
    read = ProvDocument.deserialize(content=text, format="json")
    count = sum(len(document[kind]) for kind in document if kind != "prefix")
    assert len(read.get_records()) == count
    assert len(read.unified().get_records()) == count
    again = ProvDocument.deserialize(content=read.serialize(format="json"), format="json")
    if '"NaN"' not in text:
        assert again == read
    assert len(again.get_records()) == count
    assert "document" in read.get_provn()
    for record in read.get_records():
        assert record.identifier is None or "://" in record.identifier.uri
