"""Nodes of the `ai` tree: names to record spans under, in several ways.

    @node                       with node:                  for item in node.iter(items):
    @node(args={"size": 4})     with node(size=4):          node.start(); ...; node.stop()

Entering a node without arguments costs the same as a reused span. To achieve this, its class defines how it
is entered: disabled, plain, or with arguments; a node changes its class when its settings change. Whether
to record is decided on entry, so the order of decorating and enabling does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar, overload

from stepwell._core.errors import StepwellError, never_raises
from stepwell._core.values import encode
from stepwell.annotations.loop import annotated
from stepwell.journal.metrics import set_context
from stepwell.journal.span import (
    AttributedSpan,
    IdleSpan,
    NamedSpan,
    enter_unrecorded,
    enter_with,
    enter_with_attributes,
)
from stepwell.journal.state import current_journal, local, state
from stepwell.telemetry.events import name_of

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

COLUMNS = ("step", "epoch")
"""Arguments that are columns of the tables."""


class IterableSpan(NamedSpan):
    """The methods that nodes and uses of nodes share."""

    __slots__ = ()

    @property
    def cat(self) -> str:
        """The category, by the name in dftracer."""
        return self.category

    def iter(
        self,
        iterable: Iterable[T],
        include_block: bool = True,
        include_iter: bool = True,
        iter_name: str | None = None,
        block_name: str | None = None,
    ) -> Iterable[T]:
        """Return an iterable that records fetching each item as ``<name>.iter`` and the loop's body as
        ``<name>.block``.

        Both spans have an argument ``count``, from 1. ``iter_name`` and ``block_name`` replace these names.
        """
        around = self._in_loop(iter_name, "iter") if include_iter else None
        inside = self._in_loop(block_name, "block") if include_block else None
        return annotated(iterable, around, inside)

    def _in_loop(self, name: str | None, ending: str) -> Node | UseInLoop:
        """Return what to record in a loop: under this name, or under that of the node with this ending."""
        raise NotImplementedError


class Node(IterableSpan):
    """An enabled node without arguments. Also the base class of the other nodes."""

    __slots__ = (
        "__dict__",
        "_children",
        "_customized",
        "_data",
        "_own",
        "_parent",
        "attributes",
        "is_enabled",
    )

    def __init__(self, name: str, category: str, parent: Node | None = None) -> None:
        super().__init__(name, category)
        self._parent = parent
        self._children: dict[str, Node] = {}
        self.is_enabled: bool = True if parent is None else parent.is_enabled
        self._own: dict[str, Any] = {}
        # All nodes of the tree with arguments or disabled: few, because they are searched in each step.
        self._customized: dict[Node, None] = {} if parent is None else parent._customized
        self.attributes: dict[str, Any] = {} if parent is None else dict(parent.attributes)
        self._data: bytes | None = None
        self._settle()

    def _settle(self) -> None:
        """Set the class that matches the settings."""
        if not self.is_enabled:
            self.__class__ = DisabledNode
        else:
            self.__class__ = NodeWithArguments if self.attributes else Node
        if type(self) is Node:
            self._customized.pop(self, None)
        else:
            self._customized[self] = None

    # The tree

    def _child(self, key: str, name: str) -> Node:
        child = self._children.get(key)
        if child is None:
            # Two threads that get here at the same time get the same node.
            child = self._children.setdefault(key, Node(name, self.category, self))
        return child

    @property
    def init(self) -> Node:
        """The node for the initialization of this one, such as ``checkpoint.init``."""
        return self._child("init", f"{self.name}.init")

    def derive(self, name: str) -> Node:
        """Return a child node named ``<this name>.<name>``: always the same node for the same name."""
        if name == "init":
            return self.init
        return self._child(f"derived {name_of(name)}", f"{self.name}.{name_of(name)}")

    def _subtree(self) -> Iterator[Node]:
        yield self
        for child in list(self._children.values()):
            yield from child._subtree()

    # Settings

    def enable(self) -> None:
        """Record this node and all nodes below it."""
        self._switch(True)

    def disable(self) -> None:
        """Do not record this node and all nodes below it."""
        self._switch(False)

    def _switch(self, enabled: bool) -> None:
        for node in self._subtree():
            node.is_enabled = enabled
            node._settle()

    def update(self, /, args: Mapping[str, Any] | None = None, **more: Any) -> Node:
        """Set arguments of this node and all nodes below it, from now on. None removes an argument.

        The latest call wins, whether on this node or on one above.

        ``step`` and ``epoch`` are columns of the tables. Set on the root, they apply to the whole run.
        """
        parent = self._parent
        if args is None and parent is not None and not self._children:
            # The fast path for calls in each step, unless a value is None.
            for value in more.values():
                if value is None:
                    break
            else:
                # A new dict, because another thread may be reading the old one.
                own = self._own = self._own | more
                above = parent.attributes
                self.attributes = above | own if above else own
                self._data = None
                if self.__class__ is Node:
                    self._settle()
                return self
        changes = {**_arguments(args), **more}
        if parent is None:
            context = [changes.pop(name, None) for name in COLUMNS]
            if context != [None, None]:
                self._take_columns_back(context)
                if state.enabled:
                    set_context(*context)
        self._change(changes)
        return self

    def _take_columns_back(self, values: list[Any]) -> None:
        """Remove step and epoch set on single nodes: the new values of the root are later."""
        columns = [name for name, value in zip(COLUMNS, values, strict=True) if value is not None]
        for node in list(self._customized):
            old: dict[str, Any] = {name: None for name in columns if name in node._own}
            if old:
                node._change(old)

    def _change(self, changes: dict[str, Any]) -> None:
        if not changes:
            return
        self._own.update(changes)
        if any(value is None for value in changes.values()):
            self._own = {name: value for name, value in self._own.items() if value is not None}
        self._inherit({} if self._parent is None else self._parent.attributes, changes)

    def _inherit(self, attributes: dict[str, Any], changes: dict[str, Any]) -> None:
        self.attributes = {**attributes, **self._own}
        self._data = None
        self._settle()
        for child in list(self._children.values()):
            for name in changes:
                # The latest call wins, as with enable and disable.
                child._own.pop(name, None)
            child._inherit(self.attributes, changes)

    def _encoded(self) -> bytes:
        """Return the encoded arguments."""
        data = self._data
        if data is None:
            attributes = self.attributes
            data = encode(attributes) if attributes else b""
            if self.attributes is attributes:
                # Not changed by another thread in between.
                self._data = data
        return data

    # Uses

    @overload
    def __call__(self, function: F, /) -> F: ...

    @overload
    def __call__(
        self,
        function: None = None,
        /,
        *,
        args: Mapping[str, Any] | None = None,
        enable: bool | None = None,
        **more: Any,
    ) -> Use: ...

    def __call__(
        self,
        function: Any = None,
        /,
        *,
        args: Mapping[str, Any] | None = None,
        enable: bool | None = None,
        **more: Any,
    ) -> Any:
        """Decorate a function, or return a use of this node with its own arguments or switch."""
        if function is not None and args is None and enable is None and not more:
            return super().__call__(function)
        if enable is None:
            use: Use = Use()
        else:
            switched: SwitchedUse = SwitchedUse()
            switched._enable = _switch_of(enable)
            use = switched
        use.name_word = self.name_word
        use._node = self
        if args is None:
            use.attributes = more
        elif type(args) is dict and not more:
            use.attributes = args
        else:
            use.attributes = {**_arguments(args), **more}
        return use if function is None else use(function)

    def start(self, metadata: bool = False) -> None:
        """Enter the node, where a ``with`` statement does not fit. ``metadata`` writes an event instead of
        a span.

        An earlier start without a stop is not recorded if the span around it has ended.
        """
        if metadata:
            self._write_event("start")
        elif state.enabled:
            self._begin()

    def _begin(self) -> None:
        """Enter, and withdraw an earlier ``start`` without a stop if the span around it has ended."""
        lane = getattr(local, "lane", None)
        if lane is not None and lane.orphans:
            lane.drop_orphan(self.name_word)
        self.__enter__()

    def stop(self, metadata: bool = False) -> None:
        """Leave the node that the latest ``start`` in this thread or task entered."""
        if metadata:
            self._write_event("end")
        elif state.enabled:
            # Even if it was disabled in between.
            NamedSpan.__exit__(self, None, None, None)

    @never_raises
    def _write_event(self, suffix: str) -> None:
        journal = current_journal() if state.enabled and self.is_enabled else None
        if journal is not None:
            attributes = {**self.attributes, "category": self.category}
            journal.write_event("event", f"{self.name}.{suffix}", attributes)

    def _in_loop(self, name: str | None, ending: str) -> Node:
        if name is None:
            return self.derive(ending)
        return self._child(f"loop {name_of(name)}", name_of(name))

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self.name, self.category)

    def __repr__(self) -> str:
        off = "" if self.is_enabled else ", disabled"
        return f"<ai node {self.category}:{self.name}{off}>"


class NodeWithArguments(Node):
    """An enabled node with arguments."""

    __slots__ = ()


class DisabledNode(Node):
    """A disabled node."""

    __slots__ = ()


class Use(AttributedSpan, IterableSpan):
    """One use of a node, with its own arguments."""

    __slots__ = ("_node",)

    _node: Node
    _enable: bool | None = None

    def __enter__(self) -> Use:
        return self

    def __call__(self, function: F) -> F:
        # A copy, because the caller may change the dict.
        self.attributes = dict(self.attributes)
        return super().__call__(function)

    def start(self) -> None:
        """Enter the node, where a ``with`` statement does not fit."""
        if state.enabled:
            self.__enter__()

    def stop(self) -> None:
        """Leave the node that the latest ``start`` in this thread or task entered."""
        if state.enabled:
            self.__exit__(None, None, None)

    def _in_loop(self, name: str | None, ending: str) -> UseInLoop:
        return UseInLoop(self._node._in_loop(name, ending), dict(self.attributes), self._enable)

    def update(self, /, args: Mapping[str, Any] | None = None, **more: Any) -> Use:
        """Set arguments of this use."""
        self.attributes = {**self.attributes, **_arguments(args), **more}
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored_use, (self._node, self.attributes, self._enable)


class SwitchedUse(Use):
    """A use with its own switch."""

    __slots__ = ("_enable",)

    _enable: bool | None


class UseInLoop(NamedSpan):
    """A node in a loop, with arguments or a switch for this loop only."""

    __slots__ = ("_enable", "_node", "_own")

    def __init__(self, node: Node, own: dict[str, Any], enable: bool | None) -> None:
        self.name_word = node.name_word
        self._node = node
        self._own = own
        self._enable = enable

    @property
    def is_enabled(self) -> bool:
        return self._node.is_enabled if self._enable is None else self._enable

    @property
    def attributes(self) -> dict[str, Any]:
        """The arguments of the node and of this use."""
        return {**self._node.attributes, **self._own}

    def _encoded(self) -> bytes:
        return encode(self.attributes)

    def __reduce__(self) -> tuple[Any, ...]:
        return UseInLoop, (self._node, self._own, self._enable)


def _enter_use(self: Use) -> Use:
    node = self._node
    if node.__class__ is Node and self.__class__ is Use and self.attributes:
        # The usual case.
        enter_with_attributes(self)
        return self
    enable = self._enable
    if node.is_enabled if enable is None else enable:
        own = self.attributes
        if own:
            enter_with(self, encode({**node.attributes, **own} if node.attributes else own))
        elif node.attributes:
            enter_with(self, node._encoded())
        else:
            NamedSpan.__enter__(self)
    else:
        enter_unrecorded(self)
    return self


def _arguments(args: Mapping[str, Any] | None) -> dict[str, Any]:
    if args is None:
        return {}
    if not isinstance(args, Mapping):
        raise StepwellError(f'args must be a dict such as args={{"size": 4}}, got {args!r}')
    return dict(args)


def _switch_of(enable: Any) -> bool:
    if isinstance(enable, bool):
        return enable
    raise StepwellError(f"enable must be True or False, got {enable!r}")


def _restored(name: str, category: str) -> Node:
    from stepwell.annotations.tree import find

    return find(name, category)


def _restored_use(node: Node, attributes: dict[str, Any], enable: bool | None) -> Use:
    return node(args=attributes, enable=enable)


def _switch(recording: bool) -> None:
    """Swap the ``__enter__`` methods, as for plain spans. While nothing records, entering does nothing."""
    with_arguments: Any = NodeWithArguments
    with_arguments.__enter__ = enter_with_attributes if recording else _idle_enter
    use: Any = Use
    use.__enter__ = _enter_use if recording else _idle_enter


def _idle_enter(self: Any) -> Any:
    return self


DisabledNode.__enter__ = IdleSpan.__enter__  # type: ignore
DisabledNode.__exit__ = IdleSpan.__exit__  # type: ignore
DisabledNode.set = IdleSpan.set  # type: ignore
state.switches.append(_switch)
_switch(state.enabled)
