"""Find a database server for the tests, or start a private one.

Looked for in this order; the first that answers is used:

1. the URL in `TEST_POSTGRES_URL` or `TEST_MYSQL_URL`
2. a server on its usual local port: `postgres` without password on 5432, `root` without password on 3306
3. a private server, started from the installed binaries on a free port in a temporary directory
4. the same after installing the Debian packages, when this is root on a machine with apt

A private server is stopped, and its directory removed, when its `with` block ends. The tests create and drop their own
`test_…` databases inside the server; nothing else in it is touched.
"""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tools.install import apt_install

LOCALHOST = "127.0.0.1"
START_SECONDS = 60
MAX_CONNECTIONS = 200


class DatabaseMissing(Exception):
    """There is no such database here and none could be started. The message is one line for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    name: str
    url: str
    origin: str


@contextmanager
def open_sqlite() -> Iterator[Database]:
    """A path in a temporary directory, so that tests that need a file never meet the developer's own."""
    with tempfile.TemporaryDirectory(prefix="durable-sqlite-") as directory:
        yield Database(name="sqlite", url=f"sqlite:///{directory}/db.sqlite3", origin="temporary file")


@contextmanager
def open_postgres() -> Iterator[Database]:
    with ExitStack() as cleanup:
        yield find_or_start(
            cleanup,
            name="postgres",
            variable="TEST_POSTGRES_URL",
            usual_url=f"postgres://postgres@{LOCALHOST}:5432/durable",
            why_not=postgres_problem,
            start=start_private_postgres,
            packages=["postgresql"],
        )


@contextmanager
def open_mariadb() -> Iterator[Database]:
    if find_spec("MySQLdb") is None:
        raise DatabaseMissing("the driver mysqlclient is not installed; `make -B install` tells why")
    with ExitStack() as cleanup:
        yield find_or_start(
            cleanup,
            name="mariadb",
            variable="TEST_MYSQL_URL",
            usual_url=f"mysql://root@{LOCALHOST}:3306/durable",
            why_not=mysql_problem,
            start=start_private_mariadb,
            packages=["mariadb-server"],
        )


OPENERS = {"sqlite": open_sqlite, "postgres": open_postgres, "mariadb": open_mariadb}


def find_or_start(
    cleanup: ExitStack,
    *,
    name: str,
    variable: str,
    usual_url: str,
    why_not: Callable[[str], str | None],
    start: Callable[[ExitStack], str],
    packages: list[str],
) -> Database:
    """Follow the order of the module's docstring. `why_not(url)` tells why a server cannot be used, None if it can."""
    if given := os.environ.get(variable):
        if problem := why_not(given):
            raise DatabaseMissing(f"{variable} cannot be used: {problem}")
        return Database(name=name, url=given, origin=variable)

    if why_not(usual_url) is None:
        return Database(name=name, url=usual_url, origin="usual local port")

    try:
        url = start(cleanup)
    except FileNotFoundError:
        print(f"{name}: not installed; trying to install {' '.join(packages)}", flush=True)
        if not apt_install(packages):
            raise DatabaseMissing(f"no server found: set {variable}, or install {' '.join(packages)}") from None
        url = start(cleanup)

    if problem := why_not(url):
        raise DatabaseMissing(f"the private server does not answer: {problem}")
    return Database(name=name, url=url, origin="private server")


def postgres_problem(url: str) -> str | None:
    import psycopg

    try:
        with psycopg.connect(url, dbname="postgres", connect_timeout=5) as connection:
            query = "SELECT rolcreatedb OR rolsuper FROM pg_roles WHERE rolname = current_user"
            may_create_databases = connection.execute(query).fetchone()
    except psycopg.Error as error:
        return one_line(error)
    return None if may_create_databases == (True,) else "this user may not create databases"


def mysql_problem(url: str) -> str | None:
    import MySQLdb

    parts = urlsplit(url)
    try:
        MySQLdb.connect(
            host=parts.hostname or LOCALHOST,
            port=parts.port or 3306,
            user=unquote(parts.username or "root"),
            password=unquote(parts.password or ""),
            connect_timeout=5,
        ).close()
    except MySQLdb.Error as error:
        return one_line(error)
    return None


