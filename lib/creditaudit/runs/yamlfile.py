"""Our YAML files, read strictly: what could be taken for something else is an error, never silently a value.

A name that stands twice in one mapping, a name that is no text, an alias, and text that is no number (`1e-3`, `.nan`,
`010`, `1:30`) but would be one elsewhere: the first three are refused here, the last is text, and refused where a
number is asked for.
"""

import math
import re
from copy import deepcopy
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import yaml

from creditaudit import paths
from creditaudit.mistakes import Mistake

LISTED = 12  # more known names than this help nobody


class YamlError(Mistake, ValueError):
    """A file is not YAML, or not as we read it; the message names file, line and reason."""


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: ClassVar[dict] = {}  # not those of YAML 1.1, which has dates, octals and sixtieths

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        names: set[str] = set()
        for key, _ in node.value:
            if key.tag != "tag:yaml.org,2002:str":
                raise yaml.constructor.ConstructorError(None, None, "a name here is no text", key.start_mark)
            if key.value in names:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} stands here twice", key.start_mark)
            names.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_yaml_float(self, node: yaml.ScalarNode) -> float:
        value = super().construct_yaml_float(node)
        if not math.isfinite(value):
            raise yaml.constructor.ConstructorError(None, None, f"{node.value} is no finite number", node.start_mark)
        return value

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.constructor.ConstructorError(None, None, "aliases (*name) are not read here", mark)
        return super().compose_node(parent, index)


_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_yaml_float)
for _tag, _pattern, _first in (
    ("null", r"~|null|", ["~", "n", ""]),
    ("bool", r"true|false", list("tf")),
    ("int", r"[-+]?(0|[1-9][0-9]{0,300})", list("-+0123456789")),
    ("float", r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]{1,3})?", list("-+.0123456789")),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), _first)


def load(path: Path) -> Any:
    """The file's content; None where it is empty."""
    where = paths.shown(path)
    try:
        return deepcopy(_parsed(path.read_text("utf-8")))
    except (yaml.YAMLError, ValueError, LookupError, TypeError, RecursionError, OSError) as error:
        # also `!!int x`, for which PyYAML lets Python's own errors through
        why = " ".join(str(getattr(error, "strerror", None) or error).split())
        raise YamlError(f"{where}: {why}") from None


@lru_cache(maxsize=64)
def _parsed(content: str) -> Any:
    return yaml.load(content, _Loader)  # a SafeLoader


def mapping(content: Any, where: str) -> dict[str, Any]:
    """The content as a mapping: empty where nothing stands, an error where something else does."""
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise YamlError(f"{where}: must be a mapping of names to values, not {shown(content)}")
    return content


def shown(value: Any) -> str:
    """A value in an error message."""
    text = repr(value)
    return text if len(text) < 80 else f"{text[:76]} ..."


def nearest(name: str, known: Any) -> str:
    """The end of an error message about an unknown name."""
    names = sorted(map(str, known))
    near = get_close_matches(str(name), names, n=1, cutoff=0.5)
    if near:
        return f": did you mean {near[0]!r}?"
    return f": known are {', '.join(names[:LISTED]) or 'none'}{', ...' if len(names) > LISTED else ''}"
