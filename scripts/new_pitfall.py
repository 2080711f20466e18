#!/usr/bin/env python3
"""Writes the skeleton of a pitfall page: `new_pitfall.py ADV-EPSILON "title" --stage advantages --role advantages`."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

PAGES = Path(__file__).resolve().parent.parent / "references" / "pitfalls"

SKELETON = """+++
id = "{id}"
title = "{title}"
stage = "{stage}"
family = ""
roles = ["{role}"]
symptoms = []
sources = []
target = ""
+++

## What it is

## How it shows

## Why it is wrong

## Bug

```python
```

## Fix

```python
```
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("id", help="the pattern that is wrong, in capitals: ADV-EPSILON")
    parser.add_argument("title")
    parser.add_argument("--stage", required=True)
    parser.add_argument("--role", required=True)
    args = parser.parse_args()
    if not re.fullmatch(r"[A-Z0-9]+(-[A-Z0-9]+)+", args.id):
        parser.error(f"{args.id!r} is no id: capitals and digits, joined by hyphens")
    slug = re.sub(r"[^a-z0-9]+", "-", args.title.lower()).strip("-")
    page = PAGES / f"{args.id}-{slug}.md"
    if list(PAGES.glob(f"{args.id}-*.md")):
        parser.error(f"{args.id} has a page; an id is never reused")
    page.write_text(SKELETON.format(**vars(args)), encoding="utf-8")
    print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