def start_private_postgres(cleanup: ExitStack) -> str:
    """Start PostgreSQL with its default durability. Raises FileNotFoundError when it is not installed."""
    initdb = find_binary("initdb", "/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin")
    pg_ctl = find_binary("pg_ctl", "/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin")
    as_postgres = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []  # it refuses to run as root

    directory = temporary_directory(cleanup, prefix="durable-postgres-", owner="postgres")
    data, port = directory / "data", free_port()
    run(
        [
            *as_postgres,
            initdb,
            f"--pgdata={data}",
            "--username=postgres",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C.UTF-8",
        ]
    )
    control = [*as_postgres, pg_ctl, f"--pgdata={data}"]
    options = f"-c listen_addresses={LOCALHOST} -p {port} -k {directory} -c max_connections={MAX_CONNECTIONS}"
    cleanup.callback(run, [*control, "stop", "--mode=immediate"], must_succeed=False)
    run([*control, "start", "--wait", f"--timeout={START_SECONDS}", f"--log={directory}/log", f"--options={options}"])
    return f"postgres://postgres@{LOCALHOST}:{port}/durable"


def start_private_mariadb(cleanup: ExitStack) -> str:
    """Start MariaDB with its default durability. Raises FileNotFoundError when it is not installed."""
    install_db = find_binary("mariadb-install-db", "/usr/bin", "/usr/local/bin")
    mariadbd = find_binary("mariadbd", "/usr/sbin", "/usr/local/sbin", "/usr/libexec")

    directory = temporary_directory(cleanup, prefix="durable-mariadb-", owner="mysql")
    data, log, port = directory / "data", directory / "log", free_port()
    common = ["--no-defaults", f"--datadir={data}", *(["--user=mysql"] if os.geteuid() == 0 else [])]
    run([install_db, *common, "--auth-root-authentication-method=normal", "--skip-test-db"])
    server = subprocess.Popen(
        [
            mariadbd,
            *common,
            f"--socket={directory}/socket",
            f"--pid-file={directory}/pid",
            f"--log-error={log}",
            f"--bind-address={LOCALHOST}",
            f"--port={port}",
            f"--max-connections={MAX_CONNECTIONS}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    cleanup.callback(stop_process, server)
    wait_for_port(port, server, log)
    return f"mysql://root@{LOCALHOST}:{port}/durable"


def find_binary(name: str, *patterns: str) -> str:
    """The newest of the installed versions, or what PATH finds. Raises FileNotFoundError."""
    found = [path for pattern in patterns for path in glob.glob(f"{pattern}/{name}")]
    newest = max(found, key=lambda path: [int(part) for part in Path(path).parts if part.isdigit()], default=None)
    if binary := newest or shutil.which(name):
        return binary
    raise FileNotFoundError(name)


def temporary_directory(cleanup: ExitStack, *, prefix: str, owner: str) -> Path:
    directory = Path(tempfile.mkdtemp(prefix=prefix))
    cleanup.callback(shutil.rmtree, directory, ignore_errors=True)
    if os.geteuid() == 0:
        user = pwd.getpwnam(owner)
        os.chown(directory, user.pw_uid, user.pw_gid)
    return directory


def run(command: list[str], *, must_succeed: bool = True) -> None:
    # Output goes to a file: a server started by pg_ctl would keep a pipe open, and the read would never end.
    with tempfile.TemporaryFile("w+") as output:
        done = subprocess.run(command, cwd="/", stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        if must_succeed and done.returncode != 0:
            output.seek(0)
            raise DatabaseMissing(f"{' '.join(command)} failed: {one_line(output.read()[-500:])}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOCALHOST, 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for_port(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex((LOCALHOST, port)) == 0:
                return
        time.sleep(0.1)
    reason = one_line(log.read_text()[-500:]) if log.exists() else "it wrote no log"
    raise DatabaseMissing(f"the private server did not start: {reason}")


def stop_process(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def one_line(message: object) -> str:
    return " ".join(str(message).split())
