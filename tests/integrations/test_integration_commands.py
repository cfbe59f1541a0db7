"""`bursar envoy` and `bursar memcached-proxy`: a wrong use is one message that says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from bursar.cli import main

RATE = '[resource.{name}]\nkind = "rate"\nservers = {{ a = "1k/s" }}\n[resource.{name}.tenant]\nacme = {{}}\n'
SHARE = '[resource.disk]\nkind = "share"\ncapacity = "1k/s"\n[resource.disk.tenant]\nacme = {}\n'


def write(folder: Path, *texts: str) -> str:
    file = folder / "policy.toml"
    file.write_text("".join(texts))
    return str(file)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(words)
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["envoy", "config", "RATES"], "pass --resource with one of: one, two"),
        (["envoy", "config", "SHARE"], 'no resource of kind "rate"'),
        (["envoy", "config", "RATE", "--others", "maybe"], "pass allow or deny"),
        (["envoy", "config", "RATE", "--server", "nowhere"], "nowhere"),
        (["envoy", "config", "RATE", "--protocol", "xds"], "pass rlqs or rls"),
        (["envoy", "import", "none.yaml"], "cannot be read"),
        (["envoy", "serve", "RATE", "--listen", "0.0.0.0:0"], "beyond loopback"),
        (["memcached-proxy", "RATE", "--resource", "one"], "say which memcached server with --backend"),
        (["memcached-proxy", "RATE", "--resource", "onne"], 'did you mean "one"'),
    ],
)
def test_a_wrong_use_says_what_to_do(
    words: list[str],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    texts = {
        "RATE": [RATE.format(name="one")],
        "RATES": [RATE.format(name="one"), RATE.format(name="two")],
        "SHARE": [SHARE],
    }
    ready = [write(tmp_path, *texts[word]) if word in texts else word for word in words]
    code, _, err = run(capsys, *ready)
    assert code == 2
    assert said in err
    assert "Traceback" not in err


@pytest.mark.parametrize("command", ["config", "serve"])
def test_help_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "envoy", command, "--help")
    assert code == 0
    assert f"bursar envoy {command} policy.toml" in out and "Exit codes:" in out
