"""Leaves out of a bill of materials the addresses of pages, which say nothing of what is installed."""

import json
import sys
from pathlib import Path
from typing import Any


def trim(part: Any) -> Any:
    if isinstance(part, dict):
        return {key: trim(value) for key, value in part.items() if key != "externalReferences"}
    return [trim(value) for value in part] if isinstance(part, list) else part


path = Path(sys.argv[1])
path.write_text(json.dumps(trim(json.loads(path.read_text())), indent=2) + "\n")
