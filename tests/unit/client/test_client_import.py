"""What importing the client loads, and its error if there is no engine."""

from __future__ import annotations

import subprocess
import sys

from tests.support.cluster import environment


def _python(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_without_an_engine_the_client_says_why() -> None:
    script = (
        "import sys; sys.modules['reducer_client._engine'] = None\n"
        "import reducer_client\n"
        "reducer_client.connect"
    )
    ended = _python(script)
    assert ended.returncode == 1
    assert "ImportError: reducer_client has no engine" in ended.stderr
    assert "REDUCER_NO_NATIVE=1" in ended.stderr


def test_a_command_without_an_engine_says_why_in_one_line() -> None:
    script = (
        "import sys; sys.modules['reducer_client._engine'] = None\n"
        "from reducer_tools.cli import main\n"
        "main(['bench', '--local', '1'])"
    )
    ended = _python(script)
    assert ended.returncode == 1
    assert ended.stderr.startswith("Error: reducer_client has no engine")
    assert "Traceback" not in ended.stderr


def test_without_ray_its_module_says_what_to_install() -> None:
    ended = _python("import sys; sys.modules['ray'] = None; import reducer_client.ray")
    assert ended.returncode == 1
    assert "needs Ray, which is not installed: pip install 'ray[train]'" in ended.stderr


def test_the_client_imports_no_framework_and_no_server() -> None:
    script = (
        "import sys, reducer_client\n"
        "heavy = {'torch', 'sklearn', 'matplotlib', 'rich', 'uvloop', 'reducer.server',"
        " 'reducer.core', 'ml_dtypes'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    ended = _python(script)
    assert ended.stdout.strip() == "[]", ended.stderr
