# SPDX-License-Identifier: Apache-2.0
"""Measure an import of a whole project: Claude Code sessions or Codex rollouts, made by repeating a recorded one.

    .venv/bin/python benchmarks/whole_project.py                                  # 20 Claude Code sessions of 5 MB
    .venv/bin/python benchmarks/whole_project.py --sessions 200                   # 1 GB
    .venv/bin/python benchmarks/whole_project.py traces/codex --megabytes 1

Every copy has new ids (a hash of the old id, the session and the repetition), in every field that names them, and follows
the copy before it, so a session is one long conversation. The same arguments give the same bytes.
Printed: the tree's size, seconds of `sqsim trace import`, MB/s, and the peak memory of its process.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

ROOT = Path(__file__).resolve().parents[1]
_ID = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\b(?:msg|toolu|req|call)_\w{6,}"
)


def new_id(old: str, copy: str) -> str:
    """Derive an id of the same form: a UUID, or a word after its prefix."""
    digest = hashlib.sha256(f"{copy} {old}".encode()).hexdigest()
    if "_" in old:
        return f"{old.split('_', maxsplit=1)[0]}_{digest[:24]}"
    return "-".join((digest[:8], digest[8:12], digest[12:16], digest[16:20], digest[20:32]))


def sessions_of(recording: Path) -> list[str]:
    """Return the lines of the recording's first file."""
    files = sorted(recording.rglob("*.jsonl"))
    if not files:
        sys.exit(f"{recording}: holds no .jsonl file; name a directory of recordings")
    return files[0].read_text().splitlines()


def session(lines: list[str], number: int, size: int) -> tuple[str, str]:
    """Repeat the lines up to `size` bytes as one session. Return its id and its text."""
    names = re.findall(r'"sessionId": ?"([^"]+)"', "\n".join(lines[:50]))
    own = {old: new_id(old, f"session {number}") for old in names}
    text: list[str] = []
    written, repetition = 0, 0
    last: str | None = None
    leaf: str | None = None
    while written < size:
        copy = f"{number} {repetition}"
        for line in lines:
            if repetition and '"session_meta"' in line:
                continue
            renamed = _ID.sub(lambda m: own.get(m[0]) or new_id(m[0], copy), line)  # noqa: B023 - used at once
            if last and '"parentUuid"' in renamed:
                event = json.loads(renamed)
                if event["parentUuid"] is None:
                    event["parentUuid"] = last
                    renamed = json.dumps(event, ensure_ascii=False)
            found = re.search(r'"uuid": ?"([^"]+)"', renamed)
            leaf = found[1] if found else leaf
            text.append(renamed)
            written += len(renamed.encode()) + 1
        last = leaf
        repetition += 1
    return next(iter(own.values()), f"rollout-{number:04}"), "\n".join(text) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("recording", type=Path, nargs="?", default=ROOT / "traces" / "claude_code")
    parser.add_argument("--sessions", type=int, default=20)
    parser.add_argument("--megabytes", type=float, default=5.0, help="of each session")
    chosen = parser.parse_args()
    lines = sessions_of(chosen.recording)
    with tempfile.TemporaryDirectory() as folder:
        tree, out = Path(folder, "tree"), Path(folder, "out.jsonl.zst")
        tree.mkdir()
        for number in range(chosen.sessions):
            name, text = session(lines, number, int(chosen.megabytes * 1e6))
            (tree / f"{name}.jsonl").write_text(text)
        size = sum(file.stat().st_size for file in tree.iterdir()) / 1e6
        began = perf_counter()
        command = [str(Path(sys.executable).with_name("sqsim")), "trace", "import", str(tree), "-o", str(out)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        took_s = perf_counter() - began
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        print(f"{size:.0f} MB in {took_s:.1f} s: {size / took_s:.2f} MB/s, peak {peak:.0f} MiB")


if __name__ == "__main__":
    main()
