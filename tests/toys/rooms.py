"""The rooms of the house, as they lie on the disk: which packages have which, what they import, and a picture of them.

A room is a folder of a package, or a file that lies in it beside them. ``PYTHONPATH=tests python -m toys.rooms`` draws
the picture of docs/en/architecture.md and docs/zh/architecture.md anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from toys.sources import MODULES, ROOT, imports_of, is_inside, only_re_exports

# The packages of the house from the bottom to the top, and what each may import: nothing but itself and these. A module
# belongs to the package with the longest name that fits.
BORDERS = {
    "nemo_lite.base": [],
    "nemo_lite": ["nemo_lite.base"],
    "nemo_asr.run": ["nemo_lite.base"],
    "nemo_asr": ["nemo_asr.run", "nemo_lite", "nemo_lite.base"],
    "nemo_lite.compat": ["nemo_lite", "nemo_lite.base"],
    "nemo_asr.compat": ["nemo_asr", "nemo_asr.run", "nemo_lite", "nemo_lite.base", "nemo_lite.compat"],
}
TITLES = {
    "nemo_lite.base": "the ground",
    "nemo_lite": "the engine",
    "nemo_asr.run": "what recognises",
    "nemo_asr": "what learns",
    "nemo_lite.compat": "NeMo 0.x",
    "nemo_asr.compat": "NeMo 0.x, speech",
}
# Folders that only hold rooms: these are drawn in their place.
OPEN = ("nemo_lite.backends", "nemo_lite.backends.pytorch")
# Tables of names: the roots of the packages add NeMo's paths to what can be imported.
TABLES = ("nemo_lite.package_info", "nemo_lite.compat.paths", "nemo_asr.compat.paths")


def package_of(module: str) -> str | None:
    """The package of the house that a module belongs to; None for others."""
    names = [name for name in BORDERS if is_inside(module, name)]
    return max(names, key=len) if names else None


def room_of(module: str) -> str | None:
    """The room of a module, by its full name; None for a package itself and for modules of others."""
    package = package_of(module)
    if package is None:
        return None
    place = max((name for name in (package, *OPEN) if is_inside(module, name)), key=len)
    first = module.removeprefix(place).lstrip(".").partition(".")[0]
    return f"{place}.{first}" if first and module not in OPEN else None


def rooms() -> dict[str, list[str]]:
    """The rooms of each package, by their full names."""
    names: dict[str, set[str]] = {package: set() for package in BORDERS}
    for module, path in MODULES.items():
        package, room = package_of(module), room_of(module)
        if package and room and not (path.name != "__init__.py" and only_re_exports(path)):
            names[package].add(room)
    return {package: sorted(inside) for package, inside in names.items()}


def imported_rooms() -> dict[str, set[str]]:
    """What each room imports of the others of its package, when it is imported itself: not in functions."""
    targets: dict[str, set[str]] = {room: set() for inside in rooms().values() for room in inside}
    for module, path in MODULES.items():
        room = room_of(module)
        for found in imports_of(path):
            other = room_of(found.target)
            is_near = package_of(module) == package_of(found.target) and room != other
            if is_near and room in targets and other in targets and not (found.late or found.typing_only):
                targets[room].add(other)
    return targets


def reduced(targets: Mapping[str, set[str]]) -> dict[str, list[str]]:
    """The arrows without those that follow from others; what has most below it comes first."""
    below = {name: _below(name, targets) for name in targets}
    return {
        name: sorted(
            target
            for target in targets[name]
            if not any(target in below[other] and name not in below[other] for other in targets[name] - {target})
        )
        for name in sorted(targets, key=lambda name: (-len(below[name]), name))
    }


def _below(name: str, targets: Mapping[str, set[str]]) -> set[str]:
    """All that can be reached from here."""
    found, waiting = set[str](), [name]
    while waiting:
        new = targets[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def picture() -> str:
    """The packages, their rooms and the arrows between them, as Mermaid."""
    return "".join(f"{line}\n" for line in ["flowchart TD", *_packages(), *_arrows_of_packages()])


def _packages() -> Iterator[str]:
    targets = imported_rooms()
    for package, inside in reversed(rooms().items()):
        yield f'    subgraph {_id(package)} ["{package}: {TITLES[package]}"]'
        for room, below in reduced({room: targets[room] for room in inside}).items():
            arrow = f" --> {' & '.join(map(_id, below))}" if below else ""
            yield f'        {_id(room)}["{room.rpartition(".")[2]}"]{arrow}'
        yield "    end"


def _arrows_of_packages() -> Iterator[str]:
    for package, below in reduced({name: set(others) for name, others in BORDERS.items()}).items():
        yield from (f"    {_id(package)} --> {_id(other)}" for other in below)


def _id(name: str) -> str:
    return name.replace(".", "_")


def draw() -> None:
    """Write the picture into the pages; the titles of the Chinese page stay."""
    for language in ("en", "zh"):
        path = ROOT / "docs" / language / "architecture.md"
        text = path.read_text(encoding="utf-8")
        (shown,) = re.findall(r"^```mermaid\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        drawn = picture()
        if language == "zh":
            for package, title in re.findall(r'\["([\w.]+): (.*?)"\]', shown):
                drawn = drawn.replace(f'"{package}: {TITLES.get(package)}"', f'"{package}: {title}"')
        path.write_text(text.replace(shown, drawn), encoding="utf-8")


if __name__ == "__main__":
    draw()
