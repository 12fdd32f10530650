"""matplotlib's SVG without what nobody sees: names of groups, metadata, the fifth decimal.

Letters stay outlines (no font is needed), each drawn once per figure and used from there.
"""

import re
import xml.etree.ElementTree as ET

SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
PLACES = 2  # of a point: a seventieth of an inch by a hundred
_NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
_MOVE = re.compile(r"translate\([^)]*\)")  # not scale(0.015625)
_IDLE = {"stroke-linejoin: round", "stroke-opacity: 1", "fill-opacity: 1"}  # what the figure's own style says

ET.register_namespace("", SVG)
ET.register_namespace("xlink", XLINK)


def slim(svg: bytes) -> bytes:
    """The same picture in fewer bytes."""
    root = ET.fromstring(svg)
    for metadata in root.findall(f"{{{SVG}}}metadata"):
        root.remove(metadata)
    used = set(re.findall(r"#([\w.-]+)", svg.decode()))
    for node in root.iter():
        node.text = node.text.strip() if node.text else None
        node.tail = None
        if node.get("id") not in used:
            node.attrib.pop("id", None)
        for name in ("x", "y", "width", "height"):
            if name in node.attrib and node is not root:
                node.set(name, _rounded(node.get(name)))
        if "d" in node.attrib:
            node.set("d", re.sub(r" ?([A-Za-z]) ?", r"\1", " ".join(_rounded(node.get("d")).split())))
        if "style" in node.attrib:
            kept = [rule for rule in node.get("style").split("; ") if rule not in _IDLE]
            node.set("style", ";".join(rule.replace(": ", ":") for rule in kept))
        if "transform" in node.attrib:
            node.set("transform", _MOVE.sub(lambda found: _rounded(found[0]), node.get("transform")))
    _unwrap(root)
    return ET.tostring(root, encoding="utf-8").replace(b" />", b"/>")


def _rounded(text: str) -> str:
    return _NUMBER.sub(lambda found: f"{float(found[0]):.{PLACES}f}".rstrip("0").rstrip("."), text)


def _unwrap(node: ET.Element) -> None:
    """Groups that say nothing give way to what they hold."""
    for child in list(node):
        _unwrap(child)
    children: list[ET.Element] = []
    for child in node:
        children += list(child) if child.tag == f"{{{SVG}}}g" and not child.attrib else [child]
    node[:] = children
