"""An authority of the run's own: nodes beyond loopback want certificates of everybody."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

DAYS = 30


@dataclass(frozen=True, slots=True)
class Files:
    cert: str
    key: str
    ca: str

    def options(self) -> list[str]:
        return ["--cert", self.cert, "--key", self.key, "--ca", self.ca]

    def table(self) -> dict[str, str]:
        return {"cert": self.cert, "key": self.key, "ca": self.ca}


class Authority:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._run(
            "req", "-x509", "-newkey", "ed25519", "-nodes", "-days", str(DAYS), "-subj", "/CN=storm",
            "-addext", "keyUsage=critical,keyCertSign", "-keyout", "ca.key", "-out", "ca.crt",
        )  # fmt: skip

    def _run(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self._folder, check=True, capture_output=True)

    def issue(self, name: str, names: Sequence[str], host: str) -> Files:
        """For `name`, who may also call himself by `names` and is reached at `host`."""
        alternatives = ",".join([*(f"DNS:{other}" for other in (name, *names)), f"IP:{host}"])
        (self._folder / f"{name}.ext").write_text(
            f"subjectAltName={alternatives}\nbasicConstraints=critical,CA:FALSE\n"
        )
        self._run(
            "req", "-newkey", "ed25519", "-nodes", "-subj", f"/CN={name}", "-keyout", f"{name}.key",
            "-out", f"{name}.csr",
        )  # fmt: skip
        self._run(
            "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
            "-days", str(DAYS), "-extfile", f"{name}.ext", "-out", f"{name}.crt",
        )  # fmt: skip
        paths = (str(self._folder / f"{name}.crt"), str(self._folder / f"{name}.key"))
        return Files(*paths, str(self._folder / "ca.crt"))
