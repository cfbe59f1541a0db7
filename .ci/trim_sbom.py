"""Leaves out of a bill of materials the addresses of pages, which say nothing of what is installed."""

import json
import sys
from pathlib import Path

path = Path(sys.argv[1])
document = json.loads(path.read_text())
for component in [document["metadata"].get("component", {}), *document["components"]]:
    component.pop("externalReferences", None)
path.write_text(json.dumps(document, indent=2) + "\n")
