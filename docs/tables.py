# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of docs/*.md that say what the code says: `.venv/bin/python docs/tables.py`.

A table stands between `<!-- table NAME -->` and `<!-- end -->`; `tests/sqsim/test_docs.py` fails while one is out
of date.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from pydantic.fields import FieldInfo

from sqsim.base.part import Part, Word
from sqsim.policies import BUILT_IN
from sqsim.record import schema as record
from sqsim.record.definitions import DEFINITIONS
from sqsim.scenario.engine import Engine
from sqsim.scenario.load import LOADS
from sqsim.scenario.scenario import Scenario

HERE = Path(__file__).parent
_TABLE = re.compile(r"(<!-- table (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_PERCENTILE = re.compile(r"(.*)_p(\d+)$")


def _default(key: FieldInfo) -> str:
    if key.is_required():
        return "required"
    if key.default_factory is not None:
        default = key.get_default(call_default_factory=True).model_dump(mode="json")
        shown = ", ".join(f"{name}: {value}" for name, value in default.items())
        return f"`{{{shown}}}`" if len(default) == 1 else "below"
    if key.default is None:
        return f"`{next(each.word for each in key.metadata if isinstance(each, Word))}`"
    return f"`{str(key.default).lower() if isinstance(key.default, bool) else key.default}`"


def _keys(prefix: str, part: type[Part]) -> Iterator[str]:
    """One row a key; a policy's own name is no key of its table."""
    for name, key in part.model_fields.items():
        if name != "name":
            yield f"| `{prefix}{name}` | {_default(key)} | {key.description} |"


def _scenario_keys() -> Iterator[str]:
    yield from ("| key | default | allowed |", "|---|---|---|")
    yield from _keys("", Scenario)
    yield from _keys("engine.", Engine)
    for load in LOADS.values():
        yield from _keys("load.", load)
    for name, policy in BUILT_IN.items():
        yield from (row.replace("` |", f"` ({name}) |", 1) for row in _keys("policy.", policy))


def _metrics() -> Iterator[str]:
    """Percentiles of one thing share a row."""
    yield from ("| key | unit | meaning |", "|---|---|---|")
    rows: dict[tuple[str, str], list[str]] = {}
    for name, metric in DEFINITIONS.items():
        rows.setdefault((metric.unit, metric.meaning.split("; percentile ")[0]), []).append(name)
    for (unit, meaning), names in rows.items():
        shown = f"`{names[0]}`" + "".join(
            f" `_p{found[2]}`" for name in names[1:] if (found := _PERCENTILE.match(name))
        )
        yield f"| {shown} | {unit or '-'} | {meaning} |"


def _columns() -> Iterator[str]:
    """One item a table; what stands in brackets is the comment beside the column in sqsim/record/schema.py."""
    sections = re.split(r"^([A-Z]+) = _schema\(\n", inspect.getsource(record), flags=re.MULTILINE)
    sources = dict(zip(sections[1::2], sections[2::2], strict=True))
    for name, schema in record.TABLES.items():
        source = sources[name.upper()]
        shown = []
        for column in schema:
            found = re.search(rf'^    \("{column.name}", .*\),(?:  # (.*))?$', source, re.MULTILINE)
            assert found is not None, f"column {column.name} of {name} has a line of its own in schema.py"
            mark = "?" if column.nullable else ""
            shown.append(f"`{column.name}{mark}`" + (f" ({found[1]})" if found[1] else ""))
        yield f"- **{name}.parquet**: {', '.join(shown)}"


TABLES: dict[str, Callable[[], Iterator[str]]] = {
    "keys": _scenario_keys,
    "columns": _columns,
    "metrics": _metrics,
}


def filled(page: str) -> str:
    """The page with its tables as the code has them now."""
    return _TABLE.sub(
        lambda found: found[1] + "".join(f"{row}\n" for row in TABLES[found[2]]()) + found[3], page
    )


def pages() -> list[Path]:
    """Every page of this folder."""
    return sorted(HERE.glob("*.md"))


if __name__ == "__main__":
    for path in pages():
        path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
