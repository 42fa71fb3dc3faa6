"""Nodes of the `ai` tree: a name to record under, in whatever way fits the code.

    @node                       with node:                  for item in node.iter(items):
    @node(args={"size": 4})     with node(size=4):          node.start(); ...; node.stop()

A node that is entered bare costs what a reused span costs. To that end its class says what entering it does:
nothing, record, or record with arguments; whenever one of its settings changes it changes its class. Whether
to record is decided on entry, so it does not matter whether something was decorated before or after.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar, overload

from stepwell.annotations.loop import annotated
from stepwell.journal.errors import StepwellError, quietly
from stepwell.journal.metrics import set_context
from stepwell.journal.span import (
    AttributedSpan,
    IdleSpan,
    Span,
    enter_unrecorded,
    enter_with,
    enter_with_attributes,
)
from stepwell.journal.state import current_journal, local, state
from stepwell.journal.values import encode
from stepwell.telemetry.events import name_of

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

COLUMNS = ("step", "epoch")
"""Arguments that fill columns of the tables."""


class Node(Span):
    """A node that records, without arguments of its own. Also the base class of the others."""

    __slots__ = (
        "__dict__",
        "_children",
        "_data",
        "_is_enabled",
        "_own",
        "_parent",
        "_told",
        "attributes",
    )

    def __init__(self, name: str, category: str, parent: Node | None = None) -> None:
        super().__init__(name, category)
        self._parent = parent
        self._children: dict[str, Node] = {}
        self._is_enabled: bool = True if parent is None else parent._is_enabled
        self._own: dict[str, Any] = {}
        # The nodes of the whole tree that have arguments or are disabled: few, so that they can be
        # looked at once a step.
        self._told: dict[Node, None] = {} if parent is None else parent._told
        self.attributes: dict[str, Any] = {} if parent is None else dict(parent.attributes)
        self._data: bytes | None = None
        self._settle()

    def _settle(self) -> None:
        """Become of the class that does what is to be done."""
        if not self._is_enabled:
            self.__class__ = DisabledNode
        else:
            self.__class__ = NodeWithArguments if self.attributes else Node
        if type(self) is Node:
            self._told.pop(self, None)
        else:
            self._told[self] = None

    # The tree

    @property
    def cat(self) -> str:
        """The category, as dftracer calls it."""
        return self.category

    def _child(self, key: str, name: str) -> Node:
        found = self._children.get(key)
        if found is None:
            # Of two threads that come first, both get the same one.
            found = self._children.setdefault(key, Node(name, self.category, self))
        return found

    @property
    def init(self) -> Node:
        """The node for making whatever this one is about: ``checkpoint.init``."""
        return self._child("init", f"{self.name}.init")

    def derive(self, name: str) -> Node:
        """A child of one's own, with its name behind this one's; always the same for the same name."""
        if name == "init":
            return self.init
        return self._child(f"derived {name_of(name)}", f"{self.name}.{name_of(name)}")

    def _subtree(self) -> Iterator[Node]:
        yield self
        for child in list(self._children.values()):
            yield from child._subtree()

    # Settings

    def enable(self) -> None:
        """Record this node and all below it."""
        self._switch(True)

    def disable(self) -> None:
        """Leave out this node and all below it."""
        self._switch(False)

    def _switch(self, enabled: bool) -> None:
        for node in self._subtree():
            node._is_enabled = enabled
            node._settle()

    def update(self, /, args: Mapping[str, Any] | None = None, **more: Any) -> Node:
        """Set arguments of all that is recorded from now on here and below; None takes one away.

        The latest call wins, be it of this node or of one above.

        ``step`` and ``epoch`` fill these columns; set on the root, they hold for the whole run.
        """
        parent = self._parent
        if args is None and parent is not None and not self._children:
            # As often as once a step: the quick way, unless some value is None.
            for value in more.values():
                if value is None:
                    break
            else:
                # Another thread may be reading the old ones.
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
        """What nodes were told of their own step or epoch is older than what the root is told now."""
        columns = [name for name, value in zip(COLUMNS, values, strict=True) if value is not None]
        for node in list(self._told):
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
                # The latest call wins, here as with switches.
                child._own.pop(name, None)
            child._inherit(self.attributes, changes)

    def _encoded(self) -> bytes:
        """The arguments as they are recorded."""
        data = self._data
        if data is None:
            attributes = self.attributes
            data = encode(attributes) if attributes else b""
            if self.attributes is attributes:
                # Not told others meanwhile, by another thread.
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
        """Decorate a function, or give a use of this node with arguments or a switch of its own."""
        if function is not None and args is None and enable is None and not more:
            return super().__call__(function)
        if enable is None:
            use: Use = Use()
        else:
            switched: SwitchedUse = SwitchedUse()
            switched._enable = _switch_of(enable)
            use = switched
        use._word = self._word
        use._node = self
        if args is None:
            use.attributes = more
        elif type(args) is dict and not more:
            use.attributes = args
        else:
            use.attributes = {**_arguments(args), **more}
        return use if function is None else use(function)

    def start(self, metadata: bool = False) -> None:
        """Begin, where a ``with`` statement does not fit; ``metadata`` leaves a record at once, no span.

        An earlier one that was never stopped is not recorded, if the span around it has ended.
        """
        if metadata:
            self._tell("start")
        elif state.enabled:
            self._begin()

    def _begin(self) -> None:
        """Enter; what an earlier ``start`` began that nothing stopped is taken back, once it is cut off."""
        lane = getattr(local, "lane", None)
        if lane is not None and lane.orphans:
            lane.drop_orphan(self._word)
        self.__enter__()

    def stop(self, metadata: bool = False) -> None:
        """End what the latest ``start`` in this thread or task began."""
        if metadata:
            self._tell("end")
        elif state.enabled:
            # Also when it was disabled meanwhile.
            Span.__exit__(self, None, None, None)

    @quietly
    def _tell(self, what: str) -> None:
        journal = current_journal() if state.enabled and self._is_enabled else None
        if journal is not None:
            about = {**self.attributes, "category": self.category}
            journal.write_event("event", f"{self.name}.{what}", about)

    def iter(
        self,
        iterable: Iterable[T],
        include_block: bool = True,
        include_iter: bool = True,
        iter_name: str | None = None,
        block_name: str | None = None,
    ) -> Iterable[T]:
        """Go through an iterable: the time for each item is ``<name>.iter``, that of the loop's body
        ``<name>.block``, both with a ``count`` from 1 on.

        ``iter_name`` and ``block_name`` replace these names.
        """
        around = self._in_loop(iter_name, "iter") if include_iter else None
        inside = self._in_loop(block_name, "block") if include_block else None
        return annotated(iterable, around, inside)

    def _in_loop(self, name: str | None, ending: str) -> Node:
        if name is None:
            return self.derive(ending)
        return self._child(f"loop {name_of(name)}", name_of(name))

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self.name, self.category)

    def __repr__(self) -> str:
        off = "" if self._is_enabled else ", disabled"
        return f"<ai node {self.category}:{self.name}{off}>"


class NodeWithArguments(Node):
    """A node that records, with arguments."""

    __slots__ = ()


class DisabledNode(Node):
    """A node that records nothing."""

    __slots__ = ()


class Use(AttributedSpan):
    """One use of a node, with arguments of its own. They belong to it alone."""

    __slots__ = ("_node",)

    _node: Node
    _enable: bool | None = None

    def __enter__(self) -> Use:
        return self

    def __call__(self, function: F) -> F:
        # Whatever becomes of the dict that was given.
        self.attributes = dict(self.attributes)
        return super().__call__(function)

    @property
    def cat(self) -> str:
        """The category, as dftracer calls it."""
        return self.category

    def start(self) -> None:
        """Begin, where a ``with`` statement does not fit."""
        if state.enabled:
            self.__enter__()

    def stop(self) -> None:
        """End what the latest ``start`` in this thread or task began."""
        if state.enabled:
            self.__exit__(None, None, None)

    def iter(
        self,
        iterable: Iterable[T],
        include_block: bool = True,
        include_iter: bool = True,
        iter_name: str | None = None,
        block_name: str | None = None,
    ) -> Iterable[T]:
        """Go through an iterable, as with the node."""
        around = self._in_loop(iter_name, "iter") if include_iter else None
        inside = self._in_loop(block_name, "block") if include_block else None
        return annotated(iterable, around, inside)

    def _in_loop(self, name: str | None, ending: str) -> UseInLoop:
        return UseInLoop(self._node._in_loop(name, ending), dict(self.attributes), self._enable)

    def update(self, /, args: Mapping[str, Any] | None = None, **more: Any) -> Use:
        """Set arguments of this use."""
        self.attributes = {**self.attributes, **_arguments(args), **more}
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored_use, (self._node, self.attributes, self._enable)


class SwitchedUse(Use):
    """One with a switch of its own."""

    __slots__ = ("_enable",)

    _enable: bool | None


class UseInLoop(Span):
    """What a loop takes for a node: one with arguments or a switch of this loop alone."""

    __slots__ = ("_enable", "_node", "_own")

    def __init__(self, node: Node, own: dict[str, Any], enable: bool | None) -> None:
        self._word = node._word
        self._node = node
        self._own = own
        self._enable = enable

    @property
    def _is_enabled(self) -> bool:
        return self._node._is_enabled if self._enable is None else self._enable

    @property
    def attributes(self) -> dict[str, Any]:
        """Those of the node and of this use."""
        return {**self._node.attributes, **self._own}

    def _encoded(self) -> bytes:
        return encode(self.attributes)

    def __reduce__(self) -> tuple[Any, ...]:
        return UseInLoop, (self._node, self._own, self._enable)


def _enter_use(self: Use) -> Use:
    node = self._node
    if node.__class__ is Node and self.__class__ is Use and self.attributes:
        # What most of them are.
        enter_with_attributes(self)
        return self
    enable = self._enable
    if node._is_enabled if enable is None else enable:
        own = self.attributes
        if own:
            enter_with(self, encode({**node.attributes, **own} if node.attributes else own))
        elif node.attributes:
            enter_with(self, node._encoded())
        else:
            Span.__enter__(self)
    else:
        enter_unrecorded(self)
    return self


def _arguments(args: Mapping[str, Any] | None) -> dict[str, Any]:
    if args is None:
        return {}
    if not isinstance(args, Mapping):
        raise StepwellError(f'args is {args!r}: write a dict such as args={{"size": 4}}')
    return dict(args)


def _switch_of(enable: Any) -> bool:
    if isinstance(enable, bool):
        return enable
    raise StepwellError(f"enable is {enable!r}: write True or False, or leave it out")


def _restored(name: str, category: str) -> Node:
    from stepwell.annotations.tree import find

    return find(name, category)


def _restored_use(node: Node, attributes: dict[str, Any], enable: bool | None) -> Use:
    made = node(args=attributes, enable=enable)
    return made


def _switch(recording: bool) -> None:
    """Swap what entering does, as for plain spans; while nothing records it does nothing."""
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
