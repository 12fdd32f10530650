"""YAML as this project reads it: a name that stands twice in one mapping is an error, not silently the last of them."""

from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from creditaudit import paths

LISTED = 12  # more known names than this help nobody


class YamlError(ValueError):
    """A file is not YAML, or not as we read it; the message names file, line and reason."""


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        keys = [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        names = [key.value for key in keys]
        for key in keys:
            if names.count(key.value) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} stands here twice", key.start_mark)
        return super().construct_mapping(node, deep)


def load(path: Path) -> Any:
    """The file's content; None where it is empty."""
    try:
        with path.open() as file:
            return yaml.load(file, _Loader)  # a SafeLoader
    except yaml.constructor.ConstructorError as error:  # well-formed, but not as we read it
        raise YamlError(f"{paths.shown(path)}: {' '.join(str(error).split())}") from None
    except yaml.YAMLError as error:
        raise YamlError(f"{paths.shown(path)}: not YAML: {' '.join(str(error).split())}") from None


def nearest(name: str, known: Any) -> str:
    """The end of an error message about an unknown name."""
    names = sorted(map(str, known))
    near = get_close_matches(name, names, n=1, cutoff=0.5)
    if near:
        return f": did you mean {near[0]!r}?"
    return f": known are {', '.join(names[:LISTED]) or 'none'}{', ...' if len(names) > LISTED else ''}"
