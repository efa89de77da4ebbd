"""A subset of `yaml.SafeLoader` for plain data, without features that no specification needs."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node

_TIMESTAMP = "tag:yaml.org,2002:timestamp"


class StrictLoader(yaml.SafeLoader):
    """Refuses aliases, tags and names that occur twice in a mapping. Dates stay text.

    Aliases can expand a small file to a huge document.
    """

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]  # the stub has no types
        if isinstance(event, yaml.AliasEvent):
            raise _refusal(event, f"expected no alias, got *{event.anchor}; write it out")
        if getattr(event, "tag", None) is not None:
            raise _refusal(event, f"expected no tag, got {event.tag}")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key, _ in node.value:
            name = (key.tag, key.value) if isinstance(key.value, str) else None
            if name is not None and name in seen:
                text = f"expected each name once, got {key.value!r} twice in one mapping"
                raise _refusal(key, text)
            seen.add(name)
        return super().construct_mapping(node, deep)


class StrictDumper(yaml.SafeDumper):
    """Writes YAML without aliases, which `StrictLoader` can read."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


StrictLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _refusal(where: Any, text: str) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, text, where.start_mark)
