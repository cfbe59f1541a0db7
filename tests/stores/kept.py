"""What the tests of several engines need: a session's record, a clock, and certificates."""

from __future__ import annotations

from bursar.runtime.clock import BootClock
from bursar.stores.credentials import Credentials

CERTIFICATES = """
for authority in ca other; do
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 \
    -keyout $authority.key -out $authority.crt -subj /CN=$authority
done
sign() {
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout $1.key -out $1.csr -subj /CN=$1
  echo "subjectAltName=$3" > $1.ext
  openssl x509 -req -in $1.csr -CA $2.crt -CAkey $2.key -CAcreateserial -days 2 -extfile $1.ext -out $1.crt
}
sign server ca IP:127.0.0.1
sign client ca DNS:client
sign stranger other DNS:stranger
cat server.key server.crt > server.pem
"""


class SetClock(BootClock):
    """Stands still, but for what a test says."""

    ns = 0

    def now(self) -> int:  # type: ignore[override]
        return self.ns


class Kept:
    """A record in memory."""

    def __init__(self, former: Credentials | None = None) -> None:
        self.kept = former

    def former(self) -> Credentials | None:
        return self.kept

    def seen(self) -> str:
        return "" if self.kept is None else self.kept.seen

    def keep(self, credentials: Credentials) -> None:
        self.kept = credentials
